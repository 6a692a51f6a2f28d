"""B2: when a limited timeline is a gap, and what a page of one means."""

from collections.abc import Sequence

import pytest

from mindroom.core.ids import Epoch, SyncToken
from mindroom.core.values import GAP_PAGE_TOP, Membership, OrderKey
from mindroom.journal.classify import classify_gap_page
from mindroom.journal.records import Admission, GapFound
from mindroom.journal.rooms import RoomBook
from tests.support.books import SINCE, classes, classify, joined, standing
from tests.support.events import (
    ALICE,
    HEARER,
    ME,
    ROOM,
    Event,
    joined_room,
    member,
    message,
    redaction,
    response,
    state,
    timeline,
)


def page(events: Sequence[Event], *, number: int = 0, floor: int = 40) -> tuple[Admission, bool]:
    """`events` newest first."""
    return classify_gap_page(events, hearer=HEARER, room=ROOM, epoch=Epoch(2), floor=floor, page=number)


# ---- in a response ---------------------------------------------------------------------------------------------------
def test_a_limited_timeline_is_a_gap_from_its_start_back_to_the_token_we_asked_with() -> None:
    admission = classify(timeline(message("$a"), limited=True), joined(epoch=3))
    assert admission.gaps == [GapFound(ROOM, SyncToken("p1"), SINCE, Epoch(3))]


def test_a_complete_timeline_is_none() -> None:
    assert not classify(timeline(message("$a"))).gaps


def test_the_baseline_records_no_gap() -> None:
    """What was before us is not ours to catch up with."""
    assert not classify(timeline(message("$a"), limited=True), RoomBook(), since=None).gaps


def test_a_timeline_that_reaches_back_to_our_invite_is_no_gap() -> None:
    raw = timeline(
        member("$invite", ME, "invite", sender=ALICE), member("$join", ME, "join", before="invite"), limited=True
    )
    assert not classify(raw, standing(Membership.INVITE)).gaps


def test_a_timeline_that_reaches_back_to_a_join_without_invite_is_no_gap() -> None:
    assert not classify(timeline(member("$join", ME, "join"), message("$a"), limited=True), RoomBook()).gaps


def test_a_timeline_that_shows_our_join_but_not_the_invite_before_it_is_a_gap() -> None:
    """Somebody may have spoken to us between invite and join."""
    raw = timeline(message("$a"), member("$join", ME, "join", before="invite"), limited=True)
    assert classify(raw, standing(Membership.INVITE)).gaps


def test_a_new_room_whose_join_is_only_in_state_has_a_gap() -> None:
    raw = timeline(message("$a"), limited=True, state=[member("$join", ME, "join")])
    assert classify(raw, RoomBook()).gaps


@pytest.mark.parametrize("before", [None, "join"])
def test_a_change_of_our_profile_in_a_limited_timeline_hides_no_gap(before: str | None) -> None:
    raw = timeline(member("$rename", ME, "join", before=before), message("$a"), limited=True)
    assert classify(raw, joined()).gaps


def test_a_rejoin_in_a_limited_timeline_leaves_nothing_to_walk() -> None:
    raw = timeline(member("$join", ME, "join", before="leave"), message("$a"), limited=True)
    assert not classify(raw, joined()).gaps


@pytest.mark.parametrize("limited", [None, 1, "true", [], {}])
def test_only_true_is_limited(limited: object) -> None:
    raw = response(join={ROOM: joined_room([message("$a")]) | {"timeline": {"limited": limited, "prev_batch": "p"}}})
    assert not classify(raw).gaps


def test_a_long_token_is_a_token() -> None:
    """Tokens of servers with many writers are longer than ids may be."""
    long = "m" + "~12.3456789" * 60
    raw = response(join={ROOM: joined_room([message("$a")], limited=True, prev_batch=long)})
    assert [gap.from_token for gap in classify(raw).gaps] == [long]


# ---- pages -----------------------------------------------------------------------------------------------------------
def test_a_page_is_recovered_work_in_timeline_order_before_everything_live() -> None:
    """B2: (floor, 2^31 - page, index in timeline order), so older pages sort first."""
    newer, _ = page([message("$d"), message("$c")], number=0)
    older, _ = page([message("$b"), message("$a")], number=1)
    keys: dict[str, OrderKey] = {
        h.event_id: OrderKey(h.base or 0, h.page, h.index) for admission in (newer, older) for h in admission.heard
    }
    assert sorted(keys, key=lambda name: keys[name]) == ["$a", "$b", "$c", "$d"]
    assert keys["$a"] == OrderKey(40, GAP_PAGE_TOP - 1, 0)
    assert keys["$d"] == OrderKey(40, GAP_PAGE_TOP, 1)
    assert max(keys.values()) < OrderKey(41)
    assert set(classes(newer).values()) == {"recovered"}
    assert {h.epoch for h in newer.heard} == {2}


def test_a_page_ends_at_our_invite_and_what_is_older_is_history() -> None:
    events = [
        message("$after"),
        member("$join", ME, "join", before="invite"),
        message("$while_invited"),
        member("$invite", ME, "invite", sender=ALICE, before="leave"),
        message("$before"),
    ]
    admission, entered = page(events)
    found = classes(admission)
    assert entered
    assert (found["$after"], found["$while_invited"], found["$before"]) == ("recovered", "recovered", "history")


def test_a_join_that_followed_an_invite_does_not_end_the_gap_before_the_invite_is_found() -> None:
    admission, entered = page([message("$b"), member("$join", ME, "join", before="invite"), message("$a")])
    assert not entered
    assert set(classes(admission).values()) == {"recovered"}


@pytest.mark.parametrize("before", [None, "leave"])
def test_a_join_without_invite_ends_the_gap(before: str | None) -> None:
    admission, entered = page([message("$after"), member("$join", ME, "join", before=before), message("$before")])
    assert entered
    assert classes(admission)["$before"] == "history"


def test_our_own_leave_ends_the_gap() -> None:
    """What is older belongs to an earlier stay."""
    admission, entered = page([message("$b"), member("$leave", ME, "leave", before="join"), message("$a")])
    assert entered
    assert classes(admission)["$a"] == "history"


def test_a_profile_change_ends_nothing() -> None:
    _, entered = page([message("$b"), member("$rename", ME, "join", before="join"), message("$a")])
    assert not entered


def test_the_servers_word_decides_in_a_page_too() -> None:
    admission, _ = page([message("$b", membership="leave"), message("$a", membership="join")])
    assert classes(admission) == {"$a": "recovered", "$b": "history"}


def test_state_of_a_page_changes_no_state_membership_or_epoch() -> None:
    """A13."""
    admission, _ = page(
        [
            state("$name", "m.room.name", {"name": "x"}),
            member("$join", ME, "join", before="leave"),
            member("$leave", ME, "leave", before="join"),
        ]
    )
    assert (admission.state, admission.memberships, admission.departures) == ({}, {}, {})


def test_redactions_of_a_page_are_in_timeline_order_after_what_they_redact() -> None:
    admission, _ = page([redaction("$r", "$a"), message("$a")])
    assert [type(change).__name__ for change in admission.projection] == ["Original", "Redaction"]


def test_junk_in_a_page_is_skipped() -> None:
    admission, entered = page([None, "x", 7, [], message("$a")])  # type: ignore[list-item]
    assert not entered
    assert list(classes(admission)) == ["$a"]

"""B2: when a limited timeline is a gap, and what a page of one means."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from mindroom.core.ids import Epoch, EventId, Receipt, SyncToken
from mindroom.core.values import GAP_PAGE_TOP, GAP_SPACING, Membership, OrderKey, Stage
from mindroom.journal.gap_page import classify_gap_page
from mindroom.journal.records import Gap, GapFound, GapPage, KnownEvent
from mindroom.journal.rooms import RoomBook
from tests.support.books import SINCE, classes, classify, joined, standing
from tests.support.events import (
    ALICE,
    HEARER,
    ME,
    ROOM,
    STRANGER,
    Event,
    joined_room,
    member,
    message,
    redacted,
    redaction,
    response,
    said,
    state,
    timeline,
)

DAY_MS = 86_400_000
OPENED_MS = 100 * DAY_MS


def gap(**known: Any) -> Gap:
    """An open gap with floor 40, found at day 100."""
    values: dict[str, Any] = {"floor": 40, "epoch": Epoch(2), "opened_ms": OPENED_MS} | known
    return Gap(ROOM, SyncToken("s1"), SyncToken("p1"), **values)


def page(events: Sequence[Event], *, of: Gap | None = None, known: Mapping[str, KnownEvent] | None = None) -> GapPage:
    """`events` newest first; all of them were sent at day 100 unless they say when."""
    dated = [
        e | {"origin_server_ts": OPENED_MS} if isinstance(e, dict) and e["origin_server_ts"] == 1000 else e
        for e in events
    ]
    names = {EventId(name): event for name, event in (known or {}).items()}
    return classify_gap_page(dated, hearer=HEARER, gap=of or gap(), known=names)


def keys(*pages: GapPage) -> dict[str, OrderKey]:
    """The place of each event that was not known."""
    return {h.event_id: OrderKey(h.base or 0, h.page, h.index) for p in pages for h in p.admission.heard}


def known_at(*key: int, receipt: int = 41, begins: bool = False) -> KnownEvent:
    return KnownEvent(Receipt(receipt), OrderKey(*key), begins)


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
    """B2: (floor, 2^31 - page, place on the page), so older pages sort first."""
    newer = page([message("$d"), message("$c")])
    older = page([message("$b"), message("$a")], of=gap(page=1, anchor=newer.anchor))
    found = keys(newer, older)
    assert sorted(found, key=lambda name: found[name]) == ["$a", "$b", "$c", "$d"]
    assert found["$a"] == OrderKey(40, GAP_PAGE_TOP - 1, 0)
    assert found["$d"] == OrderKey(40, GAP_PAGE_TOP, GAP_SPACING)
    assert max(found.values()) < OrderKey(41)
    assert set(classes(newer.admission).values()) == {"recovered"}
    assert {h.epoch for h in newer.admission.heard} == {2}


def test_b2_what_only_the_second_walk_finds_stands_between_its_neighbours() -> None:
    """Newer than all of the first walk, between its events, between its pages, and older than what was known."""
    top = GAP_PAGE_TOP
    first = {
        "$3": known_at(40, top, GAP_SPACING),
        "$2": known_at(40, top, 0),
        "$1": known_at(40, top - 1, 0),
        "$0": known_at(30),
    }
    newer = page(
        [message(e) for e in ("$n5", "$n4", "$3", "$n3", "$2", "$n2")],
        of=gap(walk=2, page=2),
        known={k: first[k] for k in ("$3", "$2")},
    )
    older = page(
        [message(e) for e in ("$n1", "$1", "$0", "$n0")],
        of=gap(walk=2, page=3, anchor=newer.anchor),
        known={k: first[k] for k in ("$1", "$0")},
    )
    found = keys(newer, older) | {name: event.order_key for name, event in first.items()}
    in_order = ["$n0", "$0", "$1", "$n1", "$n2", "$2", "$n3", "$3", "$n4", "$n5"]
    assert sorted(found, key=lambda name: found[name]) == in_order
    assert len(set(found.values())) == len(found)
    assert max(found.values()) < OrderKey(41)


def test_b2_a_known_event_out_of_order_moves_no_place_forward() -> None:
    found = page([message("$b"), message("$known"), message("$a")], of=gap(walk=2), known={"$known": known_at(99)})
    assert keys(found)["$a"] < keys(found)["$b"]


def test_b2_a_page_is_known_when_all_of_it_was_before_the_gap() -> None:
    before, within = known_at(39, receipt=39), known_at(40, GAP_PAGE_TOP, 0, receipt=41)
    assert page([message("$a")], known={"$a": before}).is_known
    assert not page([message("$b"), message("$a")], known={"$a": before}).is_known
    assert not page([message("$b"), message("$a")], known={"$b": within, "$a": before}).is_known
    progress = said("$p", Stage.PROGRESS)
    assert page([progress, message("$a")], known={"$a": before}).is_known
    assert not page([progress]).is_known
    assert not page([]).is_known


def test_b2_older_than_the_beginning_of_our_time_is_history() -> None:
    """A3: what the baseline did not reach any more was never ours."""
    found = page([message("$c"), message("$b"), message("$a")], known={"$b": known_at(5, receipt=5, begins=True)})
    assert found.is_beginning
    assert classes(found.admission) == {"$c": "recovered", "$a": "history"}


def test_b2_a_known_event_is_passed_over_unless_it_is_redacted_now() -> None:
    """A4."""
    known = {"$a": known_at(39, receipt=39)}
    assert not page([message("$a")], known=known).admission.heard
    found = page([redacted("$a")], known=known)
    assert [type(change).__name__ for change in found.admission.projection] == ["Redaction"]
    assert found.is_known


# ---- the recovery horizon --------------------------------------------------------------------------------------------
def test_b3_a_page_beyond_the_horizon_starts_nothing() -> None:
    old = OPENED_MS - 8 * DAY_MS
    found = page([message("$b", ts=old), message("$a", ts=old)])
    assert found.is_withheld
    assert set(classes(found.admission).values()) == {"history"}


def test_b3_one_young_message_of_somebody_we_listen_to_keeps_a_page() -> None:
    found = page([message("$b", ts=OPENED_MS - 6 * DAY_MS), message("$a", ts=OPENED_MS - 8 * DAY_MS)])
    assert not found.is_withheld
    assert set(classes(found.admission).values()) == {"recovered"}


def test_b3_timestamps_of_strangers_withhold_nothing() -> None:
    """R42: a bridge fills a hundred old messages in; what stands behind them is not lost for that."""
    found = page([message("$a", sender=STRANGER, ts=5)])
    assert not found.is_withheld


def test_b3_a_known_page_beyond_the_horizon_withholds_nothing() -> None:
    found = page([message("$a", ts=5)], known={"$a": known_at(39, receipt=39)})
    assert (found.is_withheld, found.is_known) == (False, True)


# ---- our membership --------------------------------------------------------------------------------------------------
def test_a_page_ends_at_our_invite_and_what_is_older_is_history() -> None:
    events = [
        message("$after"),
        member("$join", ME, "join", before="invite"),
        message("$while_invited"),
        member("$invite", ME, "invite", sender=ALICE, before="leave"),
        message("$before"),
    ]
    found = page(events)
    of_each = classes(found.admission)
    assert found.is_beginning
    assert (of_each["$after"], of_each["$while_invited"], of_each["$before"]) == ("recovered", "recovered", "history")


def test_a_join_that_followed_an_invite_does_not_end_the_gap_before_the_invite_is_found() -> None:
    found = page([message("$b"), member("$join", ME, "join", before="invite"), message("$a")])
    assert not found.is_beginning
    assert set(classes(found.admission).values()) == {"recovered"}


@pytest.mark.parametrize("before", [None, "leave"])
def test_a_join_without_invite_ends_the_gap(before: str | None) -> None:
    found = page([message("$after"), member("$join", ME, "join", before=before), message("$before")])
    assert found.is_beginning
    assert classes(found.admission)["$before"] == "history"


def test_our_own_leave_ends_the_gap() -> None:
    """What is older belongs to an earlier stay."""
    found = page([message("$b"), member("$leave", ME, "leave", before="join"), message("$a")])
    assert found.is_beginning
    assert classes(found.admission)["$a"] == "history"


def test_a_profile_change_ends_nothing() -> None:
    found = page([message("$b"), member("$rename", ME, "join", before="join"), message("$a")])
    assert not found.is_beginning


def test_the_servers_word_decides_in_a_page_too() -> None:
    found = page([message("$b", membership="leave"), message("$a", membership="join")])
    assert classes(found.admission) == {"$a": "recovered", "$b": "history"}


def test_state_of_a_page_changes_no_state_membership_or_epoch() -> None:
    """A13."""
    found = page(
        [
            state("$name", "m.room.name", {"name": "x"}),
            member("$join", ME, "join", before="leave"),
            member("$leave", ME, "leave", before="join"),
        ]
    )
    assert (found.admission.state, found.admission.memberships, found.admission.departures) == ({}, {}, {})


def test_redactions_of_a_page_are_in_timeline_order_after_what_they_redact() -> None:
    found = page([redaction("$r", "$a"), message("$a")])
    assert [type(change).__name__ for change in found.admission.projection] == ["Original", "Redaction"]


def test_junk_in_a_page_is_skipped() -> None:
    found = page([None, "x", 7, [], message("$a")])  # type: ignore[list-item]
    assert not found.is_beginning
    assert list(classes(found.admission)) == ["$a"]

"""A3: the class of an event comes from the stored cursor and membership, never from its timestamp."""

import pytest

from mindroom.core.values import EventClass, Membership
from mindroom.journal.rooms import RoomBook
from tests.support.books import classes, classify, heard, joined, standing
from tests.support.events import (
    ALICE,
    BOB,
    ME,
    OTHER_ROOM,
    ROOM,
    event,
    joined_room,
    left_room,
    member,
    message,
    response,
    timeline,
)


def test_everything_in_the_baseline_is_history_whatever_the_server_says() -> None:
    """A3: the first response of an account starts nothing."""
    raw = timeline(
        member("$invite", ME, "invite", sender=ALICE),
        member("$join", ME, "join", before="invite"),
        message("$a", membership="join"),
        message("$b"),
        event("$c", type_="m.room.encrypted", content={"algorithm": "x"}),
    )
    admission = classify(raw, RoomBook(), since=None)
    assert set(classes(admission).values()) == {"history"}
    assert all(h.source is None and h.outcome is None for h in admission.heard)
    assert not admission.encrypted_asks
    assert not admission.gaps


def test_a_message_of_a_room_we_are_in_is_live_however_old_it_claims_to_be() -> None:
    """A3: a timestamp never decides."""
    admission = classify(timeline(message("$old", ts=1), message("$new", ts=2**50)))
    assert classes(admission) == {"$old": "live", "$new": "live"}


@pytest.mark.parametrize("key", ["membership", "io.element.msc4115.membership"])
@pytest.mark.parametrize(
    ("said", "expected"),
    [("join", "live"), ("invite", "live"), ("leave", "history"), ("ban", "history"), ("knock", "history")],
)
def test_the_servers_word_on_our_membership_decides(key: str, said: str, expected: str) -> None:
    """A3: unsigned.membership, also under its unstable name."""
    told = message("$a") | {"unsigned": {key: said}}
    assert classes(classify(timeline(told))) == {"$a": expected}


def test_the_stable_name_wins_over_the_unstable_one() -> None:
    told = message("$a") | {"unsigned": {"io.element.msc4115.membership": "join", "membership": "leave"}}
    assert classes(classify(timeline(told))) == {"$a": "history"}


@pytest.mark.parametrize("said", [None, 7, [], {"membership": "leave"}, True])
def test_a_membership_that_is_no_text_says_nothing(said: object) -> None:
    told = message("$a") | {"unsigned": {"membership": said}}
    assert classes(classify(timeline(told))) == {"$a": "live"}


def test_in_a_new_room_what_follows_our_invite_is_ours() -> None:
    """A3: position is the fallback, and the invite comes before the join."""
    raw = timeline(
        message("$before"),
        member("$invite", ME, "invite", sender=ALICE),
        message("$while_invited"),
        member("$join", ME, "join", before="invite"),
        message("$after"),
    )
    found = classes(classify(raw, standing(Membership.INVITE)))
    assert found["$before"] == "history"
    assert found["$while_invited"] == "live"
    assert found["$after"] == "live"


def test_in_a_new_room_without_an_invite_what_follows_our_join_is_ours() -> None:
    raw = timeline(message("$before"), member("$join", ME, "join"), message("$after"))
    found = classes(classify(raw, RoomBook()))
    assert (found["$before"], found["$after"]) == ("history", "live")


def test_when_our_invite_is_older_than_the_timeline_all_of_it_is_ours() -> None:
    """A3: the join says that it followed an invite, so everything shown came after that invite."""
    raw = timeline(message("$while_invited"), member("$join", ME, "join", before="invite"), limited=True)
    assert classes(classify(raw, standing(Membership.INVITE)))["$while_invited"] == "live"


def test_when_our_join_is_only_in_state_the_whole_timeline_is_ours() -> None:
    raw = timeline(message("$a"), state=[member("$join", ME, "join")])
    assert classes(classify(raw, RoomBook())) == {"$a": "live"}


def test_after_leaving_and_rejoining_inside_one_timeline_only_the_new_stay_is_ours() -> None:
    raw = timeline(
        message("$first_stay"),
        member("$leave", ME, "leave", before="join"),
        message("$away"),
        member("$join", ME, "join", before="leave"),
        message("$second_stay"),
    )
    found = classes(classify(raw, joined()))
    assert (found["$first_stay"], found["$away"], found["$second_stay"]) == ("history", "history", "live")


def test_a_rejoin_whose_leave_is_out_of_sight_still_divides_the_timeline() -> None:
    raw = timeline(message("$away"), member("$join", ME, "join", before="leave"), message("$back"))
    found = classes(classify(raw, joined()))
    assert (found["$away"], found["$back"]) == ("history", "live")


def test_the_servers_word_corrects_the_position() -> None:
    """A message of the time between leave and rejoin that the server marks is history, one marked ours stays live."""
    raw = timeline(
        member("$join", ME, "join"),
        message("$ours", membership="join"),
        message("$foreign", membership="leave"),
    )
    found = classes(classify(raw, RoomBook()))
    assert (found["$ours"], found["$foreign"]) == ("live", "history")


@pytest.mark.parametrize("before", [None, "join"])
def test_a_change_of_our_profile_divides_nothing(before: str | None) -> None:
    """A join of ours in a room we are in, whose previous membership was join or is not told, is no entry."""
    raw = timeline(message("$a"), member("$rename", ME, "join", before=before, displayname="New"), message("$b"))
    admission = classify(raw, joined())
    assert set(classes(admission).values()) == {"live"}
    assert not admission.departures


def test_memberships_of_others_divide_nothing() -> None:
    raw = timeline(message("$a"), member("$bob", BOB, "join"), member("$out", BOB, "leave", before="join"))
    assert set(classes(classify(raw, joined())).values()) == {"live"}


def test_a_room_we_have_left_brings_only_history() -> None:
    raw = response(leave={ROOM: left_room([message("$a", membership="join"), member("$leave", ME, "leave")])})
    assert set(classes(classify(raw, joined())).values()) == {"history"}


def test_one_room_says_nothing_about_another() -> None:
    raw = response(
        join={
            ROOM: joined_room([message("$a"), member("$join", ME, "join")]),
            OTHER_ROOM: joined_room([message("$b")]),
        }
    )
    admission = classify(raw, standing(Membership.JOIN, room=OTHER_ROOM))
    assert heard(admission, "$a").event_class is EventClass.HISTORY
    assert heard(admission, "$b").event_class is EventClass.LIVE

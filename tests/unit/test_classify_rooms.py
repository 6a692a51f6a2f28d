"""A9, A13, E10, F1: sections of a response, invites, departures, epochs and kept state."""

import pytest

from mindroom.core.ids import Epoch, EventId
from mindroom.core.values import Membership
from mindroom.journal.classify import classify_sync
from mindroom.journal.records import Redaction, RoomMembership, StateRow
from mindroom.journal.rooms import RoomBook
from tests.support.books import classify, heard, joined, standing, with_state
from tests.support.events import (
    ALICE,
    BOB,
    HEARER,
    ME,
    OTHER_ROOM,
    ROOM,
    edit,
    invited_room,
    joined_room,
    left_room,
    member,
    message,
    redaction,
    response,
    state,
    timeline,
)

CREATE = state("$create", "m.room.create", {"room_version": "12"})
ENCRYPTION = {"algorithm": "m.megolm.v1.aes-sha2"}


# ---- order and invites -----------------------------------------------------------------------------------------------
def test_rooms_we_left_come_first_and_joined_rooms_last() -> None:
    """A9, whatever the order of keys in the response."""
    raw = response(
        join={ROOM: joined_room([message("$joined")])},
        invite={OTHER_ROOM: invited_room(member("$invite", ME, "invite", sender=ALICE))},
        leave={"!gone:x": left_room([message("$left")])},
    )
    admission = classify(raw, joined())
    assert [h.event_id for h in admission.heard] == ["$left", "$joined"]
    assert list(admission.memberships) == [OTHER_ROOM]


def test_an_invite_becomes_a_row_with_inviter_and_is_direct() -> None:
    """A9: sync shows it once."""
    invite = member("$invite", ME, "invite", sender=ALICE, is_direct=True)
    raw = response(invite={ROOM: invited_room(member("$inviter", ALICE, "join"), invite)})
    row = classify(raw, RoomBook()).memberships[ROOM]
    assert (row.membership, row.inviter, row.is_direct, row.epoch) == (Membership.INVITE, ALICE, True, 1)


@pytest.mark.parametrize("value", [None, "true", 1, {}])
def test_only_true_makes_an_invite_direct(value: object) -> None:
    raw = response(invite={ROOM: invited_room(member("$invite", ME, "invite", sender=ALICE, is_direct=value))})
    assert classify(raw, RoomBook()).memberships[ROOM].is_direct is False


def test_the_inviters_own_join_in_the_invite_state_is_no_invite() -> None:
    raw = response(invite={ROOM: invited_room(member("$inviter", ALICE, "join"), member("$bob", BOB, "invite"))})
    assert not classify(raw, RoomBook()).memberships


def test_a_leave_of_an_invited_room_drops_the_invite_without_a_departure() -> None:
    """A9: nothing was owed there and no epoch ends."""
    raw = response(leave={ROOM: left_room([member("$leave", ME, "leave", before="invite")])})
    admission = classify(raw, standing(Membership.INVITE, epoch=3))
    assert admission.memberships[ROOM].membership is Membership.LEAVE
    assert admission.memberships[ROOM].epoch == 3
    assert not admission.departures


def test_a_join_keeps_what_its_invite_said() -> None:
    book = standing(Membership.INVITE, inviter=ALICE, is_direct=True)
    row = classify(timeline(member("$join", ME, "join", before="invite")), book).memberships[ROOM]
    assert (row.membership, row.inviter, row.is_direct, row.epoch) == (Membership.JOIN, ALICE, True, 1)


# ---- epochs ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("word", ["leave", "ban"])
@pytest.mark.parametrize("place", ["timeline", "state"])
def test_leaving_ends_the_epoch_once(word: str, place: str) -> None:
    """F1."""
    events = [member("$out", ME, word, before="join", sender=ALICE)]
    body = left_room(events) if place == "timeline" else left_room(state=events)
    admission = classify(response(leave={ROOM: body}), joined(epoch=2))
    assert admission.departures == {ROOM: 2}
    assert (admission.memberships[ROOM].membership, admission.memberships[ROOM].epoch) == (word, 3)


def test_a_room_that_was_left_before_does_not_end_another_epoch() -> None:
    """F1: once per real departure."""
    admission = classify(response(leave={ROOM: left_room()}), standing(Membership.LEAVE, epoch=3))
    assert not admission.departures
    assert admission.memberships[ROOM].epoch == 3


def test_a_rejoin_in_one_timeline_ends_an_epoch_and_stamps_nothing_with_it() -> None:
    """F1, A5: the departure that we were not shown comes first."""
    raw = timeline(
        message("$old"),
        member("$leave", ME, "leave", before="join"),
        member("$join", ME, "join", before="leave"),
        message("$new"),
    )
    admission = classify(raw, joined(epoch=4))
    assert admission.departures == {ROOM: 4}
    assert (admission.memberships[ROOM].membership, admission.memberships[ROOM].epoch) == (Membership.JOIN, 5)
    assert {h.epoch for h in admission.heard} == {5}


def test_two_rejoins_in_one_timeline_end_two_epochs() -> None:
    raw = timeline(
        member("$join1", ME, "join", before="leave"),
        member("$leave", ME, "leave", before="join"),
        member("$join2", ME, "join", before="leave"),
    )
    admission = classify(raw, joined(epoch=1))
    assert admission.departures == {ROOM: 2}
    assert admission.memberships[ROOM].epoch == 3


def test_the_join_after_a_leave_we_saw_keeps_the_new_epoch() -> None:
    raw = timeline(member("$join", ME, "join", before="leave"), message("$a"))
    admission = classify(raw, standing(Membership.LEAVE, epoch=5))
    assert not admission.departures
    assert admission.memberships[ROOM].epoch == 5
    assert heard(admission, "$a").epoch == 5


def test_an_invite_to_a_room_we_believed_to_be_in_ends_the_epoch() -> None:
    raw = response(invite={ROOM: invited_room(member("$invite", ME, "invite", sender=ALICE))})
    admission = classify(raw, joined(epoch=1))
    assert admission.departures == {ROOM: 1}
    assert (admission.memberships[ROOM].membership, admission.memberships[ROOM].epoch) == (Membership.INVITE, 2)


def test_a_left_room_shows_no_text_any_more_but_its_redactions_count() -> None:
    """A4, F2: the projection of the room goes in the same commit."""
    raw = response(leave={ROOM: left_room([message("$a"), edit("$e", "$a", "x"), redaction("$r", "$b")])})
    admission = classify(raw, joined())
    assert admission.projection == [Redaction(ROOM, EventId("$b"))]
    assert [h.event_id for h in admission.heard] == ["$a", "$e", "$r"]


# ---- rows and state --------------------------------------------------------------------------------------------------
def test_an_unchanged_room_writes_no_row() -> None:
    admission = classify(timeline(message("$a")), joined())
    assert not admission.memberships
    assert not admission.state


def test_counts_of_a_summary_are_kept_and_survive_a_response_without_them() -> None:
    first = response(join={ROOM: joined_room(summary={"m.joined_member_count": 2, "m.invited_member_count": 1})})
    book = joined()
    book.apply(classify(first, book))
    book.apply(classify(response(join={ROOM: joined_room(summary={"m.joined_member_count": 3})}), book))
    membership = book.view(ROOM).membership
    assert membership is not None
    assert (membership.joined_count, membership.invited_count) == (3, 1)


@pytest.mark.parametrize("count", [-1, 2**31, True, "3", 1.5, None])
def test_a_count_that_is_none_is_unknown(count: object) -> None:
    raw = response(join={ROOM: joined_room(summary={"m.joined_member_count": count})})
    assert not classify(raw, joined()).memberships


def test_state_comes_from_the_state_block_then_from_the_timeline() -> None:
    """A13."""
    raw = timeline(
        state("$n2", "m.room.name", {"name": "second"}),
        state=[CREATE, state("$n1", "m.room.name", {"name": "first"}), state("$x", "m.room.unknown", {})],
    )
    rows = classify(raw, RoomBook()).state
    assert rows[ROOM, "m.room.name", ""].content == {"name": "second"}
    assert set(rows) == {(ROOM, "m.room.name", ""), (ROOM, "m.room.create", "")}


def test_state_that_we_know_is_not_written_again() -> None:
    book = with_state(joined(), "m.room.name", {"name": "x"})
    assert not classify(timeline(state("$n", "m.room.name", {"name": "x"})), book).state


def test_encryption_is_sticky() -> None:
    """E10: taking it back, or changing it, is not believed."""
    book = with_state(joined(), "m.room.encryption", ENCRYPTION)
    assert not classify(timeline(state("$off", "m.room.encryption", {})), book).state
    assert classify(timeline(state("$on", "m.room.encryption", ENCRYPTION)), joined()).state


def test_state_equal_to_that_before_a_departure_survives_a_rejoin() -> None:
    """The departure forgets the room's state, so all of it is written anew: an unknown room is never written to."""
    book = with_state(joined(), "m.room.create", dict(CREATE["content"]))
    raw = timeline(member("$join", ME, "join", before="leave"), state=[CREATE])
    admission = classify(raw, book)
    assert (ROOM, "m.room.create", "") in admission.state
    book.apply(admission)
    assert book.view(ROOM).is_known


def test_a_room_in_the_book_follows_a_departure() -> None:
    book = with_state(joined(), "m.room.create", {})
    book.apply(classify(response(leave={ROOM: left_room()}), book))
    assert book.epoch(ROOM) is None
    assert book.joined() == []
    assert not book.view(ROOM).is_known


# ---- a join that is shown again (F1, R45) ----------------------------------------------------------------------------
def stay(joined_by: str | None) -> RoomBook:
    """A book of a room we are in, and the join that began it."""
    return standing(Membership.JOIN, epoch=4, joined_by=joined_by and EventId(joined_by))


JOIN = member("$join", ME, "join", before="invite")


def test_r45_the_join_of_this_stay_shown_again_is_no_departure() -> None:
    """R45, F1: servers repeat our own member event among the state of a timeline in which we spoke."""
    for raw in (timeline(message("$a"), state=[JOIN]), timeline(JOIN, message("$a"))):
        admission = classify(raw, stay("$join"))
        assert not admission.departures
        assert not admission.memberships


def test_r45_kick_invite_and_rejoin_that_a_limited_timeline_skipped_are_one_departure() -> None:
    """R45, F1: our new join stands in the state block; the gap is one of the new stay."""
    again = member("$again", ME, "join", before="invite")
    admission = classify(timeline(message("$a"), state=[again], limited=True), stay("$join"))
    assert admission.departures == {ROOM: 4}
    row = admission.memberships[ROOM]
    assert (row.membership, row.epoch, row.joined_by) == (Membership.JOIN, 5, "$again")
    assert {h.epoch for h in admission.heard} == {5}
    assert [gap.epoch for gap in admission.gaps] == [5]


def test_f1_a_join_seen_for_the_first_time_as_state_is_noted_and_ends_nothing() -> None:
    """F1: it may be old; only a timeline that goes on from the last one tells that it is new."""
    admission = classify(timeline(message("$a"), state=[JOIN]), stay(None))
    assert not admission.departures
    assert (admission.memberships[ROOM].joined_by, admission.memberships[ROOM].epoch) == ("$join", 4)


def test_f1_a_complete_response_that_shows_how_we_came_ends_nothing() -> None:
    """F1, B4: without a token the timeline may begin before our join, known or not."""
    raw = timeline(message("$old"), JOIN, message("$a"), state=[CREATE])
    for book in (stay("$join"), stay(None)):
        admission = classify_sync(raw, hearer=HEARER, book=book, since=None, certified_ms=1)
        assert not admission.departures
    another = member("$again", ME, "join", before="leave")
    raw = timeline(JOIN, message("$old"), another, message("$a"))
    admission = classify_sync(raw, hearer=HEARER, book=stay("$join"), since=None, certified_ms=1)
    assert admission.departures == {ROOM: 4}


def test_f1_a_ban_that_redacts_what_we_said_is_a_departure() -> None:
    """F1: the flag says nothing about us that the ban does not."""
    out = member("$ban", ME, "ban", before="join", sender=ALICE, **{"org.matrix.msc4293.redact_events": True})
    admission = classify(response(leave={ROOM: left_room([message("$a"), out])}), joined(epoch=2))
    assert admission.departures == {ROOM: 2}
    assert admission.memberships[ROOM].membership is Membership.BAN


def test_f1_a_kick_in_one_response_and_the_rejoin_in_the_next_are_one_departure() -> None:
    """F1: over three responses, as over one."""
    book = stay("$join")
    kick = member("$kick", ME, "leave", before="join", sender=ALICE)
    invite = member("$invite", ME, "invite", before="leave", sender=ALICE)
    rejoin = member("$again", ME, "join", before="invite")
    seen = []
    for raw in (
        response(leave={ROOM: left_room([kick])}),
        response(invite={ROOM: invited_room(invite)}),
        timeline(kick, invite, rejoin, message("$a"), state=[CREATE]),
    ):
        admission = classify(raw, book)
        seen += admission.departures.items()
        book.apply(admission)
    assert seen == [(ROOM, 4)]
    assert book.epoch(ROOM) == 5


# ---- upgrades --------------------------------------------------------------------------------------------------------
def test_f4_a_tombstone_makes_its_successor_wait_like_an_invitation() -> None:
    """F4: once; a room that we are in, are invited to or are banned from stays as it is."""
    moved = state("$t", "m.room.tombstone", {"replacement_room": OTHER_ROOM}, sender=BOB)
    row = classify(timeline(moved)).memberships[OTHER_ROOM]
    assert (row.membership, row.inviter, row.epoch) == (Membership.INVITE, BOB, 1)
    known = with_state(joined(), "m.room.tombstone", {"replacement_room": OTHER_ROOM})
    known.put_state(StateRow(ROOM, "m.room.tombstone", "", BOB, {"replacement_room": OTHER_ROOM}))
    assert OTHER_ROOM not in classify(timeline(moved), known).memberships
    for membership in (Membership.JOIN, Membership.INVITE, Membership.BAN):
        book = joined()
        book.put_membership(OTHER_ROOM, RoomMembership(Epoch(3), membership))
        assert OTHER_ROOM not in classify(timeline(moved), book).memberships


@pytest.mark.parametrize("successor", [None, "", 3, {}, "x" * 300])
def test_f4_a_tombstone_that_names_no_room_leads_nowhere(successor: object) -> None:
    moved = state("$t", "m.room.tombstone", {"replacement_room": successor})
    assert set(classify(timeline(moved)).memberships) <= {ROOM}

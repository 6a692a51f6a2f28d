"""The projection of messages, edits and redactions against a naive model, in any order, any number of times (K3)."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from mindroom.core.ids import EventId
from mindroom.journal.records import ProjectionChange, Redaction, Refetched
from mindroom.journal.reduce import Projection, reduce
from tests.support.events import ALICE, BOB, OTHER_ROOM, ROOM
from tests.support.reference import deliveries, edit, newest, original, redaction, refetched, rooms, visible

A, B, E1, E2, E3 = (EventId(f"${name}") for name in ("a", "b", "e1", "e2", "e3"))


def shown(projection: Projection) -> dict[EventId, str | None]:
    return {
        event: None if row.content is None else str(row.content["body"]) for (_, event), row in projection.shown.items()
    }


def after(*changes: ProjectionChange) -> dict[EventId, str | None]:
    return shown(reduce(Projection(), changes))


# ---- against the model -----------------------------------------------------------------------------------------------
@settings(max_examples=600, deadline=None)
@given(deliveries())
def test_any_order_and_repetition_shows_what_the_model_allows(changes: list[ProjectionChange]) -> None:
    """K3, A10: exactly the newest revision; where the shown edit was redacted, no text at all, and that is owed."""
    projection = reduce(Projection(), changes)
    found, allowed = shown(projection), visible(changes)
    assert found.keys() == allowed.keys()
    for event, text in found.items():
        assert text in allowed[event].texts
        assert text == newest(changes)[event] or projection.shown[ROOM, event].is_withheld


@settings(max_examples=600, deadline=None)
@given(deliveries(), st.randoms(use_true_random=False))
def test_what_is_read_again_shows_the_newest_revision_left(changes: list[ProjectionChange], rng: random.Random) -> None:
    """A4, A10: in every order of edits, originals and redactions, whatever is read again and whenever."""
    half = rng.randrange(len(changes) + 1)
    unasked = refetched(changes) if rng.random() < 0.5 else []
    projection = reduce(Projection(), [*changes[:half], *unasked, *changes[half:], *refetched(changes)])
    assert shown(projection) == newest(changes)
    assert not any(row.is_withheld for row in projection.shown.values())


@settings(max_examples=300, deadline=None)
@given(rooms(), st.randoms(use_true_random=False))
def test_when_redactions_come_first_the_newest_revision_left_is_shown(
    changes: list[ProjectionChange], rng: random.Random
) -> None:
    """A4: a late original, edit or page never installs redacted text, and nothing else is lost by it."""
    redactions = [change for change in changes if isinstance(change, Redaction)]
    others = [change for change in changes if not isinstance(change, Redaction)]
    rng.shuffle(others)
    assert after(*redactions, *others) == newest(changes)


@settings(max_examples=300, deadline=None)
@given(deliveries())
def test_no_redacted_text_is_kept_anywhere(changes: list[ProjectionChange]) -> None:
    """A4, I2: neither shown nor waiting for its original."""
    projection = reduce(Projection(), changes)
    redacted = {change.target for change in changes if isinstance(change, Redaction)}
    kept = {text for text in shown(projection).values() if text}
    kept |= {str(waiting.content["body"]) for waiting in projection.waiting.values() if waiting.content}
    assert not kept & redacted
    assert not {waiting.target for waiting in projection.waiting.values()} & redacted


@settings(max_examples=300, deadline=None)
@given(deliveries())
def test_what_changed_is_told(changes: list[ProjectionChange]) -> None:
    """Rows and waiting edits that are not named as changed are as they were, so that a store may skip them."""
    half = len(changes) // 2
    first = reduce(Projection(), changes[:half])
    second = reduce(Projection(dict(first.shown), dict(first.waiting), set(first.tombstones)), changes[half:])
    for key in first.shown.keys() | second.shown.keys():
        assert key in second.changed or first.shown.get(key) == second.shown.get(key)
    for edit_key in first.waiting.keys() | second.waiting.keys():
        assert edit_key in second.waiting_changed or first.waiting.get(edit_key) == second.waiting.get(edit_key)
    assert second.tombstones == first.tombstones | second.buried


# ---- single rules ----------------------------------------------------------------------------------------------------
def test_the_newest_revision_wins_by_time_then_by_event_id() -> None:
    """A10."""
    assert after(original(A), edit(E1, A, ts=5), edit(E2, A, ts=4)) == {A: E1}
    assert after(original(A), edit(E2, A, ts=5), edit(E1, A, ts=5)) == {A: E2}


def test_an_edit_is_newer_than_its_original_whatever_the_clocks_say() -> None:
    """A10: clients and servers choose among edits alone; a server whose clock is behind edits all the same."""
    assert after(original(A, ts=9), edit(E1, A, ts=5)) == {A: E1}
    assert after(edit(E1, A, ts=5), original(A, ts=9)) == {A: E1}


def test_edits_by_other_senders_change_nothing() -> None:
    """A10: before or after the original."""
    assert after(original(A, sender=ALICE), edit(E1, A, sender=BOB)) == {A: A}
    assert after(edit(E1, A, sender=BOB), original(A, sender=ALICE)) == {A: A}


def test_a_foreign_edit_that_waits_does_not_displace_the_senders_own() -> None:
    assert after(edit(E1, A, sender=ALICE, ts=2), edit(E2, A, sender=BOB, ts=9), original(A)) == {A: E1}


def test_an_edit_of_a_redacted_original_changes_nothing() -> None:
    """A10."""
    assert after(original(A), redaction(A), edit(E1, A)) == {}
    assert reduce(Projection(), [redaction(A), edit(E1, A)]).waiting == {}


def test_redacting_the_visible_edit_withholds_its_text() -> None:
    """A4: the earlier revision comes back by a refetch, not from memory."""
    assert after(original(A), edit(E1, A, ts=2), edit(E2, A, ts=3), redaction(E2)) == {A: None}


def test_redacting_an_edit_that_is_not_visible_changes_nothing() -> None:
    assert after(original(A), edit(E1, A, ts=2), edit(E2, A, ts=3), redaction(E1)) == {A: E2}


def test_a_withheld_text_comes_back_by_reading_all_again_or_by_a_newer_edit_alone() -> None:
    """A4: an earlier edit that happens to come may not be the last one before."""
    withheld = (original(A), edit(E2, A, ts=3), redaction(E2))
    assert after(*withheld, edit(E2, A, ts=3)) == {A: None}
    assert after(*withheld, edit(E1, A, ts=2)) == {A: None}
    assert after(*withheld, original(A)) == {A: None}
    assert after(*withheld, edit(E3, A, ts=4)) == {A: E3}
    assert after(*withheld, Refetched(ROOM, A, {"body": A}, [edit(E1, A, ts=2)])) == {A: E1}
    assert after(*withheld, Refetched(ROOM, A, {"body": A}, [edit(E2, A, ts=3)])) == {A: A}
    assert after(*withheld, redaction(A), Refetched(ROOM, A, {"body": A})) == {}


def test_an_edit_redacted_before_its_original_came_leaves_a_text_to_read_again() -> None:
    """A4: the edit before it was not kept."""
    early = (edit(E1, A, ts=2), edit(E2, A, ts=3), redaction(E2))
    assert after(*early, original(A)) == {A: None}
    assert after(*early, original(A), Refetched(ROOM, A, {"body": A}, [edit(E1, A, ts=2)])) == {A: E1}
    assert after(*early, edit(E3, A, ts=4), original(A)) == {A: E3}


def test_an_initial_has_no_text_until_its_final_fills_it() -> None:
    """A11: whatever the clock of the server says."""
    assert after(original(A, body=None)) == {A: None}
    assert after(original(A, body=None, ts=9), edit(E1, A, ts=5)) == {A: E1}


def test_an_edit_leaves_place_and_relation_alone() -> None:
    """A10: all of the content but m.relates_to is replaced."""
    first = original(A, thread="$root")
    projection = reduce(Projection(), [first, edit(E1, A, ts=5)])
    row = projection.shown[ROOM, A]
    assert (row.thread, row.origin_ts, row.relates_to) == ("$root", 1, None)
    assert row.revision == edit(E1, A, ts=5).revision


def test_a_tombstone_counts_in_its_own_room_only() -> None:
    assert after(original(A), Redaction(OTHER_ROOM, A)) == {A: A}


def test_a_message_shown_twice_keeps_its_newer_revision() -> None:
    assert after(original(B), edit(E1, B), original(B)) == {B: E1}

"""A10, A11, E1: our own events, those of hosted peers, and edits."""

from uuid import UUID

import pytest

from mindroom.core.content import DELIVERY_KEY
from mindroom.core.ids import DeliveryId, EventId
from mindroom.core.values import EventKind, Stage
from mindroom.journal.records import Edit, Original, Redaction
from tests.support.books import classify, heard
from tests.support.events import (
    ALICE,
    DELIVERY,
    ME,
    PEER,
    ROOM,
    TURN,
    edit,
    event,
    message,
    redacted,
    said,
    state,
    timeline,
)

OTHER = DeliveryId(UUID(int=99))


# ---- echoes ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("stage", [Stage.INITIAL, Stage.FINAL])
def test_our_own_delivery_is_an_echo(stage: Stage) -> None:
    """A6, E1."""
    (echo,) = classify(timeline(said("$mine", stage, sources=["$q"]))).echoes
    assert (echo.event_id, echo.room, echo.delivery, echo.stage) == ("$mine", ROOM, DELIVERY, stage)
    assert echo.marker is not None
    assert echo.marker.turn == TURN
    assert echo.marker.sources == (("$q",) if stage is Stage.FINAL else ())


def test_the_transaction_id_is_believed_before_the_marker() -> None:
    """E1."""
    mine = said("$mine", Stage.FINAL)
    mine["unsigned"]["transaction_id"] = f"initial.{OTHER}"
    (echo,) = classify(timeline(mine)).echoes
    assert (echo.delivery, echo.stage) == (OTHER, Stage.INITIAL)


@pytest.mark.parametrize("transaction_id", [None, "", "m123.4", "final.no-uuid", 7, "bogus.x.y"])
def test_without_a_transaction_id_of_ours_the_marker_tells(transaction_id: object) -> None:
    mine = said("$mine", Stage.FINAL, with_txn=False)
    mine["unsigned"] = {"transaction_id": transaction_id}
    (echo,) = classify(timeline(mine)).echoes
    assert (echo.delivery, echo.stage) == (DELIVERY, Stage.FINAL)


def test_a_redacted_final_of_ours_is_still_an_echo() -> None:
    """A6, E1: only its transaction id is left, and its text is buried."""
    admission = classify(timeline(redacted("$mine", sender=ME, transaction_id=f"final.{DELIVERY}")))
    (echo,) = admission.echoes
    assert (echo.delivery, echo.stage, echo.marker) == (DELIVERY, Stage.FINAL, None)
    assert admission.projection == [Redaction(ROOM, EventId("$mine"))]


def test_a_marker_in_somebody_elses_event_is_no_echo() -> None:
    for sender in (ALICE, PEER):
        assert not classify(timeline(said("$theirs", Stage.FINAL, sender=sender))).echoes


def test_what_we_said_by_other_means_is_no_echo() -> None:
    admission = classify(timeline(message("$mine", sender=ME)))
    assert not admission.echoes
    assert heard(admission, "$mine").source is None


# ---- hosted principals -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("sender", [ME, PEER])
def test_progress_of_a_hosted_principal_leaves_no_trace(sender: str) -> None:
    """A11: no receipt, no row, no projection; our own is only compared with its FINAL (E11)."""
    admission = classify(timeline(said("$p", Stage.PROGRESS, sender=sender, edits="$i")))
    assert [seen.revision.event_id for seen in admission.progress] == (["$p"] if sender == ME else [])
    admission.progress.clear()
    assert admission.is_empty
    assert not admission.projection


def test_progress_that_a_stranger_claims_is_an_ordinary_edit() -> None:
    admission = classify(timeline(said("$p", Stage.PROGRESS, sender=ALICE, edits="$i")))
    assert heard(admission, "$p").kind is EventKind.EDIT


@pytest.mark.parametrize("sender", [ME, PEER])
def test_an_initial_is_projected_without_its_body_and_a_final_fills_it(sender: str) -> None:
    """A11."""
    initial, final = classify(
        timeline(
            said("$i", Stage.INITIAL, sender=sender, body="⋯"),
            said("$f", Stage.FINAL, sender=sender, edits="$i", body="the answer"),
        )
    ).projection
    assert isinstance(initial, Original)
    assert (initial.event_id, initial.content, initial.turn) == ("$i", None, TURN)
    assert isinstance(final, Edit)
    assert (final.target, final.content["body"]) == ("$i", "the answer")


def test_a_final_that_is_a_message_of_its_own_is_projected_with_its_text() -> None:
    (change,) = classify(timeline(said("$f", Stage.FINAL, body="the answer"))).projection
    assert isinstance(change, Original)
    assert change.content is not None
    assert (change.content["body"], change.turn) == ("the answer", TURN)


def test_nothing_that_a_hosted_principal_says_is_owed_an_outcome() -> None:
    admission = classify(timeline(message("$a", sender=PEER), said("$f", Stage.FINAL, sender=ME)))
    assert all(h.source is None and h.outcome is None for h in admission.heard)


@pytest.mark.parametrize(
    "spoilt",
    [
        {"generation": float("inf")},
        {"generation": 10**40},
        {"generation": -1},
        {"generation": "one"},
        {"delivery": "x"},
        {"delivery": 7},
        {"stage": "later"},
        {"turn": None},
        {"sources": 3},
    ],
)
def test_a_marker_of_ours_that_cannot_be_stored_is_none(spoilt: dict[str, object]) -> None:
    """A7: it would block the whole response."""
    mine = said("$mine", Stage.FINAL, with_txn=False)
    mine["content"][DELIVERY_KEY] |= spoilt
    admission = classify(timeline(mine))
    assert not admission.echoes
    assert heard(admission, "$mine").kind is EventKind.MESSAGE


def test_sources_that_are_nobodys_id_are_left_out() -> None:
    mine = said("$mine", Stage.FINAL, sources=["$a", "bad\x00id", "\ud800", "x" * 300, "$b"])
    (echo,) = classify(timeline(mine)).echoes
    assert echo.marker is not None
    assert echo.marker.sources == ("$a", "$b")


# ---- edits -----------------------------------------------------------------------------------------------------------
def test_an_edit_replaces_the_text_and_starts_no_work() -> None:
    """A10."""
    admission = classify(timeline(edit("$e", "$a", "better")))
    (change,) = admission.projection
    assert isinstance(change, Edit)
    assert (change.target, change.sender, change.content["body"]) == ("$a", ALICE, "better")
    assert (change.revision.timestamp_ms, change.revision.event_id) == (2000, "$e")
    assert heard(admission, "$e").source is None


@pytest.mark.parametrize("new_content", [None, "text", [], 3])
def test_an_edit_without_new_content_changes_nothing(new_content: object) -> None:
    """A10."""
    spoilt = edit("$e", "$a", "x")
    spoilt["content"]["m.new_content"] = new_content
    admission = classify(timeline(spoilt))
    assert not admission.projection
    assert heard(admission, "$e").kind is EventKind.EDIT


@pytest.mark.parametrize("type_", ["m.sticker", "org.example.note", "m.room.name"])
def test_an_edit_of_another_type_than_messages_changes_nothing(type_: str) -> None:
    """A10: sender and type equal the original's."""
    assert not classify(timeline(edit("$e", "$a", "x") | {"type": type_})).projection


def test_a_state_event_is_no_edit() -> None:
    """A10."""
    spoilt = state("$e", "m.room.message", edit("$e", "$a", "x")["content"])
    admission = classify(timeline(spoilt))
    assert not admission.projection
    assert heard(admission, "$e").kind is EventKind.ROOM_LIFECYCLE


def test_only_messages_are_projected() -> None:
    reaction = event("$r", type_="m.reaction", content={"m.relates_to": {"rel_type": "m.annotation", "event_id": "$a"}})
    other = event("$o", type_="org.example.thing", content={"body": "x"})
    assert not classify(timeline(reaction, other, state("$n", "m.room.name", {"name": "x"}))).projection

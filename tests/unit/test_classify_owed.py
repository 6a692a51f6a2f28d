"""I1, A4, A7: which events are owed an outcome, and which admission settles by itself."""

import pytest

from mindroom.core.ids import EventId
from mindroom.core.values import EventKind
from mindroom.journal.records import Redaction
from tests.support.books import classify, heard, joined
from tests.support.events import (
    ALICE,
    BOB,
    PEER,
    ROOM,
    STRANGER,
    event,
    joined_room,
    message,
    redacted,
    redaction,
    response,
    state,
    timeline,
)

SECRET = {"algorithm": "m.megolm.v1.aes-sha2", "ciphertext": "x"}


def test_a_message_of_somebody_authorized_is_owed_with_its_exact_event() -> None:
    source = message("$a", thread="$root")
    found = heard(classify(timeline(source)), "$a")
    assert (found.source, found.outcome, found.thread, found.kind) == (source, None, "$root", EventKind.MESSAGE)
    assert found.base is None


def test_a_stranger_is_settled_at_admission() -> None:
    """I1: deny by default."""
    found = heard(classify(timeline(message("$a", sender=STRANGER))), "$a")
    assert (found.source, found.outcome) == (None, "ignored.unauthorized")


def test_media_is_work() -> None:
    image = event("$a", content={"msgtype": "m.image", "body": "cat.png", "url": "mxc://x/y"})
    found = heard(classify(timeline(image)), "$a")
    assert (found.kind, found.source) == (EventKind.MEDIA, image)


@pytest.mark.parametrize(
    "other",
    [
        event("$a", type_="m.reaction", content={"m.relates_to": {"rel_type": "m.annotation", "event_id": "$q"}}),
        state("$a", "m.room.topic", {"topic": "x"}),
        redaction("$a", "$q"),
    ],
)
def test_reactions_state_and_redactions_are_context(other: dict[str, object]) -> None:
    found = heard(classify(timeline(other)), "$a")
    assert (found.source, found.outcome) == (None, None)


def test_an_event_type_nobody_reads_is_settled_as_unsupported() -> None:
    found = heard(classify(timeline(event("$a", type_="org.example.poll", content={"q": 1}))), "$a")
    assert (found.source, found.outcome) == (None, "ignored.unsupported")


# ---- encrypted -------------------------------------------------------------------------------------------------------
def test_an_encrypted_message_of_somebody_authorized_is_settled_and_the_room_is_told() -> None:
    """A7, L."""
    admission = classify(timeline(event("$a", type_="m.room.encrypted", content=SECRET)), joined(epoch=4))
    found = heard(admission, "$a")
    assert (found.kind, found.source, found.outcome) == (EventKind.ENCRYPTED, None, "ignored.encrypted")
    assert admission.encrypted_asks == {ROOM: 4}


@pytest.mark.parametrize(("sender", "outcome"), [(STRANGER, "ignored.unauthorized"), (PEER, None)])
def test_nobody_else_makes_us_speak_in_an_encrypted_room(sender: str, outcome: str | None) -> None:
    admission = classify(timeline(event("$a", sender=sender, type_="m.room.encrypted", content=SECRET)))
    assert heard(admission, "$a").outcome == outcome
    assert not admission.encrypted_asks


def test_a_redacted_encrypted_message_asks_nothing() -> None:
    gone = redacted("$a") | {"type": "m.room.encrypted"}
    admission = classify(timeline(gone))
    assert heard(admission, "$a").outcome == "redacted"
    assert not admission.encrypted_asks


# ---- redactions ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("content", "top", "target"),
    [
        ({"redacts": "$new"}, None, "$new"),
        ({"redacts": "$new"}, "$old", "$new"),
        ({}, "$old", "$old"),
        ({"redacts": 7}, "$old", "$old"),
        ({"redacts": ""}, "$old", "$old"),
    ],
)
def test_the_target_of_a_redaction_is_in_the_content_else_at_the_top(
    content: dict[str, object], top: str | None, target: str
) -> None:
    """A4: rooms of version 11 moved it."""
    raw = event("$r", type_="m.room.redaction", content=content)
    if top is not None:
        raw["redacts"] = top
    assert classify(timeline(raw)).projection == [Redaction(ROOM, EventId(target))]


@pytest.mark.parametrize("content", [{}, {"redacts": None}, {"redacts": ["$a"]}, {"redacts": "x" * 300}])
def test_a_redaction_without_a_target_has_a_receipt_and_no_effect(content: dict[str, object]) -> None:
    admission = classify(timeline(event("$r", type_="m.room.redaction", content=content)))
    assert not admission.projection
    assert heard(admission, "$r").kind is EventKind.REDACTION


def test_an_event_that_arrives_redacted_is_a_tombstone_and_settled() -> None:
    """A4."""
    admission = classify(timeline(redacted("$a")))
    found = heard(admission, "$a")
    assert admission.projection == [Redaction(ROOM, EventId("$a"))]
    assert (found.kind, found.source, found.outcome) == (EventKind.MESSAGE, None, "redacted")


@pytest.mark.parametrize("missing", ["content", "origin_server_ts", "type"])
def test_a_stripped_event_is_never_unreadable(missing: str) -> None:
    """A4: whatever else the server took away."""
    stripped = redacted("$a")
    del stripped[missing]
    admission = classify(timeline(stripped))
    assert admission.projection == [Redaction(ROOM, EventId("$a"))]
    assert heard(admission, "$a").kind is EventKind.MESSAGE


# ---- malformed -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "spoilt",
    [
        {"content": None},
        {"content": "text"},
        {"content": []},
        {"sender": 7},
        {"sender": ""},
        {"sender": "@" + "x" * 300},
        {"sender": "@al\x00ice:x"},
        {"type": None},
        {"type": ["m.room.message"]},
        {"origin_server_ts": "yesterday"},
        {"origin_server_ts": 1.5},
        {"origin_server_ts": True},
        {"origin_server_ts": 2**60},
    ],
)
def test_a_malformed_event_is_unreadable_and_the_rest_is_admitted(spoilt: dict[str, object]) -> None:
    """A7."""
    admission = classify(timeline(message("$a") | spoilt, message("$b")))
    found = heard(admission, "$a")
    assert (found.kind, found.source, found.outcome) == (EventKind.UNREADABLE, None, None)
    assert heard(admission, "$b").source is not None


@pytest.mark.parametrize("where", ["content", "unsigned", "prev"])
def test_an_event_nested_too_deeply_anywhere_is_unreadable(where: str) -> None:
    """A7: the whole event is stored, so every part of it must be writable."""
    deep: object = {}
    for _ in range(500):
        deep = {"x": deep}
    spoilt = message("$a")
    spoilt[where] = {**spoilt.get(where, {}), "deep": deep}
    admission = classify(timeline(spoilt, message("$b")))
    assert heard(admission, "$a").kind is EventKind.UNREADABLE
    assert heard(admission, "$b").source is not None


@pytest.mark.parametrize("event_id", [None, 7, "", "x" * 256, "$\x00", "$\ud800", ["$a"]])
def test_an_event_without_an_id_is_dropped_and_counted(event_id: object) -> None:
    """A7: nothing can receipt it."""
    admission = classify(timeline(message("$a") | {"event_id": event_id}, message("$b", sender=BOB)))
    assert [h.event_id for h in admission.heard] == ["$b"]
    assert admission.dropped == 1


@pytest.mark.parametrize("junk", [None, 7, "x", [], True])
def test_what_is_no_event_at_all_is_dropped_and_counted(junk: object) -> None:
    admission = classify(timeline(junk, message("$a", sender=ALICE)))
    assert [h.event_id for h in admission.heard] == ["$a"]
    assert admission.dropped == 1


def test_a_room_without_a_usable_id_is_skipped() -> None:
    rooms = {"": joined_room([message("$a")]), "!\x00": joined_room([message("$b")]), ROOM: joined_room()}
    assert not classify(response(join=rooms)).heard

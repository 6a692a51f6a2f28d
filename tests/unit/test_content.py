"""Message content that we write and recognise: the delivery marker, relations, ids, edits (E1, E8, R41)."""

from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindroom.core.content import (
    DELIVERY_KEY,
    MAX_ID_BYTES,
    MAX_SOURCES,
    RUN_KEY,
    DeliveryMarker,
    as_edit,
    identifier,
    is_fallback_reply,
    mentioned_users,
    message_content,
    read_marker,
    relates_to,
    replaced_event,
    replied_event,
    thread_root,
)
from mindroom.core.ids import DeliveryId, EventId, RoomId, TurnId, UserId
from mindroom.core.values import MessageTarget, Stage

ALICE, BOB = UserId("@alice:x"), UserId("@bob:x")
ROOM = RoomId("!room:x")
MARKER = DeliveryMarker(DeliveryId(UUID(int=1)), TurnId(UUID(int=2)), 3, Stage.FINAL, (EventId("$q"),))
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_infinity=False, allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def content(marker: DeliveryMarker = MARKER, **changes: Any) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "msgtype": "m.text",
        "body": "hello",
        "html": "<p>hello</p>",
        "mentions": [ALICE],
        "marker": marker,
        "target": MessageTarget(ROOM, EventId("$root"), EventId("$last")),
    }
    return message_content(**(parts | changes))


# ---- marker ----------------------------------------------------------------------------------------------------------
@given(
    st.uuids(),
    st.none() | st.uuids(),
    st.integers(0, 2**31 - 1),
    st.sampled_from(Stage),
    st.lists(st.from_regex(r"\$[a-z]{1,8}", fullmatch=True), max_size=MAX_SOURCES),
)
def test_a_marker_is_read_as_it_was_written(
    delivery: UUID, turn: UUID | None, generation: int, stage: Stage, sources: list[str]
) -> None:
    """Only a FINAL names its sources (A6)."""
    kept = tuple(EventId(s) for s in sources) if stage is Stage.FINAL else ()
    marker = DeliveryMarker(DeliveryId(delivery), TurnId(turn) if turn else None, generation, stage, kept)
    assert read_marker({DELIVERY_KEY: marker.to_json()}) == marker
    other = DeliveryMarker(marker.delivery, marker.turn, generation, Stage.INITIAL, (EventId("$q"),))
    assert "sources" not in other.to_json()


def test_a_marker_names_at_most_a_batch_of_sources() -> None:
    raw = MARKER.to_json() | {"sources": [f"${n}" for n in range(MAX_SOURCES + 50)]}
    found = read_marker({DELIVERY_KEY: raw})
    assert found is not None
    assert len(found.sources) == MAX_SOURCES


@pytest.mark.parametrize(
    "spoilt",
    [
        {"delivery": None},
        {"delivery": "not a uuid"},
        {"delivery": ["x"]},
        {"turn": 7},
        {"turn": None},
        {"generation": "many"},
        {"generation": None},
        {"generation": []},
        {"stage": "later"},
        {"stage": {}},
        {"sources": 7},
        {"sources": None},
    ],
)
def test_a_malformed_marker_is_no_marker(spoilt: dict[str, Any]) -> None:
    assert read_marker({DELIVERY_KEY: MARKER.to_json() | spoilt}) is None


@pytest.mark.parametrize("missing", ["delivery", "generation", "stage"])
def test_a_marker_without_a_required_part_is_no_marker(missing: str) -> None:
    raw = MARKER.to_json()
    del raw[missing]
    assert read_marker({DELIVERY_KEY: raw}) is None


@pytest.mark.parametrize("raw", [None, 7, "x", [], [1], True])
def test_what_is_no_object_is_no_marker(raw: object) -> None:
    assert read_marker({DELIVERY_KEY: raw}) is None
    assert read_marker({}) is None


@given(st.dictionaries(st.sampled_from(["delivery", "turn", "generation", "stage", "sources"]), anything))
def test_reading_a_marker_never_raises(raw: dict[str, Any]) -> None:
    """R41."""
    read_marker({DELIVERY_KEY: raw})


# ---- ids and relations -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("$abc", "$abc"),
        ("x" * MAX_ID_BYTES, "x" * MAX_ID_BYTES),
        ("x" * (MAX_ID_BYTES + 1), ""),
        ("é" * 127, "é" * 127),
        ("é" * 128, ""),
        ("$\x00", ""),
        ("$\ud800", ""),
        ("a\nb", ""),
        ("", ""),
        (None, ""),
        (7, ""),
        (["$a"], ""),
    ],
)
def test_an_id_is_a_printable_text_of_at_most_255_bytes(value: object, found: str) -> None:
    """R41: longer ones are nobody's id and would not fit an index."""
    assert identifier(value) == found


@given(st.text())
def test_what_passes_as_an_id_can_be_stored(value: str) -> None:
    found = identifier(value)
    assert found in (value, "")
    assert len(found.encode()) <= MAX_ID_BYTES
    assert "\x00" not in found


@given(
    st.dictionaries(
        st.sampled_from(["m.relates_to", "m.mentions", "body"]),
        anything
        | st.dictionaries(
            st.sampled_from(["rel_type", "event_id", "m.in_reply_to", "is_falling_back", "user_ids"]),
            anything | st.sampled_from(["m.thread", "m.replace", "$a"]),
        ),
    )
)
def test_reading_relations_and_mentions_never_raises(raw: dict[str, Any]) -> None:
    """R41."""
    for found in (replaced_event(raw), thread_root(raw), replied_event(raw)):
        assert found is None or identifier(found) == found != ""
    assert is_fallback_reply(raw) in (True, False)
    mentioned_users(raw)


def test_relations_are_read_by_their_type() -> None:
    thread = {"m.relates_to": {"rel_type": "m.thread", "event_id": "$a", "m.in_reply_to": {"event_id": "$b"}}}
    replace = {"m.relates_to": {"rel_type": "m.replace", "event_id": "$a"}}
    assert (thread_root(thread), replaced_event(thread), replied_event(thread)) == ("$a", None, "$b")
    assert (thread_root(replace), replaced_event(replace), replied_event(replace)) == (None, "$a", None)
    assert not is_fallback_reply(thread)


def test_an_empty_mention_field_decides_and_an_absent_one_does_not() -> None:
    assert mentioned_users({}) is None
    assert mentioned_users({"m.mentions": []}) is None
    assert mentioned_users({"m.mentions": {}}) == frozenset()
    assert mentioned_users({"m.mentions": {"user_ids": [ALICE, 7, BOB]}}) == frozenset({ALICE, BOB})


# ---- writing ---------------------------------------------------------------------------------------------------------
def test_a_message_of_ours_carries_marker_mentions_and_its_thread() -> None:
    made = content(run={"model": "m"})
    assert read_marker(made) == MARKER
    assert made["m.mentions"] == {"user_ids": [ALICE]}
    assert made[RUN_KEY] == {"model": "m"}
    assert (thread_root(made), replied_event(made), is_fallback_reply(made)) == ("$root", "$last", True)
    assert (made["format"], made["formatted_body"]) == ("org.matrix.custom.html", "<p>hello</p>")


def test_a_message_without_mentions_says_so() -> None:
    """E8: an absent field would let clients guess."""
    assert content(mentions=[])["m.mentions"] == {}


def test_a_plain_message_has_neither_format_nor_run() -> None:
    assert {"format", "formatted_body", RUN_KEY}.isdisjoint(content(html=None))


def test_a_thread_without_a_last_message_falls_back_to_its_root() -> None:
    assert relates_to(MessageTarget(ROOM, EventId("$root"), None)) == {
        "rel_type": "m.thread",
        "event_id": "$root",
        "is_falling_back": True,
        "m.in_reply_to": {"event_id": "$root"},
    }
    assert relates_to(MessageTarget(ROOM, None, EventId("$last"))) is None


def test_an_edit_carries_marker_and_mentions_at_the_top_and_in_the_new_content() -> None:
    """E8: at the top only those newly mentioned, inside the full list."""
    made = content(mentions=[ALICE, BOB])
    edit = as_edit(made, EventId("$placeholder"), newly_mentioned=[BOB])
    inner = edit["m.new_content"]
    assert replaced_event(edit) == "$placeholder"
    assert read_marker(edit) == read_marker(inner) == MARKER
    assert (edit["m.mentions"], inner["m.mentions"]) == ({"user_ids": [BOB]}, {"user_ids": [ALICE, BOB]})
    assert (edit["body"], inner["body"]) == ("* hello", "hello")
    assert inner["formatted_body"] == "<p>hello</p>"
    assert {"format", "formatted_body"}.isdisjoint(edit)
    assert "m.relates_to" not in inner
    assert as_edit(made, EventId("$p"), newly_mentioned=[])["m.mentions"] == {}


def test_making_an_edit_leaves_the_original_content_alone() -> None:
    made = content(marker=DeliveryMarker(DeliveryId(uuid4()), None, 1, Stage.PROGRESS))
    before = dict(made)
    as_edit(made, EventId("$p"), newly_mentioned=[ALICE])
    assert made == before

"""A7, R41: arbitrary JSON in every place of a response or a page raises nothing and stores only what can be stored."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mindroom.core.ids import Epoch, SyncToken
from mindroom.core.values import Membership, Stage
from mindroom.journal.classify import classify_sync
from mindroom.journal.gap_page import classify_gap_page
from mindroom.journal.records import Admission, Gap
from mindroom.journal.store import stored
from tests.support.books import SINCE, joined, standing
from tests.support.events import (
    ALICE,
    DELIVERY,
    HEARER,
    ME,
    OTHER_ROOM,
    PEER,
    ROOM,
    STRANGER,
    Event,
    edit,
    event,
    invited_room,
    joined_room,
    left_room,
    member,
    message,
    redacted,
    redaction,
    response,
    said,
    state,
)

texts = st.text(st.characters(codec=None), max_size=12)
scalars = st.none() | st.booleans() | st.integers() | st.sampled_from([2**31, 2**63, 10**30]) | st.floats() | texts
junk = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)
EVENTS: list[Event] = [
    message("$a", thread="$root", membership="join"),
    message("$b", sender=STRANGER),
    edit("$c", "$a", "better"),
    redaction("$d", "$a") | {"redacts": "$a"},
    redacted("$e", sender=ME, transaction_id=f"final.{DELIVERY}"),
    said("$f", Stage.INITIAL),
    said("$g", Stage.PROGRESS, edits="$f", sender=PEER),
    said("$h", Stage.FINAL, edits="$f", sources=["$a", "$b"]),
    member("$i", ME, "invite", sender=ALICE, before="leave", is_direct=True),
    member("$j", ME, "join", before="invite"),
    member("$k", ME, "leave", before="join"),
    state("$l", "m.room.encryption", {"algorithm": "x"}),
    event("$m", type_="m.room.encrypted", content={"ciphertext": "x"}),
    event("$n", content={"msgtype": "m.image", "url": "mxc://x/y"}),
]


@st.composite
def spoilt(draw: st.DrawFn, value: Any) -> Any:
    """`value` with any of its parts missing or replaced by anything."""
    if draw(st.integers(0, 9)) == 0:
        return draw(junk)
    if isinstance(value, dict):
        return {key: draw(spoilt(part)) for key, part in value.items() if draw(st.integers(0, 19))}
    if isinstance(value, list):
        return [draw(spoilt(part)) for part in value]
    return value


@st.composite
def pages(draw: st.DrawFn) -> list[Any]:
    """A few events, each spoilt."""
    chosen = draw(st.lists(st.integers(0, len(EVENTS) - 1), max_size=5))
    return [draw(spoilt(EVENTS[index])) for index in chosen]


@st.composite
def responses(draw: st.DrawFn) -> dict[str, Any]:
    """A response with one or two rooms in each section, every part spoilt."""
    raw = response(
        join={ROOM: joined_room(limited=draw(st.booleans()), summary={"m.joined_member_count": 2})},
        invite={draw(st.sampled_from([ROOM, OTHER_ROOM])): invited_room()},
        leave={draw(st.sampled_from([ROOM, OTHER_ROOM])): left_room()},
    )
    for section in raw["rooms"].values():
        for room in section.values():
            for block in room.values():
                if isinstance(block, dict) and "events" in block:
                    block["events"] = draw(pages())
    found = draw(spoilt(raw))
    return found if isinstance(found, dict) else {"rooms": found}


def assert_storable(admission: Admission) -> None:
    """Every text and number fits its column, so that no event can make the commit fail for ever."""
    for heard in admission.heard:
        for text in (heard.event_id, heard.room, heard.thread, heard.sender):
            assert_id(text)
        assert heard.event_id
        assert abs(heard.origin_ts) < 2**63
        json.loads(stored(heard.source) or "{}").items()
    for change in admission.projection:
        for content in (getattr(change, "content", None), getattr(change, "relates_to", None)):
            assert "\\u0000" not in (stored(content) or "")
    for echo in admission.echoes:
        assert echo.marker is None or 0 <= echo.marker.generation < 2**31
        for source in echo.marker.sources if echo.marker else ():
            assert_id(source)
    for row in admission.state.values():
        assert_id(row.state_key)
        stored(row.content)
    for membership in admission.memberships.values():
        assert_id(membership.inviter or "")
        assert all(n is None or 0 <= n < 2**31 for n in (membership.joined_count, membership.invited_count))


def assert_id(text: str) -> None:
    assert len(text.encode()) <= 255
    assert "\x00" not in text


@settings(max_examples=150, deadline=None)
@given(responses(), st.sampled_from([None, *Membership]), st.sampled_from([None, SINCE]))
def test_no_response_raises_and_all_of_it_can_be_stored(
    raw: dict[str, Any], membership: Membership | None, since: Any
) -> None:
    book = joined() if membership is None else standing(membership)
    admission = classify_sync(raw, hearer=HEARER, book=book, since=since)
    assert_storable(admission)
    book.apply(admission)


@settings(max_examples=150, deadline=None)
@given(pages())
def test_no_page_of_a_gap_raises_and_all_of_it_can_be_stored(page: list[Any]) -> None:
    gap = Gap(ROOM, SyncToken("s"), SyncToken("p"), floor=1, epoch=Epoch(1), opened_ms=0)
    admission = classify_gap_page(page, hearer=HEARER, gap=gap, known={}).admission
    assert_storable(admission)
    assert not admission.memberships
    assert not admission.state

"""The stored projection: equal to the naive model through any batches, and read back for prompts (A4, A10, A11, K3)."""

import random
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from mindroom.core.ids import Epoch, EventId, RoomId, TurnId
from mindroom.core.values import Conversation, EventClass
from mindroom.journal.projection import CONVERSATION_LIMIT
from mindroom.journal.records import Edit, Heard, Original, ProjectionChange, Redaction, Refetched
from mindroom.journal.reduce import Withdrawn
from tests.support.events import ALICE, BOB, OTHER_ROOM, ROOM
from tests.support.ledgers import Ledgers, open_ledgers, source
from tests.support.reference import EDITS, ORIGINALS, SENDERS, edit, original, redaction, visible

A, B, E1, E2 = (EventId(f"${name}") for name in ("a", "b", "e1", "e2"))


@pytest.fixture
async def ledgers(database_dsn: str) -> AsyncIterator[Ledgers]:
    async with open_ledgers(database_dsn) as opened:
        yield opened


def heard(change: Original | Edit) -> Heard:
    event = change.event_id if isinstance(change, Original) else change.revision.event_id
    return source(event, thread=change.thread if isinstance(change, Original) else "")


async def show(ledgers: Ledgers, *changes: ProjectionChange) -> Withdrawn | None:
    """One admission of a batch, in its order; returns what its redactions took."""
    batch = [heard(c) for c in changes if isinstance(c, Original | Edit)]
    async with ledgers.lease.transaction("admit") as tx:
        admitted = await ledgers.journal.hear(tx, batch)
        return await ledgers.projection.apply(tx, changes, keys=admitted.keys)


async def texts(ledgers: Ledgers) -> dict[EventId, str | None]:
    rows = await ledgers.database.fetch("SELECT event_id, content->>'body' AS body FROM visible_messages")
    return {EventId(r["event_id"]): r["body"] for r in rows}


async def conversation(ledgers: Ledgers, thread: str | None = None, *, room: RoomId = ROOM) -> list[str]:
    found = await ledgers.projection.conversation(Conversation(room, EventId(thread) if thread else None))
    return [message.event_id for message in found]


# ---- writing ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(12))
async def test_random_rooms_in_random_batches_show_what_the_model_allows(ledgers: Ledgers, seed: int) -> None:
    """K3: every batch reads only the rows it touches, and that is enough."""
    rng = random.Random(seed)
    changes: list[ProjectionChange] = [
        original(o, sender=rng.choice(SENDERS), ts=rng.randint(1, 4), body=rng.choice(["", "", None]))
        for o in rng.sample(ORIGINALS, 2)
    ]
    for event in EDITS:
        changes.append(edit(event, rng.choice(ORIGINALS), sender=rng.choice(SENDERS), ts=rng.randint(1, 4)))
    changes += [redaction(t) for t in rng.sample([*ORIGINALS, *EDITS], rng.randint(0, 2))]
    shown = [*changes, *rng.sample(changes, 3)]
    rng.shuffle(shown)
    while shown:
        size = rng.randint(1, 3)
        await show(ledgers, *shown[:size])
        shown = shown[size:]
    found, allowed = await texts(ledgers), visible(changes)
    assert found.keys() == allowed.keys()
    for event, text in found.items():
        assert text in allowed[event].texts
    redacted = {c.target for c in changes if isinstance(c, Redaction)}
    waiting = await ledgers.database.fetch("SELECT content->>'body' AS body FROM unresolved_edits")
    assert not {r["body"] for r in waiting} & redacted


async def test_an_edit_before_its_original_waits_and_is_gone_afterwards(ledgers: Ledgers) -> None:
    await show(ledgers, edit(E1, A, sender=ALICE), edit(E2, A, sender=BOB))
    assert await ledgers.count("unresolved_edits") == 2
    await show(ledgers, original(A))
    assert await texts(ledgers) == {A: E1}
    assert await ledgers.count("unresolved_edits") == 0


async def test_a_waiting_edit_that_is_redacted_never_reaches_its_original(ledgers: Ledgers) -> None:
    """A4, I2: it is found by its own id, not only by its original's."""
    await show(ledgers, edit(E1, A))
    await show(ledgers, redaction(E1))
    assert (await ledgers.database.fetch("SELECT content FROM unresolved_edits"))[0]["content"] is None
    await show(ledgers, original(A))
    assert await texts(ledgers) == {A: None}
    assert await ledgers.projection.withheld(limit=9) == [(ROOM, A)]
    await show(ledgers, Refetched(ROOM, A, {"body": A}))
    assert await texts(ledgers) == {A: A}
    assert await ledgers.projection.withheld(limit=9) == []


async def test_redacting_the_visible_edit_withholds_its_text_in_a_later_batch(ledgers: Ledgers) -> None:
    """A4."""
    await show(ledgers, original(A), edit(E1, A))
    await show(ledgers, redaction(E1))
    assert await texts(ledgers) == {A: None}


async def test_a_redacted_message_is_gone_with_its_edits_and_stays_gone(ledgers: Ledgers) -> None:
    """A4."""
    await show(ledgers, original(A), edit(E1, A))
    withdrawn = await show(ledgers, redaction(A))
    assert withdrawn is not None
    assert (withdrawn.buried, withdrawn.unedited) == ([(ROOM, A)], [])
    await show(ledgers, original(A), edit(E2, A))
    assert await texts(ledgers) == {}
    assert await ledgers.projection.message(ROOM, A) is None


async def test_redactions_are_told_with_what_they_took(ledgers: Ledgers) -> None:
    """I2: their text must go from elsewhere too; one that is told again may find what was not known before."""
    assert await show(ledgers, original(A, thread="$root"), edit(E1, A), original(B)) is None
    withdrawn = await show(ledgers, redaction(E1), redaction(B), redaction(B))
    assert withdrawn is not None
    assert withdrawn.buried == [(ROOM, B), (ROOM, E1)]
    assert withdrawn.unedited == [(ROOM, A)]
    assert Conversation(ROOM, EventId("$root")) in withdrawn.conversations
    assert {c.thread for c in withdrawn.conversations} == {None, "$root", A, B}
    again = await show(ledgers, redaction(B))
    assert again is not None
    assert (again.buried, again.conversations) == ([(ROOM, B)], frozenset())


async def test_a_known_event_shown_again_changes_nothing(ledgers: Ledgers) -> None:
    """A12: changes of events without a fresh receipt are not applied."""
    await show(ledgers, original(A), original(B))
    await show(ledgers, original(A, body="spoofed"), original(B, sender=BOB))
    assert await texts(ledgers) == {A: A, B: B}


async def test_an_initial_stands_without_text_until_its_final(ledgers: Ledgers) -> None:
    """A11."""
    await show(ledgers, original(A, body=None))
    assert await texts(ledgers) == {A: None}
    await show(ledgers, edit(E1, A))
    (message,) = await ledgers.projection.conversation(Conversation(ROOM, None))
    assert (message.event_id, message.content) == (A, {"body": E1})


async def test_a_revision_keeps_the_place_of_its_message(ledgers: Ledgers) -> None:
    await show(ledgers, original(A), original(B))
    await show(ledgers, edit(E1, A, ts=9))
    assert await conversation(ledgers) == [A, B]


async def test_another_room_of_the_same_batch_is_not_touched(ledgers: Ledgers) -> None:
    await show(ledgers, original(A), original(B))
    await show(ledgers, Redaction(OTHER_ROOM, A), redaction(B))
    assert await texts(ledgers) == {A: A}


async def test_any_text_can_be_stored(ledgers: Ledgers) -> None:
    """A7: NUL and lone surrogates, in edits that wait too."""
    await show(ledgers, original(A, body="nul \x00 half \ud800"))
    late = edit(E1, B)
    await show(ledgers, Edit(ROOM, B, ALICE, Epoch(1), {"body": "\x00\udfff"}, late.revision))
    assert await texts(ledgers) == {A: "nul \ufffd half \ufffd"}


async def test_leaving_a_room_forgets_its_messages_but_not_its_tombstones(ledgers: Ledgers) -> None:
    """F2, A4."""
    await show(ledgers, original(A), edit(E1, B), redaction(E2))
    async with ledgers.lease.transaction("admit") as tx:
        await ledgers.journal.depart(tx, {ROOM: Epoch(1)})
    assert await texts(ledgers) == {}
    assert await ledgers.count("unresolved_edits") == 0
    assert await ledgers.count("redaction_tombstones") == 1


# ---- reading ---------------------------------------------------------------------------------------------------------
async def test_a_thread_is_its_root_and_its_members_in_order(ledgers: Ledgers) -> None:
    root = EventId("$root")
    await show(ledgers, original(root), original(A, thread=root), original(EventId("$main")), original(B, thread=root))
    assert await conversation(ledgers, root) == [root, A, B]
    assert await conversation(ledgers) == [root, "$main"]
    assert await conversation(ledgers, room=OTHER_ROOM) == []


async def test_recovered_messages_stand_where_they_were_said(ledgers: Ledgers) -> None:
    """Prompts are ordered by order_key, not by arrival."""
    async with ledgers.lease.transaction("admit") as tx:
        floor = await ledgers.recovery.draw_floor(tx)
    await show(ledgers, original(B))
    batch = source(A)
    batch.event_class, batch.base, batch.page, batch.index = EventClass.RECOVERED, floor, 2**31, 3
    async with ledgers.lease.transaction("gap_page") as tx:
        admitted = await ledgers.journal.hear(tx, [batch])
        await ledgers.projection.apply(tx, [original(A)], keys=admitted.keys)
    assert await conversation(ledgers) == [A, B]


async def test_only_the_newest_messages_of_a_long_conversation_are_read(ledgers: Ledgers) -> None:
    names = [EventId(f"${n}") for n in range(CONVERSATION_LIMIT + 5)]
    await show(ledgers, *(original(name) for name in names))
    assert await conversation(ledgers) == names[5:]


async def test_participants_are_told_the_latest_speaker_first(ledgers: Ledgers) -> None:
    root = EventId("$root")
    await show(
        ledgers,
        original(root, sender=BOB),
        original(A, sender=ALICE, thread=root),
        original(B, sender=BOB, thread=root),
    )
    assert await ledgers.projection.participants(Conversation(ROOM, root)) == [BOB, ALICE]
    assert await ledgers.projection.participants(Conversation(ROOM, EventId("$other"))) == []


async def test_a_message_is_read_whole(ledgers: Ledgers) -> None:
    turn = TurnId(UUID(int=3))
    relation = {"rel_type": "m.thread", "event_id": "$root"}
    first = original(A, thread="$root", ts=77)
    await show(
        ledgers,
        Original(ROOM, A, first.thread, ALICE, Epoch(2), {"body": "x"}, relation, first.revision, turn),
    )
    found = await ledgers.projection.message(ROOM, A)
    assert found is not None
    assert (found.sender, found.thread, found.origin_ts, found.turn) == (ALICE, "$root", 77, turn)
    assert (found.content, found.relates_to) == ({"body": "x"}, relation)
    assert await ledgers.projection.message(OTHER_ROOM, A) is None

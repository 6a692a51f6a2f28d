"""Turns, sources and steps: each statement's contract (A6, D2, D3, D4)."""

from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import UUID

import asyncpg
import pytest

from mindroom.core.errors import CorruptState
from mindroom.core.ids import Epoch, EventId, Fence, PrincipalName, Receipt, TurnId
from mindroom.core.values import Conversation, MessageTarget, OrderKey, Reason
from mindroom.turnstore.record import StepRecord, TurnRecord, TurnSource
from mindroom.turnstore.store import LosingTurn, TurnStore
from tests.support.events import ALICE, ROOM
from tests.support.ledgers import Ledgers, add_principal, move_database_clock, open_ledgers, receipt_of, source

ROOT = EventId("$root")


@pytest.fixture
async def ledgers(database_dsn: str) -> AsyncIterator[Ledgers]:
    async with open_ledgers(database_dsn) as opened:
        yield opened


def turn_of(number: int, *receipts: tuple[str, Receipt], thread: EventId | None = ROOT) -> TurnRecord:
    return TurnRecord(
        turn_id=TurnId(UUID(int=number)),
        target=MessageTarget(ROOM, thread, EventId("$reply")),
        requester=ALICE,
        epoch=Epoch(2),
        is_open=True,
        reason=Reason.MENTION,
        generation=1,
        model="offline",
        fence=Fence(1),
        opened_at=None,
        sources=tuple(TurnSource(EventId(event), receipt, OrderKey(receipt)) for event, receipt in receipts),
    )


async def open_turns(ledgers: Ledgers) -> list[TurnId]:
    rows = await ledgers.database.fetch("SELECT turn_id FROM turns WHERE state = 'open' ORDER BY turn_id")
    return [TurnId(UUID(str(row["turn_id"]))) for row in rows]


async def opened(ledgers: Ledgers, number: int, *events: str) -> TurnRecord:
    """A stored turn that answers these fresh sources."""
    admitted = await ledgers.hear(*(source(event) for event in events))
    turn = turn_of(number, *((event, receipt_of(admitted, event)) for event in events))
    async with ledgers.lease.transaction("open_turn") as tx:
        await ledgers.turns.open(tx, turn, config_generation="c1")
    return await ledgers.turns.require(turn.turn_id)


async def close(ledgers: Ledgers, turn: TurnRecord, *, outcome: str = "answered", seconds: float | None = 2.0) -> bool:
    async with ledgers.lease.transaction("hand_off") as tx:
        return await ledgers.turns.close(
            tx, turn, outcome=outcome, input_tokens=10, output_tokens=20, seconds_since_first_text=seconds
        )


async def step(ledgers: Ledgers, turn: TurnRecord, number: int, text: str) -> None:
    async with ledgers.lease.transaction("append_step") as tx:
        await ledgers.turns.append_step(tx, turn, StepRecord(number, text, f"{text} (said)", 3, 4))


async def steps(ledgers: Ledgers) -> list[tuple[int, int, str]]:
    rows = await ledgers.database.fetch("SELECT generation, step, canonical_text FROM turn_steps ORDER BY 1, 2")
    return [(r["generation"], r["step"], r["canonical_text"]) for r in rows]


async def test_a_turn_is_read_as_it_was_opened(ledgers: Ledgers) -> None:
    """D2: grouping and order of sources survive a crash."""
    turn = await opened(ledgers, 1, "$b", "$a")
    assert turn.events == ("$b", "$a")
    assert turn.anchor.event_id == "$a"
    assert turn.anchor.order_key == OrderKey(turn.anchor.receipt)
    assert turn.target == MessageTarget(ROOM, ROOT, EventId("$reply"))
    assert (turn.requester, turn.epoch, turn.reason, turn.model) == (ALICE, 2, Reason.MENTION, "offline")
    assert (turn.is_open, turn.generation, turn.opened_at is not None) == (True, 1, True)
    assert await open_turns(ledgers) == [turn.turn_id]


async def test_a_turn_of_the_main_timeline_has_no_thread_and_perhaps_no_reply(ledgers: Ledgers) -> None:
    admitted = await ledgers.hear(source("$a"))
    made = turn_of(1, ("$a", receipt_of(admitted, "$a")), thread=None)
    async with ledgers.lease.transaction("open_turn") as tx:
        await ledgers.turns.open(tx, made, config_generation="c1")
    found = await ledgers.turns.require(made.turn_id)
    assert found.conversation == Conversation(ROOM, None)


async def test_a_source_that_another_turn_holds_refuses_the_whole(ledgers: Ledgers) -> None:
    """D2: an event is answered by one turn."""
    first = await opened(ledgers, 1, "$a")
    admitted = await ledgers.hear(source("$b"))
    second = turn_of(2, ("$b", receipt_of(admitted, "$b")), ("$a", first.anchor.receipt))

    async def body() -> None:
        async with ledgers.lease.transaction("open_turn") as tx:
            await ledgers.turns.open(tx, second, config_generation="c1")

    with pytest.raises(asyncpg.UniqueViolationError):
        await body()
    assert await open_turns(ledgers) == [first.turn_id]
    assert await ledgers.turns.load(second.turn_id) is None


async def test_a_turn_that_is_not_there_is_corrupt_where_it_must_be(ledgers: Ledgers) -> None:
    assert await ledgers.turns.load(TurnId(UUID(int=9))) is None
    with pytest.raises(CorruptState):
        await ledgers.turns.require(TurnId(UUID(int=9)))


# ---- steps -----------------------------------------------------------------------------------------------------------
async def test_a_step_is_a_fact_and_repeating_it_changes_nothing(ledgers: Ledgers) -> None:
    """D4."""
    turn = await opened(ledgers, 1, "$a")
    await step(ledgers, turn, 0, "first")
    await step(ledgers, turn, 0, "other")
    await step(ledgers, turn, 1, "second")
    assert await steps(ledgers) == [(1, 0, "first"), (1, 1, "second")]


async def test_any_text_a_model_may_write_can_be_stored(ledgers: Ledgers) -> None:
    """E7: PostgreSQL refuses NUL and lone surrogates."""
    turn = await opened(ledgers, 1, "$a")
    await step(ledgers, turn, 0, "nul \x00 half \ud800")
    assert await steps(ledgers) == [(1, 0, "nul \ufffd half \ufffd")]


# ---- closing ---------------------------------------------------------------------------------------------------------
async def test_a_turn_closes_once(ledgers: Ledgers) -> None:
    turn = await opened(ledgers, 1, "$a")
    assert await close(ledgers, turn)
    assert not await close(ledgers, turn, outcome="failed")
    assert not (await ledgers.turns.require(turn.turn_id)).is_open
    (row,) = await ledgers.database.fetch(
        "SELECT outcome, input_tokens, output_tokens, closed_at - first_text_at AS apart FROM turns"
    )
    assert (row["outcome"], row["input_tokens"], row["output_tokens"]) == ("answered", 10, 20)
    assert row["apart"].total_seconds() == 2
    assert await open_turns(ledgers) == []


async def test_a_turn_without_text_closes_without_a_first_text(ledgers: Ledgers) -> None:
    assert await close(ledgers, await opened(ledgers, 1, "$a"), outcome="failed", seconds=None)
    (row,) = await ledgers.database.fetch("SELECT first_text_at FROM turns")
    assert row["first_text_at"] is None


async def test_another_generation_cannot_close_a_turn(ledgers: Ledgers) -> None:
    """D3: hand_off is refused when the generation moved."""
    turn = await opened(ledgers, 1, "$a")
    assert not await close(ledgers, replace(turn, generation=2))
    assert await close(ledgers, turn)


async def test_a_turn_whose_final_was_seen_is_answered_whatever_the_process_believed(ledgers: Ledgers) -> None:
    """A6."""
    turn = await opened(ledgers, 1, "$a")
    async with ledgers.lease.transaction("admit") as tx:
        await ledgers.turns.close_answered(tx, [turn.turn_id, TurnId(UUID(int=99))])
    assert not await close(ledgers, turn)
    (row,) = await ledgers.database.fetch("SELECT state, outcome FROM turns")
    assert (row["state"], row["outcome"]) == ("closed", "answered")


# ---- losing sources --------------------------------------------------------------------------------------------------
async def test_turns_that_lose_sources_are_bare_or_go_on(ledgers: Ledgers) -> None:
    """A4, D3: no open turn without a pending source."""
    bare, rest = await opened(ledgers, 1, "$a"), await opened(ledgers, 2, "$b", "$c")
    await opened(ledgers, 3, "$d")
    gone = [EventId("$a"), EventId("$b")]
    async with ledgers.lease.transaction("settle") as tx:
        await ledgers.journal.settle(tx, gone, outcome="redacted")
        losing = await ledgers.turns.losing(tx, gone)
        assert sorted(losing, key=lambda t: t.turn_id) == [
            LosingTurn(bare.turn_id, 1, True),
            LosingTurn(rest.turn_id, 1, False),
        ]
        await ledgers.turns.end(tx, [bare.turn_id], outcome="redacted")
        await ledgers.turns.drop_sources(tx, [rest.turn_id], gone)
        assert await ledgers.turns.losing(tx, gone) == []
    assert (await ledgers.turns.require(rest.turn_id)).events == ("$c",)
    assert len(await open_turns(ledgers)) == 2


async def test_a_closed_turn_loses_nothing(ledgers: Ledgers) -> None:
    turn = await opened(ledgers, 1, "$a")
    await close(ledgers, turn)
    async with ledgers.lease.transaction("settle") as tx:
        assert await ledgers.turns.losing(tx, [EventId("$a")]) == []
        await ledgers.turns.drop_sources(tx, [turn.turn_id], [EventId("$a")])
        await ledgers.turns.end(tx, [turn.turn_id], outcome="redacted")
    found = await ledgers.turns.require(turn.turn_id)
    assert found.events == ("$a",)
    (row,) = await ledgers.database.fetch("SELECT outcome FROM turns")
    assert row["outcome"] == "answered"


# ---- for prompts -----------------------------------------------------------------------------------------------------
async def test_answers_stand_at_the_place_of_their_anchor_with_their_last_step(ledgers: Ledgers) -> None:
    for number, event in enumerate(("$a", "$b", "$c"), start=1):
        turn = await opened(ledgers, number, event)
        await step(ledgers, turn, 0, f"thought {number}")
        await step(ledgers, turn, 1, f"answer {number}")
        await close(ledgers, turn, outcome="failed" if event == "$b" else "answered")
        await move_database_clock(ledgers.database, 1)
    await step(ledgers, await opened(ledgers, 4, "$open"), 0, "unfinished")
    answers = await ledgers.turns.answers(Conversation(ROOM, ROOT), limit=10)
    assert [a.text for a in answers] == ["answer 3 (said)", "answer 1 (said)"]
    assert answers[0].order_key > answers[1].order_key
    assert [a.text for a in await ledgers.turns.answers(Conversation(ROOM, ROOT), limit=1)] == ["answer 3 (said)"]
    assert await ledgers.turns.answers(Conversation(ROOM, None), limit=10) == []


async def test_another_principals_turns_are_out_of_reach(ledgers: Ledgers) -> None:
    """I4."""
    turn = await opened(ledgers, 1, "$a")
    await step(ledgers, turn, 0, "secret")
    other = await add_principal(ledgers.database, "other")
    lease = await ledgers.keeper.take(other, PrincipalName("other"))
    assert lease is not None
    turns = TurnStore(other, ledgers.database)
    async with lease.transaction("settle") as tx:
        assert await turns.losing(tx, [EventId("$a")]) == []
        await turns.end(tx, [turn.turn_id], outcome="failed")
        await turns.close_answered(tx, [turn.turn_id])
        await turns.drop_sources(tx, [turn.turn_id], [EventId("$a")])
        await turns.append_step(tx, turn, StepRecord(1, "x", "x", 0, 0))
        await turns.forget_steps(tx, [(ROOM, EventId("$a"))], also=[])
        assert await turns.open_sources(tx, [turn.turn_id]) == []
    assert await turns.load(turn.turn_id) is None
    found = await ledgers.turns.require(turn.turn_id)
    assert (found.is_open, found.events) == (True, ("$a",))
    assert await steps(ledgers) == [(1, 0, "secret")]

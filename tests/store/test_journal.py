"""Receipts, pending sources and settlements: each statement's contract (A1, A2, A6, C2, F2)."""

import asyncio
import random
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from mindroom.core.errors import FenceLost, RetryClass
from mindroom.core.ids import Epoch, EventId, PrincipalName, SyncToken, TurnId
from mindroom.core.values import EventClass, OrderKey, Trust
from mindroom.db.engine import Tx
from mindroom.journal.records import Redaction
from mindroom.journal.store import Journal
from mindroom.journal.trust import CheckpointTrust, TrustEvent
from tests.support.events import OTHER_ROOM, ROOM
from tests.support.ledgers import (
    START,
    Ledgers,
    add_principal,
    context,
    move_database_clock,
    open_ledgers,
    receipt_of,
    source,
)

CERTIFIED = CheckpointTrust(Trust.CERTIFIED, TrustEvent.ADMITTED)
TURN = TurnId(UUID(int=7))


@pytest.fixture
async def ledgers(database_dsn: str) -> AsyncIterator[Ledgers]:
    async with open_ledgers(database_dsn) as opened:
        yield opened


async def answer(ledgers: Ledgers, *events: str, turn: TurnId | None = TURN) -> None:
    async with ledgers.lease.transaction("admit") as tx:
        await ledgers.journal.mark_answered(tx, {EventId(event): turn for event in events})


# ---- admission -------------------------------------------------------------------------------------------------------
async def test_token_and_rows_are_there_together(ledgers: Ledgers) -> None:
    """A1."""
    async with ledgers.lease.transaction("admit") as tx:
        await ledgers.journal.hear(tx, [source("$a")])
        await ledgers.journal.move_checkpoint(tx, SyncToken("s2"), CERTIFIED)
    stored = await ledgers.journal.load_checkpoint()
    assert (stored.token, stored.trust) == ("s2", CheckpointTrust(Trust.PENDING, TrustEvent.LOADED))
    assert await ledgers.pending() == ["$a"]


async def test_a_failed_admission_leaves_neither_token_nor_rows(ledgers: Ledgers) -> None:
    """A1."""

    async def admit(token: str, event: str, *, fails: bool) -> None:
        async with ledgers.lease.transaction("admit") as tx:
            await ledgers.journal.hear(tx, [source(event)])
            await ledgers.journal.move_checkpoint(tx, SyncToken(token), CERTIFIED)
            if fails:
                raise RuntimeError("mine")

    await admit("s1", "$a", fails=False)
    with pytest.raises(RuntimeError):
        await admit("s2", "$b", fails=True)
    assert (await ledgers.journal.load_checkpoint()).token == "s1"
    assert await ledgers.pending() == ["$a"]


async def test_an_event_is_work_once_however_often_it_is_shown(ledgers: Ledgers) -> None:
    """A2: inside a batch, across batches, and after it was settled."""
    first = await ledgers.hear(source("$a"), source("$b"), source("$a"))
    assert sorted(first.receipts) == ["$a", "$b"]
    assert (await ledgers.hear(source("$b"), source("$c"))).receipts.keys() == {"$c"}
    async with ledgers.lease.transaction("settle") as tx:
        assert await ledgers.journal.settle(tx, [EventId("$a")], outcome="answered") == ["$a"]
    again = await ledgers.hear(source("$a"))
    assert (again.receipts, again.lowest_pending) == ({}, None)
    assert await ledgers.pending() == ["$b", "$c"]


async def test_the_first_of_two_copies_in_a_batch_counts(ledgers: Ledgers) -> None:
    await ledgers.hear(context("$a"), source("$a"))
    assert await ledgers.pending() == []
    assert await ledgers.outcome("$a") == ("settled", None)


async def test_overlapping_batches_at_once_in_any_order_hear_each_event_once(ledgers: Ledgers) -> None:
    """A2."""
    rng = random.Random(1)
    names = [f"${n}" for n in range(40)]
    batches = [[source(name) for name in rng.sample(names, 15)] for _ in range(12)]
    batches.append([source(name) for name in names])
    found = await asyncio.gather(*(ledgers.hear(*batch) for batch in batches))
    heard = [event for admitted in found for event in admitted.receipts]
    assert sorted(heard) == sorted(names)
    assert sorted(await ledgers.pending()) == sorted(names)
    assert await ledgers.count("journal_receipts") == 40


async def test_receipts_rise_in_the_order_of_the_batch(ledgers: Ledgers) -> None:
    names = [f"${n}" for n in random.Random(2).sample(range(100), 60)]
    admitted = await ledgers.hear(*(source(name) for name in names))
    assert sorted(names, key=lambda name: receipt_of(admitted, name)) == names
    assert await ledgers.pending() == names
    assert admitted.lowest_pending == OrderKey(receipt_of(admitted, names[0]))


async def test_what_admission_settles_itself_is_never_pending(ledgers: Ledgers) -> None:
    """I1, A7."""
    refused = context("$a")
    refused.event_class, refused.outcome = EventClass.LIVE, "ignored.unauthorized"
    admitted = await ledgers.hear(refused, context("$b"))
    assert admitted.lowest_pending is None
    assert await ledgers.outcome("$a") == ("settled", "ignored.unauthorized")
    assert await ledgers.outcome("$b") == ("settled", None)
    assert await ledgers.count("journal_settlements") == 1


async def test_any_content_a_server_may_show_can_be_stored(ledgers: Ledgers) -> None:
    """A7, R41: PostgreSQL refuses NUL and lone surrogates."""
    odd = source("$a")
    odd.source = {"body": "nul \x00 half \ud800", "k\x00": [1.5, 10**30, float("inf"), None, {"deep": "\udfff"}]}
    await ledgers.hear(odd)
    (stored,) = await ledgers.journal.pending_page(START, 0, held_rooms=[], limit=1)
    assert stored.source["body"] == "nul \ufffd half \ufffd"
    assert stored.source["k\ufffd"] == [1.5, 10**30, None, None, {"deep": "\ufffd"}]


# ---- answered marks --------------------------------------------------------------------------------------------------
async def test_a_pending_source_that_our_final_names_is_settled_answered(ledgers: Ledgers) -> None:
    """A6."""
    await ledgers.hear(source("$a"), source("$b"))
    await answer(ledgers, "$a")
    assert await ledgers.pending() == ["$b"]
    assert await ledgers.outcome("$a") == ("settled", "answered")
    (row,) = await ledgers.database.fetch("SELECT turn_id FROM journal_settlements")
    assert row["turn_id"] == TURN


async def test_a_source_that_comes_after_the_final_that_names_it_never_becomes_work(ledgers: Ledgers) -> None:
    """A6: a gap may show the question after the answer."""
    await answer(ledgers, "$a")
    admitted = await ledgers.hear(source("$a"), source("$b"))
    assert await ledgers.pending() == ["$b"]
    assert await ledgers.outcome("$a") == ("settled", "answered")
    assert admitted.lowest_pending == OrderKey(receipt_of(admitted, "$b"))


async def test_naming_a_source_twice_or_one_settled_otherwise_changes_nothing(ledgers: Ledgers) -> None:
    await ledgers.hear(source("$a"))
    async with ledgers.lease.transaction("settle") as tx:
        await ledgers.journal.settle(tx, [EventId("$a")], outcome="ignored.not_addressed")
    await answer(ledgers, "$a")
    await answer(ledgers, "$a", turn=None)
    assert await ledgers.outcome("$a") == ("settled", "ignored.not_addressed")


async def test_a_source_that_was_redacted_before_it_came_is_settled(ledgers: Ledgers) -> None:
    """A4."""
    async with ledgers.lease.transaction("admit") as tx:
        await ledgers.projection.apply(tx, [Redaction(ROOM, EventId("$a"))], keys={})
    await ledgers.hear(source("$a"), source("$b", room=OTHER_ROOM))
    assert await ledgers.outcome("$a") == ("settled", "redacted")
    assert await ledgers.pending() == ["$b"]


# ---- settling --------------------------------------------------------------------------------------------------------
async def test_settling_returns_only_what_was_owed(ledgers: Ledgers) -> None:
    await ledgers.hear(source("$a"), context("$c"))
    events = [EventId(e) for e in ("$a", "$c", "$unknown")]
    async with ledgers.lease.transaction("settle") as tx:
        assert await ledgers.journal.settle(tx, events, outcome="answered", turn=TURN) == ["$a"]
        assert await ledgers.journal.settle(tx, events, outcome="parked") == []
    assert await ledgers.outcome("$a") == ("settled", "answered")
    assert await ledgers.outcome("$c") == ("settled", None)


async def test_many_verdicts_of_silence_are_one_statement(ledgers: Ledgers) -> None:
    admitted = await ledgers.hear(source("$a"), source("$b"), source("$c"))
    async with ledgers.lease.transaction("settle") as tx:
        await ledgers.journal.settle_ignored(
            tx, [(receipt_of(admitted, "$a"), "ignored.notice"), (receipt_of(admitted, "$b"), "ignored.empty")]
        )
    assert await ledgers.outcome("$a") == ("settled", "ignored.notice")
    assert await ledgers.outcome("$b") == ("settled", "ignored.empty")
    assert await ledgers.pending() == ["$c"]


async def test_locking_tells_which_sources_are_still_owed(ledgers: Ledgers) -> None:
    """D3."""
    await ledgers.hear(source("$a"), context("$b"))
    async with ledgers.lease.transaction("open_turn") as tx:
        locked = await ledgers.journal.lock_pending(tx, [EventId("$a"), EventId("$b")])
    assert locked == {"$a"}


async def test_a_tombstone_stands_in_the_room_of_its_event_only(ledgers: Ledgers) -> None:
    """A4."""
    async with ledgers.lease.transaction("admit") as tx:
        await ledgers.projection.apply(tx, [Redaction(ROOM, EventId("$a"))], keys={})
        tombstones = "SELECT event_id FROM redaction_tombstones WHERE room_id = $1"
        assert {row["event_id"] for row in await tx.fetch(tombstones, ROOM)} == {"$a"}
        assert await tx.fetch(tombstones, OTHER_ROOM) == []


async def test_leaving_a_room_settles_what_was_owed_there_and_nothing_newer(ledgers: Ledgers) -> None:
    """F2."""
    await ledgers.hear(source("$old", epoch=1), source("$new", epoch=2), source("$elsewhere", room=OTHER_ROOM, epoch=1))
    async with ledgers.lease.transaction("admit") as tx:
        assert await ledgers.journal.depart(tx, {ROOM: Epoch(1)}) == ["$old"]
    assert await ledgers.outcome("$old") == ("settled", "departed")
    assert await ledgers.pending() == ["$new", "$elsewhere"]


async def test_another_principal_is_not_touched(ledgers: Ledgers) -> None:
    """I4: same events, same rooms, its own ledger."""
    other = await add_principal(ledgers.database, "other")
    lease = await ledgers.keeper.take(other, PrincipalName("other"))
    assert lease is not None
    journal = Journal(other, ledgers.database)
    async with lease.transaction("admit") as tx:
        await journal.hear(tx, [source("$a")])
    await ledgers.hear(source("$a"))
    await answer(ledgers, "$a")
    async with ledgers.lease.transaction("admit") as tx:
        await ledgers.journal.depart(tx, {ROOM: Epoch(9)})
    assert [p.event_id for p in await journal.pending_page(START, 0, held_rooms=[], limit=9)] == ["$a"]
    assert await ledgers.pending() == []


async def test_a_stale_owner_hears_nothing(ledgers: Ledgers) -> None:
    """H2."""
    await ledgers.keeper.take(ledgers.principal, PrincipalName("agent"))
    with pytest.raises(FenceLost):
        await ledgers.hear(source("$a"))
    assert await ledgers.count("journal_receipts") == 0


# ---- the documented view ---------------------------------------------------------------------------------------------
async def test_the_view_tells_state_and_outcome_of_every_event(ledgers: Ledgers) -> None:
    """Context only = settled with outcome NULL."""
    await ledgers.hear(source("$a"), source("$b"), context("$c"))
    async with ledgers.lease.transaction("settle") as tx:
        await ledgers.journal.settle(tx, [EventId("$b")], outcome="answered", turn=TURN)
        await ledgers.journal.record_failure(
            tx, [EventId("$a")], code="model", retry_class=RetryClass.PERMANENT, delay_seconds=60
        )
    await move_database_clock(ledgers.database, 5)
    rows = {r["event_id"]: r for r in await ledgers.database.fetch("SELECT * FROM journal_events")}
    assert [(e, r["state"], r["outcome"]) for e, r in sorted(rows.items())] == [
        ("$a", "pending", None),
        ("$b", "settled", "answered"),
        ("$c", "settled", None),
    ]
    assert (rows["$a"]["attempts"], rows["$a"]["last_error"], rows["$a"]["principal_name"]) == (1, "model", "agent")
    assert rows["$a"]["age"].total_seconds() >= 5
    assert rows["$b"]["turn_id"] == TURN
    counts = await ledgers.database.fetch("SELECT state, COUNT(*) AS n FROM journal_events GROUP BY state")
    assert {r["state"]: r["n"] for r in counts} == {"pending": 1, "settled": 2}


async def test_a_checkpoint_remembers_when_it_was_certified(ledgers: Ledgers) -> None:
    """B1: since-when moves only with the state."""

    async def move(token: str, trust: CheckpointTrust) -> None:
        async def body(tx: Tx) -> None:
            await ledgers.journal.move_checkpoint(tx, SyncToken(token), trust)

        await ledgers.lease.run("admit", body)
        await move_database_clock(ledgers.database, 10)

    assert (await ledgers.journal.load_checkpoint()).trust.state is Trust.COLD
    await move("s1", CERTIFIED)
    await move("s2", CERTIFIED)
    await move("s2", CheckpointTrust(Trust.UNCERTAIN, TrustEvent.ADMISSION_FAILED))
    (row,) = await ledgers.database.fetch(
        "SELECT token, trust, reason, since - certified_at AS apart FROM sync_checkpoints"
    )
    assert (row["token"], row["trust"], row["reason"]) == ("s2", "uncertain", "admission_failed")
    assert 9 < row["apart"].total_seconds() < 12

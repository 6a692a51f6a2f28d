"""Placeholders and echoes as rows (A6, D9, E2, E3)."""

from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import UUID

import pytest

from mindroom.core.ids import Epoch, EventId, Fence, TurnId
from mindroom.core.values import Membership, MessageTarget, OrderKey, Reason, Stage
from mindroom.outbox.records import (
    DeliveryState,
    NewDelivery,
    Purpose,
    answer_delivery_id,
    notice_delivery_id,
)
from mindroom.outbox.store import Outbox
from mindroom.turnstore.record import TurnRecord, TurnSource
from tests.support.deliveries import CONTENT, EVENT, ack, claim, echo, new, queue, row, see
from tests.support.events import ALICE, OTHER_ROOM, ROOM
from tests.support.ledgers import Ledgers, add_principal, open_ledgers, receipt_of, source

OTHER = EventId("$twice")


@pytest.fixture
async def ledgers(database_dsn: str) -> AsyncIterator[Ledgers]:
    async with open_ledgers(database_dsn) as opened:
        await opened.standing(Membership.JOIN)
        yield opened


# ---- placeholders ----------------------------------------------------------------------------------------------------
async def drop(ledgers: Ledgers, made: NewDelivery) -> tuple[DeliveryState | None, EventId | None]:
    async with ledgers.lease.transaction("hand_off") as tx:
        return await ledgers.outbox.drop_initial(tx, made.key.delivery)


async def test_an_unclaimed_placeholder_is_dropped_when_its_answer_exists(ledgers: Ledgers) -> None:
    """E3."""
    initial = new(1, Stage.INITIAL)
    await queue(ledgers, initial)
    assert await drop(ledgers, initial) == (DeliveryState.RETIRED, None)
    assert (await row(ledgers, initial)).state is DeliveryState.RETIRED
    assert not await claim(ledgers, initial)


async def test_a_claimed_or_visible_placeholder_is_told_and_left(ledgers: Ledgers) -> None:
    """E3: the answer waits for it, or edits it."""
    initial = new(1, Stage.INITIAL)
    await queue(ledgers, initial)
    await claim(ledgers, initial)
    assert await drop(ledgers, initial) == (DeliveryState.CLAIMED, None)
    await ack(ledgers, initial)
    assert await drop(ledgers, initial) == (DeliveryState.ACKED, EVENT)
    assert await drop(ledgers, new(2)) == (None, None)


async def test_an_answer_knows_the_fate_of_its_placeholder(ledgers: Ledgers) -> None:
    await queue(ledgers, new(1, Stage.INITIAL), new(1), new(2))
    await claim(ledgers, new(1, Stage.INITIAL))
    assert (await row(ledgers, new(1))).initial_state is DeliveryState.CLAIMED
    await ack(ledgers, new(1, Stage.INITIAL))
    found = await row(ledgers, new(1))
    assert (found.initial_state, found.initial_event) == (DeliveryState.ACKED, EVENT)
    assert (await row(ledgers, new(2))).initial_state is None
    assert (await row(ledgers, new(1, Stage.INITIAL))).initial_state is None


async def test_ended_turns_drop_unclaimed_placeholders_and_tell_the_others(ledgers: Ledgers) -> None:
    """D9."""
    turns = [TurnId(UUID(int=number)) for number in (1, 2, 3, 4)]
    admitted = await ledgers.hear(*(source(f"${turn.int}") for turn in turns))
    for turn in turns:
        receipt = receipt_of(admitted, f"${turn.int}")
        held = (TurnSource(EventId(f"${turn.int}"), receipt, OrderKey(receipt)),)
        target = MessageTarget(ROOM, None, None)
        record = TurnRecord(turn, target, ALICE, Epoch(1), True, Reason.DM, 1, "offline", Fence(1), None, held)
        async with ledgers.lease.transaction("open_turn") as tx:
            await ledgers.turns.open(tx, record, config_generation="c1")
    unclaimed, claimed, visible, other = (replace(new(t.int, Stage.INITIAL), turn=t) for t in turns)
    await queue(ledgers, unclaimed, claimed, visible, other)
    await claim(ledgers, claimed)
    await ack(ledgers, visible)
    async with ledgers.lease.transaction("settle") as tx:
        told = await ledgers.outbox.end_placeholders(tx, turns[:3])
        again = await ledgers.outbox.end_placeholders(tx, turns[:3])
    assert sorted(t.turn.int for t in told) == [2, 3]
    assert (told[0].room, told[0].thread, told[0].epoch, told[0].generation) == (ROOM, "$root", 1, 1)
    assert sorted(t.turn.int for t in again) == [2, 3]
    assert (await row(ledgers, unclaimed)).state is DeliveryState.RETIRED
    assert (await row(ledgers, other)).state is DeliveryState.QUEUED


# ---- echoes ----------------------------------------------------------------------------------------------------------
async def test_an_echo_acknowledges_its_row_once(ledgers: Ledgers) -> None:
    """A6, E2."""
    await queue(ledgers, new(1))
    assert await see(ledgers, echo(1)) == [new(1).key]
    assert await see(ledgers, echo(1, OTHER)) == []
    found = await row(ledgers, new(1))
    assert (found.state, found.acked_event, found.content) == (DeliveryState.ACKED, EVENT, CONTENT)


async def test_an_echo_that_a_restored_database_lacks_is_inserted_acknowledged(ledgers: Ledgers) -> None:
    """A6: its turn may be unknown too."""
    lost = replace(echo(1), turn=TurnId(UUID(int=77)))
    assert await see(ledgers, lost, echo(1, stage=Stage.INITIAL)) == [new(1).key, new(1, Stage.INITIAL).key]
    found = await row(ledgers, new(1))
    assert (found.state, found.purpose, found.turn, found.acked_event) == (
        DeliveryState.ACKED,
        Purpose.ADOPTED,
        None,
        EVENT,
    )
    await queue(ledgers, new(1))
    assert await ledgers.outbox.owed() == []


async def test_the_same_delivery_twice_in_one_response_blocks_nothing(ledgers: Ledgers) -> None:
    """A7, E2: the first event wins."""
    assert await see(ledgers, echo(1, EVENT), echo(1, OTHER), echo(2, OTHER)) == [new(1).key, new(2).key]
    assert (await row(ledgers, new(1))).acked_event == EVENT


async def test_an_echo_never_touches_another_principals_row(ledgers: Ledgers) -> None:
    """I4."""
    await queue(ledgers, new(1))
    other = await add_principal(ledgers.database, "other")
    outbox = Outbox(other, ledgers.database)
    async with ledgers.database.transaction("admit") as tx:
        assert await outbox.acknowledge_echoes(tx, [echo(1)]) == []
    assert (await row(ledgers, new(1))).state is DeliveryState.QUEUED
    assert await outbox.owed() == []


async def test_an_echo_names_no_turn_of_another_principal(ledgers: Ledgers) -> None:
    """I4: a restored row never points into another ledger."""
    admitted = await ledgers.hear(source("$1"))
    receipt = receipt_of(admitted, "$1")
    held = (TurnSource(EventId("$1"), receipt, OrderKey(receipt)),)
    turn = TurnId(UUID(int=5))
    target = MessageTarget(ROOM, None, None)
    record = TurnRecord(turn, target, ALICE, Epoch(1), True, Reason.DM, 1, "offline", Fence(1), None, held)
    async with ledgers.lease.transaction("open_turn") as tx:
        await ledgers.turns.open(tx, record, config_generation="c1")
    other = Outbox(await add_principal(ledgers.database, "other"), ledgers.database)
    async with ledgers.database.transaction("admit") as tx:
        await other.acknowledge_echoes(tx, [replace(echo(1), turn=turn)])
    found = await other.load(new(1).key)
    assert found is not None
    assert found.turn is None


def test_delivery_ids_are_made_of_what_they_say() -> None:
    """One answer per turn and generation, one notice per subject."""
    turn, other = TurnId(UUID(int=1)), TurnId(UUID(int=2))
    assert answer_delivery_id(turn, 1) == answer_delivery_id(turn, 1)
    ids = {answer_delivery_id(t, g) for t in (turn, other) for g in (1, 2)}
    ids |= {notice_delivery_id("encrypted", ROOM), notice_delivery_id("encrypted", OTHER_ROOM)}
    assert len(ids) == 6

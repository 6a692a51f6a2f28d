"""Deliveries as rows: each statement's contract (A6, D9, E1, E2, E3, E4, F2)."""

from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import UUID

import asyncpg
import pytest

from mindroom.core.ids import DeliveryId, EventId
from mindroom.core.values import Membership, Stage
from mindroom.outbox.records import (
    DeliveryKey,
    DeliveryState,
    Purpose,
)
from tests.support.deliveries import CONTENT, EVENT, ack, claim, new, queue, retire_rooms, row, wire
from tests.support.events import OTHER_ROOM, ROOM
from tests.support.ledgers import Ledgers, move_database_clock, open_ledgers

OTHER = EventId("$twice")


@pytest.fixture
async def ledgers(database_dsn: str) -> AsyncIterator[Ledgers]:
    async with open_ledgers(database_dsn) as opened:
        await opened.standing(Membership.JOIN)
        yield opened


# ---- queueing --------------------------------------------------------------------------------------------------------
async def test_what_is_queued_is_read_back_and_repeating_it_changes_nothing(ledgers: Ledgers) -> None:
    made = new(1)
    await queue(ledgers, made, replace(made, content={"body": "other"}))
    found = await row(ledgers, made)
    assert (found.content, found.notify, found.room, found.epoch) == (CONTENT, ("@alice:x",), ROOM, 1)
    assert (found.state, found.wire, found.attempts, found.purpose) == (DeliveryState.QUEUED, None, 0, Purpose.ANSWER)
    assert await ledgers.outbox.load(DeliveryKey(DeliveryId(UUID(int=9)), Stage.FINAL)) is None


async def test_any_text_a_model_may_write_can_be_queued(ledgers: Ledgers) -> None:
    """E7: PostgreSQL refuses NUL and lone surrogates."""
    made = replace(new(1), content={"body": "nul \x00 half \ud800"})
    await queue(ledgers, made)
    assert (await row(ledgers, made)).content == {"body": "nul \ufffd half \ufffd"}


async def test_owed_deliveries_come_in_the_order_in_which_they_were_queued(ledgers: Ledgers) -> None:
    """A placeholder before its answer, both before what came later."""
    await queue(ledgers, new(5, Stage.INITIAL), new(5, Stage.FINAL))
    await move_database_clock(ledgers.database, 1)
    await queue(ledgers, new(1), delay_seconds=30)
    await move_database_clock(ledgers.database, 1)
    await queue(ledgers, new(3))
    owed = await ledgers.outbox.owed()
    assert [(o.key.delivery.int, o.key.stage) for o in owed] == [
        (5, Stage.INITIAL),
        (5, Stage.FINAL),
        (1, Stage.FINAL),
        (3, Stage.FINAL),
    ]
    assert [o.due_in_seconds > 20 for o in owed] == [False, False, True, False]
    summary = await ledgers.outbox.summary()
    assert (summary.owed, int(summary.oldest_seconds)) == (4, 2)


async def test_nothing_owed_is_a_summary_too(ledgers: Ledgers) -> None:
    summary = await ledgers.outbox.summary()
    assert (summary.owed, summary.oldest_seconds) == (0, 0.0)
    assert await ledgers.outbox.owed() == []


# ---- claiming --------------------------------------------------------------------------------------------------------
async def test_a_claim_keeps_the_checkpoint_from_which_the_room_would_be_read(ledgers: Ledgers) -> None:
    """E4: the token at the claim, and the newer one at a later claim."""
    made = new(1)
    await queue(ledgers, made)
    for token in ("s1", "s2"):
        async with ledgers.lease.transaction("claim_delivery") as tx:
            await tx.execute("DELETE FROM sync_checkpoints")
            await tx.execute(
                "INSERT INTO sync_checkpoints (principal, token, trust, reason) VALUES ($1, $2, 'certified', 'x')",
                ledgers.lease.principal,
                token,
            )
            await ledgers.outbox.reopen(tx, made.key, code=None)
        assert await claim(ledgers, made)
        assert (await row(ledgers, made)).claim_token == token


async def test_a_claim_freezes_payload_and_device_once(ledgers: Ledgers) -> None:
    """E1."""
    made = new(1)
    await queue(ledgers, made)
    assert await claim(ledgers, made, edit_target=OTHER)
    assert not await claim(ledgers, made)
    found = await row(ledgers, made)
    assert (found.state, found.wire, found.device_id, found.attempts) == (
        DeliveryState.CLAIMED,
        wire(made),
        "DEV",
        1,
    )


async def test_the_same_claim_may_be_repeated(ledgers: Ledgers) -> None:
    """K2: the commit's reply was lost and its fate could not be asked, so the transaction runs again."""
    made = new(1)
    await queue(ledgers, made)
    assert await claim(ledgers, made, edit_target=OTHER)
    assert await claim(ledgers, made, edit_target=OTHER)
    await ack(ledgers, made)
    assert not await claim(ledgers, made, edit_target=OTHER)


@pytest.mark.parametrize(
    ("membership", "epoch"), [(Membership.LEAVE, 1), (Membership.INVITE, 1), (Membership.JOIN, 2), (Membership.BAN, 2)]
)
async def test_nothing_is_claimed_outside_the_current_stay(
    ledgers: Ledgers, membership: Membership, epoch: int
) -> None:
    """E1, F2."""
    made = new(1)
    await queue(ledgers, made)
    await ledgers.standing(membership, epoch=epoch)
    assert not await claim(ledgers, made)
    assert (await row(ledgers, made)).state is DeliveryState.QUEUED


async def test_nothing_is_claimed_in_a_room_we_know_nothing_of(ledgers: Ledgers) -> None:
    made = new(1, room=OTHER_ROOM)
    await queue(ledgers, made)
    assert not await claim(ledgers, made)


async def test_a_final_may_be_born_claimed(ledgers: Ledgers) -> None:
    """hand_off claims it at once; a second birth is refused with the whole transaction."""
    made = new(1)

    async def hand_off() -> None:
        async with ledgers.lease.transaction("hand_off") as tx:
            await ledgers.outbox.queue_claimed(tx, made, wire(made), edit_target=None)

    await hand_off()
    found = await row(ledgers, made)
    assert (found.state, found.wire, found.attempts) == (DeliveryState.CLAIMED, wire(made), 1)
    with pytest.raises(asyncpg.UniqueViolationError):
        await hand_off()


async def test_a_failed_attempt_leaves_the_claim_and_waits(ledgers: Ledgers) -> None:
    """E4: the same payload later."""
    made = new(1)
    await queue(ledgers, made)
    await claim(ledgers, made)
    async with ledgers.lease.transaction("retry_delivery") as tx:
        await ledgers.outbox.retry_later(tx, made.key, code="network", delay_seconds=30)
    found = await row(ledgers, made)
    assert (found.state, found.attempts, found.wire) == (DeliveryState.CLAIMED, 1, wire(made))
    (owed,) = await ledgers.outbox.owed()
    assert 20 < owed.due_in_seconds <= 30
    await move_database_clock(ledgers.database, 60)
    (owed,) = await ledgers.outbox.owed()
    assert owed.due_in_seconds <= 0
    assert 60 <= (await row(ledgers, made)).claimed_seconds < 70


# ---- ends ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("state", ["queued", "claimed", "retired", "failed"])
async def test_the_first_acknowledgement_wins_in_any_state(ledgers: Ledgers, state: str) -> None:
    """E1, E2."""
    made = new(1)
    await queue(ledgers, made)
    await claim(ledgers, made)
    await ledgers.database.fetch("UPDATE delivery_outbox SET state = $1", state)
    assert await ack(ledgers, made, EVENT)
    assert not await ack(ledgers, made, OTHER)
    found = await row(ledgers, made)
    assert (found.state, found.acked_event) == (DeliveryState.ACKED, EVENT)
    assert await ledgers.outbox.owed() == []


@pytest.mark.parametrize("end", ["fail", "retire"])
async def test_an_ended_delivery_is_not_owed_and_ends_once(ledgers: Ledgers, end: str) -> None:
    made = new(1)
    await queue(ledgers, made)
    finish = ledgers.outbox.fail if end == "fail" else ledgers.outbox.retire
    async with ledgers.lease.transaction("end_delivery") as tx:
        assert await finish(tx, made.key, code="M_FORBIDDEN")
        assert not await finish(tx, made.key, code="other")
    assert await ledgers.outbox.owed() == []
    assert not await claim(ledgers, made)
    (found,) = await ledgers.database.fetch("SELECT state, last_error FROM delivery_outbox")
    assert (found["state"], found["last_error"]) == ({"fail": "failed", "retire": "retired"}[end], "M_FORBIDDEN")


async def test_an_acknowledged_delivery_cannot_fail(ledgers: Ledgers) -> None:
    made = new(1)
    await queue(ledgers, made)
    await ack(ledgers, made)
    async with ledgers.lease.transaction("end_delivery") as tx:
        assert not await ledgers.outbox.fail(tx, made.key, code="late")
    await retire_rooms(ledgers, ROOM, 1)
    assert (await row(ledgers, made)).state is DeliveryState.ACKED


async def test_a_departure_retires_what_its_epoch_owed_in_that_room(ledgers: Ledgers) -> None:
    """F2."""
    old, claimed, newer, elsewhere = new(1), new(2), new(3, epoch=2), new(4, room=OTHER_ROOM)
    await queue(ledgers, old, claimed, newer, elsewhere)
    await claim(ledgers, claimed)
    await retire_rooms(ledgers, ROOM, 1)
    states = [(await row(ledgers, made)).state for made in (old, claimed, newer, elsewhere)]
    assert states == [DeliveryState.RETIRED, DeliveryState.RETIRED, DeliveryState.QUEUED, DeliveryState.QUEUED]

"""Deliveries as a test owes, claims and sees them."""

from uuid import UUID

from mindroom.core.content import JsonObject
from mindroom.core.ids import DeliveryId, DeviceId, Epoch, EventId, RoomId, UserId
from mindroom.core.ports import WirePayload
from mindroom.core.values import Stage
from mindroom.outbox.records import Delivery, DeliveryKey, NewDelivery, Purpose
from mindroom.outbox.store import EchoRow
from tests.support.events import ROOM
from tests.support.ledgers import Ledgers

EVENT = EventId("$said")
CONTENT: JsonObject = {"msgtype": "m.text", "body": "hello"}


def new(number: int, stage: Stage = Stage.FINAL, *, room: RoomId = ROOM, epoch: int = 1) -> NewDelivery:
    """A delivery to say."""
    key = DeliveryKey(DeliveryId(UUID(int=number)), stage)
    return NewDelivery(
        key, None, 1, Purpose.ANSWER, room, EventId("$root"), Epoch(epoch), CONTENT, (UserId("@alice:x"),)
    )


def wire(made: NewDelivery) -> WirePayload:
    """Its frozen payload."""
    return WirePayload(made.room, "m.room.message", made.content, made.key.txn_id, DeviceId("DEV"))


def echo(number: int, event: EventId = EVENT, *, stage: Stage = Stage.FINAL) -> EchoRow:
    """Our own event seen in ROOM."""
    key = DeliveryKey(DeliveryId(UUID(int=number)), stage)
    return EchoRow(key, None, 1, ROOM, EventId(""), Epoch(1), event)


async def queue(ledgers: Ledgers, *made: NewDelivery, delay_seconds: float = 0.0) -> None:
    """Owed, committed."""
    async with ledgers.lease.transaction("open_turn") as tx:
        for each in made:
            await ledgers.outbox.queue(tx, each, delay_seconds=delay_seconds)


async def claim(ledgers: Ledgers, made: NewDelivery, *, edit_target: EventId | None = None) -> bool:
    """Claimed, committed."""
    async with ledgers.lease.transaction("claim_delivery") as tx:
        return await ledgers.outbox.claim(tx, made.key, wire(made), edit_target=edit_target)


async def ack(ledgers: Ledgers, made: NewDelivery, event: EventId = EVENT) -> bool:
    """Acknowledged, committed."""
    async with ledgers.lease.transaction("ack_delivery") as tx:
        return await ledgers.outbox.ack(tx, made.key, event)


async def row(ledgers: Ledgers, made: NewDelivery) -> Delivery:
    """The row, which must exist."""
    found = await ledgers.outbox.load(made.key)
    assert found is not None
    return found


async def retire_rooms(ledgers: Ledgers, room: RoomId, epoch: int) -> None:
    """A departure from a room."""
    async with ledgers.lease.transaction("admit") as tx:
        await ledgers.outbox.retire_rooms(tx, {room: Epoch(epoch)})


async def see(ledgers: Ledgers, *echoes: EchoRow) -> list[DeliveryKey]:
    """Echoes of one response."""
    async with ledgers.lease.transaction("admit") as tx:
        return await ledgers.outbox.acknowledge_echoes(tx, list(echoes))

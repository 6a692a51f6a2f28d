"""Outbox: statements over deliveries of one principal (I4). Pieces of transactions never commit."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from mindroom.core.content import JsonObject
from mindroom.core.ids import (
    DeliveryId,
    DeviceId,
    Epoch,
    EventId,
    PrincipalId,
    RoomId,
    SyncToken,
    TurnId,
    TxnId,
    UserId,
)
from mindroom.core.ports import WirePayload
from mindroom.core.text import storable_json_text
from mindroom.core.values import Conversation, Stage
from mindroom.db.engine import Database, Tx
from mindroom.db.sql import load
from mindroom.outbox.records import (
    ClosedPlaceholder,
    Delivery,
    DeliveryKey,
    DeliveryState,
    NewDelivery,
    OwedDelivery,
    Purpose,
    WaitingDelivery,
    repeat_delivery_id,
)
from mindroom.outbox.rules import TOMBSTONED

SQL = load("mindroom.outbox", "outbox.sql")


@dataclass(frozen=True, slots=True)
class EchoRow:
    """An echo as the outbox takes it."""

    key: DeliveryKey
    turn: TurnId | None
    generation: int
    room: RoomId
    thread: EventId
    epoch: Epoch
    event_id: EventId


@dataclass(frozen=True, slots=True)
class OutboxSummary:
    """How much is unsaid."""

    owed: int
    oldest_seconds: float


def _json(value: Mapping[str, Any] | None) -> str | None:
    """Model output may hold what jsonb refuses (E7)."""
    return None if value is None else storable_json_text(value)


def _wire(text: str | None) -> WirePayload | None:
    if text is None:
        return None
    raw: JsonObject = json.loads(text)
    return WirePayload(
        RoomId(raw["room"]), raw["event_type"], raw["content"], TxnId(raw["txn_id"]), DeviceId(raw["device_id"])
    )


def _key(row: Mapping[str, Any]) -> DeliveryKey:
    return DeliveryKey(DeliveryId(UUID(str(row["delivery_id"]))), Stage(row["stage"]))


def _owed(row: Mapping[str, Any]) -> OwedDelivery:
    return OwedDelivery(
        _key(row),
        Conversation(RoomId(row["room_id"]), EventId(row["thread_id"]) if row["thread_id"] else None),
        row["due_in_seconds"],
    )


@dataclass(frozen=True, slots=True)
class Outbox:
    """The said ledger of one principal."""

    principal: PrincipalId
    database: Database

    def _row(self, new: NewDelivery) -> tuple[Any, ...]:
        return (
            self.principal,
            new.key.delivery,
            new.key.stage.value,
            new.turn,
            new.generation,
            new.purpose.value,
            new.room,
            new.thread,
            new.epoch,
            _json(new.content),
            list(new.notify),
            new.key.txn_id,
        )

    async def queue(self, tx: Tx, new: NewDelivery, *, delay_seconds: float = 0.0) -> None:
        """Owe a delivery, not before `delay_seconds` from now."""
        await tx.execute(SQL["queue"], *self._row(new), delay_seconds)

    async def queue_claimed(self, tx: Tx, new: NewDelivery, wire: WirePayload, *, edit_target: EventId | None) -> None:
        """Owe a delivery that goes out as soon as this transaction is committed."""
        await tx.execute(SQL["queue_claimed"], *self._row(new), _json(asdict(wire)), edit_target, wire.device_id)

    async def drop_initial(self, tx: Tx, delivery: DeliveryId) -> tuple[DeliveryState | None, EventId | None]:
        """Drop an unclaimed INITIAL; tells its state and event afterwards (E3)."""
        row = await tx.fetchrow(SQL["drop_initial"], self.principal, delivery)
        if row is None:
            return None, None
        return DeliveryState(row["state"]), EventId(row["acked_event_id"]) if row["acked_event_id"] else None

    async def load(self, key: DeliveryKey) -> Delivery | None:
        """A row with the fate of its INITIAL."""
        row = await self.database.fetchrow(SQL["load"], self.principal, key.delivery, key.stage.value)
        if row is None:
            return None
        return Delivery(
            key=key,
            turn=TurnId(UUID(str(row["turn_id"]))) if row["turn_id"] else None,
            purpose=Purpose(row["purpose"]),
            room=RoomId(row["room_id"]),
            epoch=Epoch(row["epoch"]),
            content=json.loads(row["content"]) if row["content"] else None,
            notify=tuple(UserId(user) for user in row["notify"]),
            wire=_wire(row["wire"]),
            device_id=DeviceId(row["device_id"]) if row["device_id"] else None,
            attempts=row["attempts"],
            state=DeliveryState(row["state"]),
            acked_event=EventId(row["acked_event_id"]) if row["acked_event_id"] else None,
            initial_state=DeliveryState(row["initial_state"]) if row["initial_state"] else None,
            initial_event=EventId(row["initial_event_id"]) if row["initial_event_id"] else None,
            queued_seconds=row["queued_seconds"],
            claimed_seconds=row["claimed_seconds"],
            attempted_seconds=row["attempted_seconds"],
            claim_token=SyncToken(row["claim_token"]) if row["claim_token"] else None,
            in_truncated_gap=row["in_truncated_gap"],
            last_error=row["last_error"] or "",
        )

    async def claim(self, tx: Tx, key: DeliveryKey, wire: WirePayload, *, edit_target: EventId | None) -> bool:
        """Freeze the payload. False when the row is no longer queued or its epoch has ended (E1, F2).

        Repeating the claim is True again: a transaction whose fate could not be asked runs a second time.
        """
        row = await tx.fetchrow(
            SQL["claim"],
            self.principal,
            key.delivery,
            key.stage.value,
            _json(asdict(wire)),
            edit_target,
            wire.device_id,
        )
        return row is not None

    async def reopen(self, tx: Tx, key: DeliveryKey, *, code: str | None) -> None:
        """A claimed row whose send never happened is queued again, with the reason when it has to wait (E4)."""
        await tx.execute(SQL["reopen"], self.principal, key.delivery, key.stage.value, code)

    async def note_attempt(self, tx: Tx, key: DeliveryKey) -> bool:
        """A claimed row goes out once more; False when it is no longer claimed or its epoch has ended (E4, F2)."""
        return await tx.fetchrow(SQL["note_attempt"], self.principal, key.delivery, key.stage.value) is not None

    async def ack(self, tx: Tx, key: DeliveryKey, event: EventId) -> bool:
        """The room has it; False when that was known (E2)."""
        row = await tx.fetchrow(SQL["ack"], self.principal, key.delivery, key.stage.value, event)
        return row is not None

    async def retry_later(self, tx: Tx, key: DeliveryKey, *, code: str, delay_seconds: float) -> None:
        """Still claimed: the same payload again later (E4)."""
        await tx.execute(SQL["retry_later"], self.principal, key.delivery, key.stage.value, code, delay_seconds)

    async def fail(self, tx: Tx, key: DeliveryKey, *, code: str) -> bool:
        """It can never be said like this."""
        row = await tx.fetchrow(SQL["fail"], self.principal, key.delivery, key.stage.value, code)
        return row is not None

    async def retire(self, tx: Tx, key: DeliveryKey, *, code: str) -> bool:
        """It need not be said any more."""
        row = await tx.fetchrow(SQL["retire"], self.principal, key.delivery, key.stage.value, code)
        return row is not None

    async def retire_rooms(self, tx: Tx, departures: Mapping[RoomId, Epoch]) -> None:
        """Nothing of an ended epoch is sent (F2)."""
        await tx.execute(SQL["retire_rooms"], self.principal, list(departures), list(departures.values()))

    async def acknowledge_echoes(self, tx: Tx, echoes: Sequence[EchoRow]) -> list[DeliveryKey]:
        """What we see ourselves say was said; returns the rows that did not know yet (A6)."""
        rows = await tx.fetch(
            SQL["echoes"],
            self.principal,
            [e.key.delivery for e in echoes],
            [e.key.stage.value for e in echoes],
            [e.turn for e in echoes],
            [e.generation for e in echoes],
            [e.room for e in echoes],
            [e.thread for e in echoes],
            [e.epoch for e in echoes],
            [e.key.txn_id for e in echoes],
            [e.event_id for e in echoes],
        )
        return [DeliveryKey(DeliveryId(UUID(str(r["delivery_id"]))), Stage(r["stage"])) for r in rows]

    async def end_placeholders(self, tx: Tx, turns: Sequence[TurnId]) -> list[ClosedPlaceholder]:
        """Drop unclaimed placeholders of ended turns; returns those that a room may show (D9)."""
        rows = await tx.fetch(SQL["end_initials"], self.principal, list(turns))
        return [
            ClosedPlaceholder(
                DeliveryId(UUID(str(r["delivery_id"]))),
                TurnId(UUID(str(r["turn_id"]))),
                r["generation"],
                RoomId(r["room_id"]),
                EventId(r["thread_id"]),
                Epoch(r["epoch"]),
            )
            for r in rows
        ]

    async def forget(self, tx: Tx, rooms: Sequence[RoomId], events: Sequence[EventId]) -> list[TurnId]:
        """Where these are events of ours, their texts go, drafts and later edits of the same turns too (I2).

        Returns the turns.
        """
        rows = await tx.fetch(SQL["forget"], self.principal, list(rooms), list(events))
        return sorted({TurnId(UUID(str(row["turn_id"]))) for row in rows if row["turn_id"]})

    async def owed(self) -> list[OwedDelivery]:
        """Everything queued or claimed, oldest first."""
        return [_owed(row) for row in await self.database.fetch(SQL["owed"], self.principal)]

    async def waiting_for_successor(self, room: RoomId) -> list[WaitingDelivery]:
        """What this upgraded room refused and another may take (F4)."""
        rows = await self.database.fetch(SQL["waiting_for_successor"], self.principal, room, TOMBSTONED)
        return [WaitingDelivery(_key(row), json.loads(row["content"] or "{}"), row["is_answer"]) for row in rows]

    async def carry(
        self, tx: Tx, key: DeliveryKey, *, old: RoomId, new: RoomId, epoch: Epoch, content: JsonObject
    ) -> list[OwedDelivery]:
        """Owe a delivery in the successor instead, in these words; empty when it no longer waits (F4)."""
        values = (self.principal, key.delivery, key.stage.value, old, new, epoch, _json(content))
        return [_owed(row) for row in await tx.fetch(SQL["carry"], *values)]

    async def room_owes(self, room: RoomId) -> bool:
        """Whether anything is still to be said in a room."""
        row = await self.database.fetchrow(SQL["room_owes"], self.principal, room)
        return bool(row and row["owes"])

    async def say_again(self, tx: Tx, progress: Sequence[tuple[DeliveryId, int, EventId]]) -> list[OwedDelivery]:
        """Owe the text of each FINAL that is older than a progress edit of its delivery, once for that edit (E11).

        `progress` is delivery, Matrix time in milliseconds and event of each.
        """
        rows = await tx.fetch(
            SQL["say_again"],
            self.principal,
            [repeat_delivery_id(event) for _, _, event in progress],
            [delivery for delivery, _, _ in progress],
            [timestamp_ms for _, timestamp_ms, _ in progress],
            [event for _, _, event in progress],
        )
        return [_owed(row) for row in rows]

    async def newest_acked(self) -> tuple[RoomId, EventId] | None:
        """The last event of ours that the homeserver acknowledged, in a room we are in (B4)."""
        row = await self.database.fetchrow(SQL["newest_acked"], self.principal)
        return (RoomId(row["room_id"]), EventId(row["acked_event_id"])) if row else None

    async def summary(self) -> OutboxSummary:
        """How much is unsaid and how old it is."""
        row = await self.database.fetchrow(SQL["summary"], self.principal)
        return OutboxSummary(row["owed"], row["oldest_seconds"]) if row else OutboxSummary(0, 0.0)

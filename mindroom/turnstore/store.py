"""TurnStore: statements over turns, sources and steps of one principal (I4). Pieces of transactions never commit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from mindroom.core.errors import CorruptState
from mindroom.core.ids import DeliveryId, Epoch, EventId, Fence, PrincipalId, Receipt, RoomId, TurnId, UserId
from mindroom.core.text import storable
from mindroom.core.values import Conversation, MessageTarget, OrderKey, Reason
from mindroom.db.engine import Database, Tx
from mindroom.db.sql import load
from mindroom.turnstore.record import AnswerRecord, StepRecord, TurnRecord, TurnSource

SQL = load("mindroom.turnstore", "turnstore.sql")


@dataclass(frozen=True, slots=True)
class LosingTurn:
    """An open turn that is about to lose sources."""

    turn_id: TurnId
    generation: int
    is_bare: bool
    """True when none of its sources is left."""


def turn_id_of(value: Any) -> TurnId:
    """A uuid column as TurnId."""
    return TurnId(UUID(str(value)))


@dataclass(frozen=True, slots=True)
class TurnStore:
    """The done ledger of one principal."""

    principal: PrincipalId
    database: Database

    async def open(self, tx: Tx, turn: TurnRecord, *, config_generation: str) -> None:
        """Write a new turn with its sources."""
        await tx.execute(
            SQL["open_turn"],
            turn.turn_id,
            self.principal,
            turn.target.room,
            turn.conversation.stored_thread,
            turn.target.reply_to or "",
            turn.requester,
            turn.epoch,
            turn.reason.value,
            config_generation,
            turn.model,
            *_columns(turn.sources),
            turn.fence,
        )

    async def add_sources(self, tx: Tx, turn: TurnRecord, sources: Sequence[TurnSource]) -> None:
        """These join an open turn behind its own (R19)."""
        await tx.execute(SQL["add_sources"], self.principal, turn.turn_id, *_columns(sources))

    async def append_step(self, tx: Tx, turn: TurnRecord, step: StepRecord) -> None:
        """A completed step is a fact (D4). Model output may hold characters that no text column takes (E7)."""
        await tx.execute(
            SQL["append_step"],
            self.principal,
            turn.turn_id,
            turn.generation,
            step.step,
            storable(step.canonical_text),
            storable(step.replayable_text),
            step.input_tokens,
            step.output_tokens,
        )

    async def close(
        self,
        tx: Tx,
        turn: TurnRecord,
        *,
        outcome: str,
        input_tokens: int,
        output_tokens: int,
        seconds_since_first_text: float | None,
    ) -> bool:
        """Close this generation. False when the turn ended or moved on otherwise."""
        row = await tx.fetchrow(
            SQL["close_turn"],
            self.principal,
            turn.turn_id,
            turn.generation,
            outcome,
            input_tokens,
            output_tokens,
            seconds_since_first_text,
        )
        return row is not None

    async def close_answered(self, tx: Tx, turns: Sequence[TurnId]) -> None:
        """The room has seen the FINAL of these turns (A6)."""
        await tx.execute(SQL["close_answered"], self.principal, list(turns))

    async def losing(self, tx: Tx, events: Sequence[EventId]) -> list[LosingTurn]:
        """Open turns that held these settled sources."""
        rows = await tx.fetch(SQL["turns_losing"], self.principal, list(events))
        return [LosingTurn(turn_id_of(r["turn_id"]), r["generation"], r["is_bare"]) for r in rows]

    async def end(self, tx: Tx, turns: Sequence[TurnId], *, outcome: str) -> None:
        """End turns that have no source left."""
        await tx.execute(SQL["end_turns"], self.principal, list(turns), outcome)

    async def give_up_sources(self, tx: Tx, turns: Sequence[TurnId]) -> None:
        """These ended turns hold nothing any more, so that other turns may answer what they held (C2)."""
        await tx.execute(SQL["give_up_sources"], self.principal, list(turns))

    async def resume(self, tx: Tx, turn: TurnRecord, *, fence: Fence, after_crash: bool) -> int:
        """This fence takes up an open turn; returns how often that followed a crash (D4), 0 when it has it already."""
        row = await tx.fetchrow(SQL["resume_turn"], self.principal, turn.turn_id, fence, int(after_crash))
        return int(row["resumes"]) if row else 0

    async def drop_sources(self, tx: Tx, turns: Sequence[TurnId], events: Sequence[EventId]) -> None:
        """These turns go on without these events."""
        await tx.execute(SQL["drop_sources"], self.principal, list(turns), list(events))

    async def load(self, turn: TurnId, *, tx: Tx | None = None) -> TurnRecord | None:
        """A turn with its sources; inside a transaction on its connection, never on a second one."""
        rows = await (tx or self.database).fetch(SQL["load_turn"], self.principal, turn)
        if not rows:
            return None
        first = rows[0]
        room, thread = RoomId(first["room_id"]), EventId(first["thread_id"])
        return TurnRecord(
            turn_id=turn,
            target=MessageTarget(room, thread or None, EventId(first["reply_to"]) or None),
            requester=UserId(first["requester"]),
            epoch=Epoch(first["epoch"]),
            is_open=first["state"] == "open",
            reason=Reason(first["reason"]),
            generation=first["generation"],
            model=first["model"],
            fence=Fence(first["fence"]),
            opened_at=first["opened_at"],
            sources=tuple(
                TurnSource(EventId(r["event_id"]), Receipt(r["receipt"]), OrderKey(r["base"], r["page"], r["idx"]))
                for r in rows
            ),
        )

    async def require(self, turn: TurnId, *, tx: Tx | None = None) -> TurnRecord:
        """A turn that must exist. Raises CorruptState."""
        record = await self.load(turn, tx=tx)
        if record is None:
            raise CorruptState(f"turn {turn} has no row or no sources")
        return record

    async def answered_by(self, tx: Tx, deliveries: Sequence[DeliveryId]) -> dict[EventId, TurnId | None]:
        """Sources, with their turns, of open turns that these deliveries answer (A6)."""
        rows = await tx.fetch(SQL["answered_by"], self.principal, list(deliveries))
        return {EventId(r["event_id"]): turn_id_of(r["turn_id"]) for r in rows}

    async def open_sources(self, tx: Tx, turns: Sequence[TurnId]) -> list[tuple[RoomId, EventId]]:
        """What those of the turns that are open are to answer."""
        rows = await tx.fetch(SQL["open_sources"], self.principal, list(turns))
        return [(RoomId(r["room_id"]), EventId(r["event_id"])) for r in rows]

    async def forget_steps(self, tx: Tx, cited: Sequence[tuple[RoomId, EventId]], *, also: Sequence[TurnId]) -> None:
        """Blank the steps of turns that answer these messages, and of the turns in `also` (I2)."""
        rooms, events = [room for room, _ in cited], [event for _, event in cited]
        await tx.execute(SQL["forget_steps"], self.principal, rooms, events, list(also))

    async def answers(self, conversation: Conversation, *, limit: int) -> list[AnswerRecord]:
        """Our newest answers in a conversation, for its next prompt."""
        rows = await self.database.fetch(
            SQL["conversation_answers"], self.principal, conversation.room, conversation.stored_thread, limit
        )
        return [
            AnswerRecord(
                turn_id_of(r["turn_id"]),
                OrderKey(r["base"], r["page"], r["idx"]),
                r["replayable_text"],
                r["closed_at"],
            )
            for r in rows
        ]


def _columns(sources: Sequence[TurnSource]) -> tuple[list[Any], ...]:
    keys = [source.order_key for source in sources]
    return (
        [source.event_id for source in sources],
        [source.receipt for source in sources],
        [key.base for key in keys],
        [key.page for key in keys],
        [key.index for key in keys],
    )

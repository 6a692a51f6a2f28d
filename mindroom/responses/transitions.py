"""The named transactions of a turn that runs: open_turn and hand_off, composed from the statements of three ledgers.

Ownership of a source moves exactly once, in `hand_off`: before it the journal owes the answer, after it the outbox.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from mindroom.core.content import JsonObject
from mindroom.core.errors import CorruptState, TransactionRefused
from mindroom.core.ids import EventId, TurnId, UserId
from mindroom.core.ports import WirePayload
from mindroom.core.values import Conversation, Stage
from mindroom.db.engine import Tx
from mindroom.db.lease import Lease
from mindroom.journal.rooms import RoomBook
from mindroom.journal.store import Journal
from mindroom.outbox.records import (
    DeliveryKey,
    DeliveryState,
    NewDelivery,
    Purpose,
    answer_delivery_id,
)
from mindroom.outbox.store import Outbox
from mindroom.outbox.worker import OutboxWorker
from mindroom.responses.assembly import Responder
from mindroom.responses.streaming import initial_content
from mindroom.turnstore.record import StepRecord, TurnRecord, TurnSource
from mindroom.turnstore.store import TurnStore

PLACEHOLDER_DELAY_SECONDS = 0.3
"""An answer that is ready sooner shows no placeholder (behaviour.md)."""


MAX_RESUMES = 8
"""So often a turn is taken up after a crash without getting on; then its sources are parked (D4)."""


def new_turn_id(time_ms: int, random_bits: bytes) -> TurnId:
    """A version 7 uuid: 48 bits of milliseconds, then `random_bits` (10 bytes)."""
    value = (time_ms & (2**48 - 1)) << 80 | int.from_bytes(random_bits[:10], "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    return TurnId(UUID(int=value & ~(0x3 << 62) | 0x2 << 62))


@dataclass(frozen=True, slots=True)
class Answer:
    """What a run has come to."""

    outcome: str
    """`answered`, or `failed` with a sentence for people."""
    content: JsonObject
    notify: tuple[UserId, ...]
    step: StepRecord | None
    """The last step of the generation, written with the hand-over."""
    seconds_since_first_text: float | None


@dataclass(frozen=True, slots=True)
class TurnTransitions:
    """open_turn and hand_off of one principal."""

    lease: Lease
    journal: Journal
    turns: TurnStore
    outbox: Outbox
    worker: OutboxWorker
    book: RoomBook
    responder: Responder

    async def open_turn(self, turn: TurnRecord) -> None:
        """Turn, sources and INITIAL row in one commit. Raises TransactionRefused when a source is gone."""
        key = DeliveryKey(answer_delivery_id(turn.turn_id, turn.generation), Stage.INITIAL)

        async def body(tx: Tx) -> None:
            await self._require_sources(tx, "open_turn", turn)
            await self.turns.open(tx, turn, config_generation=self.responder.config_generation)
            initial = initial_content(
                turn=turn.turn_id, generation=turn.generation, delivery=key.delivery, target=turn.target
            )
            new = self._delivery(turn, key, initial)
            await self.outbox.queue(tx, new, delay_seconds=PLACEHOLDER_DELAY_SECONDS)
            tx.after_commit(lambda: self.worker.offer(new, delay_seconds=PLACEHOLDER_DELAY_SECONDS))

        await self.lease.run("open_turn", body)

    async def resume(self, turn: TurnRecord) -> None:
        """Take up a turn of an earlier fence. Raises CorruptState after too many crashes (D4)."""
        if turn.fence == self.lease.fence:
            return

        async def body(tx: Tx) -> int:
            return await self.turns.resume(tx, turn, fence=self.lease.fence, after_crash=self.lease.after_crash)

        if await self.lease.run("resume_turn", body) > MAX_RESUMES:
            raise CorruptState(f"turn {turn.turn_id} was found open after {MAX_RESUMES} crashes")

    async def join(self, turn: TurnRecord, sources: Sequence[TurnSource]) -> TurnRecord:
        """T supersede: what its requester wrote since joins an open turn (R19). Raises TransactionRefused when a source
        is gone."""
        joining = [source for source in sources if source.event_id not in turn.events]
        if not joining:
            return turn
        larger = replace(turn, sources=(*turn.sources, *joining))

        async def body(tx: Tx) -> None:
            await self._require_sources(tx, "supersede", larger)
            await self.turns.add_sources(tx, turn, joining)

        await self.lease.run("supersede", body)
        return larger

    async def hand_off(
        self, turn: TurnRecord, answer: Answer, *, wire: WirePayload | None, edits: EventId | None
    ) -> None:
        """FINAL owed, sources settled, turn closed, in one commit (D3).

        `wire` is the FINAL frozen for the case that the placeholder stands at `edits` (None: that there is none); when
        the placeholder turns out otherwise, or nothing may go out to the room at once, the row is queued and the worker
        freezes it.
        Raises TransactionRefused when a source, the turn's generation or the epoch moved.
        """
        delivery = answer_delivery_id(turn.turn_id, turn.generation)
        initial, final = DeliveryKey(delivery, Stage.INITIAL), DeliveryKey(delivery, Stage.FINAL)

        async def body(tx: Tx) -> None:
            await self._require_sources(tx, "hand_off", turn)
            closed = await self.turns.close(
                tx,
                turn,
                outcome=answer.outcome,
                input_tokens=answer.step.input_tokens if answer.step else 0,
                output_tokens=answer.step.output_tokens if answer.step else 0,
                seconds_since_first_text=answer.seconds_since_first_text,
            )
            if not closed:
                raise TransactionRefused("hand_off", "the turn is not open in this generation")
            if answer.step is not None:
                await self.turns.append_step(tx, turn, answer.step)
            await self.journal.settle(tx, turn.events, outcome=answer.outcome, turn=turn.turn_id)
            state, event = await self.outbox.drop_initial(tx, delivery)
            new = self._delivery(turn, final, answer.content, notify=answer.notify)
            gone = state in (None, DeliveryState.RETIRED, DeliveryState.FAILED)
            as_foreseen = (gone and edits is None) or (state is DeliveryState.ACKED and event == edits)
            if wire is not None and as_foreseen and self.worker.is_free(new):
                await self.outbox.queue_claimed(tx, new, wire, edit_target=edits)
                tx.after_commit(lambda: self.worker.offer(new, wire=wire))
            else:
                await self.outbox.queue(tx, new)
                tx.after_commit(lambda: self.worker.offer(new))
            tx.after_commit(lambda: self.worker.withdraw(initial))

        await self.lease.run("hand_off", body)

    async def _require_sources(self, tx: Tx, name: str, turn: TurnRecord) -> None:
        if self.book.epoch(turn.target.room) != turn.epoch:
            raise TransactionRefused(name, "the room was left")
        missing = set(turn.events) - await self.journal.lock_pending(tx, turn.events)
        if missing:
            raise TransactionRefused(name, f"{len(missing)} of {len(turn.events)} sources are no longer owed")

    def _delivery(
        self, turn: TurnRecord, key: DeliveryKey, content: JsonObject, *, notify: tuple[UserId, ...] = ()
    ) -> NewDelivery:
        return NewDelivery(
            key=key,
            turn=turn.turn_id,
            generation=turn.generation,
            purpose=Purpose.ANSWER,
            room=turn.target.room,
            thread=Conversation(turn.target.room, turn.target.thread).stored_thread,
            epoch=turn.epoch,
            content=content,
            notify=notify,
        )

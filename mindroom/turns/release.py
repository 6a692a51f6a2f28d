"""What happens to open turns whose sources are settled outside hand_off, in the same commit (architecture section 5).

A turn without sources ends; its unclaimed placeholder is dropped, a visible one is withdrawn, and left to the room only
after a departure. A turn with sources left goes on with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mindroom.core.cancel import CancelCause
from mindroom.core.ids import EventId
from mindroom.core.values import Stage
from mindroom.db.engine import Tx
from mindroom.outbox.records import ClosedPlaceholder, DeliveryKey, NewDelivery, Purpose
from mindroom.outbox.store import Outbox
from mindroom.outbox.worker import OutboxWorker
from mindroom.turns.running import RunningTurns
from mindroom.turnstore.store import TurnStore

_CAUSES = {"redacted": CancelCause.REDACTION, "departed": CancelCause.DEPARTURE, "answered": CancelCause.ANSWERED}


@dataclass(frozen=True, slots=True)
class TurnRelease:
    """Ends or shrinks the turns of one principal."""

    turns: TurnStore
    outbox: Outbox
    worker: OutboxWorker
    running: RunningTurns

    async def sources_gone(self, tx: Tx, events: Sequence[EventId], *, outcome: str) -> None:
        """These sources have just been settled; a turn that has none left ends as `outcome`.

        `redacted`, `departed` and `answered` also stop a run of theirs; `failed` is for what may no longer be answered.
        """
        if not events:
            return
        losing = await self.turns.losing(tx, events)
        bare = [turn.turn_id for turn in losing if turn.is_bare]
        if bare:
            await self.turns.end(tx, bare, outcome=outcome)
            for placeholder in await self.outbox.end_placeholders(tx, bare):
                if outcome != "departed":
                    await self._withdraw(tx, placeholder)
        if shrunk := [turn.turn_id for turn in losing if not turn.is_bare]:
            await self.turns.drop_sources(tx, shrunk, events)
        if (cause := _CAUSES.get(outcome)) is not None:
            tx.after_commit(lambda: self.running.cancel(events, cause))

    async def _withdraw(self, tx: Tx, placeholder: ClosedPlaceholder) -> None:
        key = DeliveryKey(placeholder.delivery, Stage.FINAL)
        new = NewDelivery(
            key=key,
            turn=placeholder.turn,
            generation=placeholder.generation,
            purpose=Purpose.WITHDRAWAL,
            room=placeholder.room,
            thread=placeholder.thread,
            epoch=placeholder.epoch,
            content={},
        )
        await self.outbox.queue(tx, new)
        tx.after_commit(lambda: self.worker.offer(new))

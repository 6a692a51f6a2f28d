"""Parking: what keeps failing for a reason of its own comes to rest, with a notice where somebody waits (C2, D4).

Owns T park and T retry_parked. A parked source stays on the pending list, unread by the feeder: an operator may have it
tried again, and what an unknown error parked is tried once more by the first process of a newer version. The notice
names no sources, so that it never counts as their answer (A6); a retry opens another turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from mindroom.core.content import DeliveryMarker, message_content
from mindroom.core.errors import MindRoomError, RetryClass
from mindroom.core.ids import EventId, TurnId
from mindroom.core.values import Conversation, MessageTarget, Stage
from mindroom.db.engine import Tx
from mindroom.db.lease import Lease
from mindroom.journal.records import ParkedAs
from mindroom.journal.store import Journal
from mindroom.outbox.records import DeliveryKey, NewDelivery, Purpose, answer_delivery_id
from mindroom.outbox.store import Outbox
from mindroom.outbox.worker import OutboxWorker
from mindroom.responses.answer import reference
from mindroom.turnstore.store import TurnStore

log = structlog.get_logger(__name__)

MAX_ATTEMPTS = 8
"""Counted attempts of a source; the last one parks it (C2)."""


def parked_as(error: Exception, *, attempts: int) -> ParkedAs | None:
    """How a source that failed so, after that many counted attempts before, comes to rest; None: it is tried again."""
    if not isinstance(error, MindRoomError):
        return ParkedAs.UNKNOWN if attempts + 1 >= MAX_ATTEMPTS else None
    if error.retry_class is RetryClass.CORRUPT:
        return ParkedAs.CORRUPT
    if error.retry_class is RetryClass.PERMANENT and attempts + 1 >= MAX_ATTEMPTS:
        return ParkedAs.PERMANENT
    return None


def is_newer(version: str, *, than: str) -> bool:
    """Whether a release is newer than another one; a version that is none is older than each."""
    return _release(version) > _release(than)


def _release(version: str) -> tuple[int, ...]:
    parts = version.split(".")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()


@dataclass(frozen=True, slots=True)
class Parking:
    """Parks the sources of one principal."""

    lease: Lease
    journal: Journal
    turns: TurnStore
    outbox: Outbox
    worker: OutboxWorker
    version: str

    async def park(self, events: Sequence[EventId], *, code: str, parked_as: ParkedAs) -> None:
        """Rest these, end the turn that held them and say so where it would have answered. One commit.

        What else the turn held is owed as before, and another turn may take it.
        """

        async def body(tx: Tx) -> None:
            parked = await self.journal.park(tx, events, code=code, parked_as=parked_as, version=self.version)
            losing = [turn.turn_id for turn in await self.turns.losing(tx, parked)]
            await self.turns.end(tx, losing, outcome="parked")
            await self.outbox.end_placeholders(tx, losing)
            for turn in losing:
                await self._say(tx, turn)
            await self.turns.give_up_sources(tx, losing)

        await self.lease.run("park", body)
        log.error("sources_parked", sources=len(events), code=code, parked_as=parked_as.value)

    async def retry_older(self) -> None:
        """What an older version parked for an unknown error gets one more attempt. Raises DatabaseUnavailable."""
        older = [version for version in await self.journal.parked_by() if is_newer(self.version, than=version)]
        if not older:
            return

        async def body(tx: Tx) -> None:
            await self.journal.retry_parked(tx, older, attempts=MAX_ATTEMPTS - 1)

        await self.lease.run("retry_parked", body)

    async def _say(self, tx: Tx, turn_id: TurnId) -> None:
        turn = await self.turns.require(turn_id, tx=tx)
        key = DeliveryKey(answer_delivery_id(turn_id, turn.generation), Stage.FINAL)
        content = message_content(
            msgtype="m.text",
            body=f"Something went wrong here and I could not answer. (Reference {reference(turn_id)})",
            html=None,
            mentions=(),
            marker=DeliveryMarker(key.delivery, turn_id, turn.generation, Stage.FINAL),
            target=MessageTarget(turn.target.room, turn.target.thread, turn.target.reply_to),
        )
        notice = NewDelivery(
            key=key,
            turn=turn_id,
            generation=turn.generation,
            purpose=Purpose.ANSWER,
            room=turn.target.room,
            thread=Conversation(turn.target.room, turn.target.thread).stored_thread,
            epoch=turn.epoch,
            content=content,
            notify=(turn.requester,),
        )
        await self.outbox.queue(tx, notice)
        tx.after_commit(lambda: self.worker.offer(notice))

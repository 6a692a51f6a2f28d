"""RevisionRestorer: reads again what a message says without its redacted edit (A4).

What is owed stands in the projection, a message without text whose revision is an edit: a crash forgets none of it.
"""

from dataclasses import dataclass
from typing import Final

import structlog

from mindroom.bot.forget import Forgetting
from mindroom.bot.gate import StartGate
from mindroom.core.backoff import Backoff
from mindroom.core.clock import Clock
from mindroom.core.content import JsonObject
from mindroom.core.errors import DatabaseUnavailable, MatrixFailure, RetryClass
from mindroom.core.ids import Epoch, EventId, RoomId
from mindroom.core.ports import HistoryPort
from mindroom.db.engine import Tx
from mindroom.db.lease import Lease
from mindroom.journal.gap_page import classify_gap_page
from mindroom.journal.projection import MessageProjection
from mindroom.journal.records import NO_TOKEN, Edit, Gap, Hearer, Original, ProjectionChange, Redaction, Refetched
from mindroom.journal.shape import as_object

log = structlog.get_logger(__name__)

AT_ONCE: Final = 100
EDITS: Final = 100
"""So many edits of a message are looked at, the latest first."""


@dataclass(frozen=True, slots=True)
class RevisionRestorer:
    """Pays the texts that one principal's projection owes."""

    lease: Lease
    hearer: Hearer
    projection: MessageProjection
    forgetting: Forgetting
    history: HistoryPort
    gate: StartGate
    clock: Clock

    async def run(self) -> None:
        """Restore until cancelled. Raises FenceLost."""
        await self.gate.opened()
        backoff = Backoff(0.5, 60.0)
        while True:
            self.forgetting.owed.clear()
            try:
                await self._restore_all()
            except DatabaseUnavailable:
                await self.clock.sleep(backoff.next_seconds())
            except MatrixFailure as failure:
                await self.clock.sleep(backoff.next_seconds(asked_seconds=failure.retry_after_seconds))
            else:
                backoff.reset()
                await self.forgetting.owed.wait()

    async def _restore_all(self) -> None:
        """Every text that is owed; what fails for a while keeps no other from being restored, and is raised."""
        late: MatrixFailure | None = None
        for room, event in await self.projection.withheld(limit=AT_ONCE):
            try:
                changes = await self._read(room, event)
            except MatrixFailure as failure:
                if failure.retry_class is RetryClass.RETRY:
                    late = failure
                    continue
                # The server has nothing for us to show: the message stays without text.
                changes = [Refetched(room, event, None)]
            await self._store(changes)
            log.info("revision_restored", room=room, found=len(changes))
        if late is not None:
            raise late

    async def _read(self, room: RoomId, event: EventId) -> list[ProjectionChange]:
        """What the server has of a message. Raises MatrixFailure."""
        original = await self.history.event(room, event)
        page = await self.history.edits(room, event, limit=EDITS)
        newest = as_object(as_object(as_object(original.get("unsigned")).get("m.relations")).get("m.replace"))
        events: list[JsonObject] = [*page.events, dict(newest), original]
        gap = Gap(room, NO_TOKEN, NO_TOKEN, floor=0, epoch=Epoch(0), opened_ms=0)
        found = classify_gap_page(events, hearer=self.hearer, gap=gap, known={}).admission.projection
        edits = [change for change in found if isinstance(change, Edit) and change.target == event]
        content = next((c.content for c in found if isinstance(c, Original) and c.event_id == event), None)
        return [*(c for c in found if isinstance(c, Redaction)), Refetched(room, event, content, edits)]

    async def _store(self, changes: list[ProjectionChange]) -> None:
        async def body(tx: Tx) -> None:
            if (withdrawn := await self.projection.apply(tx, changes, keys={})) is not None:
                await self.forgetting.forget(tx, withdrawn)

        await self.lease.run("restore_revision", body)

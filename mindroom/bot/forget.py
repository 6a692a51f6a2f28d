"""Forgetting: what a redaction takes with it, in the commit of its tombstone (A4, I2).

The projection has withdrawn the text already. Here go the work it was, the steps of turns that cite it, and our own
words when it is they that were redacted. Tombstones, ids and states stay.
"""

import asyncio
from dataclasses import dataclass, field

from mindroom.db.engine import Tx
from mindroom.journal.reduce import Withdrawn
from mindroom.journal.store import Journal
from mindroom.outbox.store import Outbox
from mindroom.turns.release import TurnRelease
from mindroom.turnstore.store import TurnStore


@dataclass(frozen=True, slots=True)
class Forgetting:
    """Forgets for one principal; one statement for each table, however many redactions."""

    journal: Journal
    turns: TurnStore
    outbox: Outbox
    release: TurnRelease
    owed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when texts before redacted edits may be owed."""

    async def forget(self, tx: Tx, withdrawn: Withdrawn) -> None:
        """Nothing of what was redacted is left to read. A turn whose placeholder was redacted ends without text."""
        rooms, events = [room for room, _ in withdrawn.buried], [event for _, event in withdrawn.buried]
        said = await self.outbox.forget(tx, rooms, events)
        if said and (unfinished := await self.turns.open_sources(tx, said)):
            rooms, events = [*rooms, *(room for room, _ in unfinished)], [*events, *(event for _, event in unfinished)]
        gone = await self.journal.settle(tx, events, outcome="redacted", rooms=rooms)
        await self.release.sources_gone(tx, gone, outcome="redacted")
        cited = [*withdrawn.buried, *withdrawn.unedited]
        await self.turns.forget_steps(tx, cited, also=said)
        tx.after_commit(lambda: self.release.running.reread(withdrawn.conversations))
        if withdrawn.unedited:
            tx.after_commit(self.owed.set)

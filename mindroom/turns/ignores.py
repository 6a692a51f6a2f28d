"""Verdicts of silence, settled many per commit: an ignored source makes no turns row (architecture section 1).

One that an open turn holds, because its sender lost the authorization meanwhile, takes that turn with it (D3, D9).
"""

import asyncio
from collections.abc import Callable

import structlog

from mindroom.core.backoff import Backoff
from mindroom.core.clock import Clock
from mindroom.core.errors import DependencyError
from mindroom.core.ids import EventId, Receipt
from mindroom.core.values import Verdict
from mindroom.db.engine import Tx
from mindroom.db.lease import Lease
from mindroom.journal.records import PendingSource
from mindroom.journal.store import Journal
from mindroom.turns.release import TurnRelease

log = structlog.get_logger(__name__)

GATHER_SECONDS = 0.05
"""How long the first verdict waits for company."""


class IgnoredSources:
    """Gathers ignored sources and settles them in the transaction `settle`."""

    def __init__(
        self,
        lease: Lease,
        *,
        journal: Journal,
        release: TurnRelease,
        clock: Clock,
        settled: Callable[[Receipt], None],
    ) -> None:
        self._lease = lease
        self._journal = journal
        self._release = release
        self._clock = clock
        self._settled = settled
        self._waiting: list[tuple[Receipt, str]] = []
        self._held: set[EventId] = set()
        self._wake = asyncio.Event()

    def add(self, source: PendingSource, verdict: Verdict) -> None:
        """This source is to be settled as ignored."""
        self._waiting.append((source.receipt, verdict.outcome))
        if source.open_turn is not None:
            self._held.add(source.event_id)
        self._wake.set()

    async def run(self) -> None:
        """Settle until cancelled. Raises FenceLost."""
        backoff = Backoff(0.25, 20.0)
        while True:
            await self._wake.wait()
            await self._clock.sleep(GATHER_SECONDS)
            try:
                await self.flush()
                backoff.reset()
            except DependencyError as error:
                log.warning("ignored_sources_not_settled", code=error.code)
                await self._clock.sleep(backoff.next_seconds())

    async def flush(self) -> None:
        """Settle what has been gathered."""
        batch, held = list(self._waiting), sorted(self._held)
        if not batch:
            self._wake.clear()
            return

        async def body(tx: Tx) -> None:
            await self._journal.settle_ignored(tx, batch)
            await self._release.sources_gone(tx, held, outcome="failed")

        await self._lease.run("settle", body)
        del self._waiting[: len(batch)]
        self._held.difference_update(held)
        if not self._waiting:
            self._wake.clear()
        for receipt, _ in batch:
            self._settled(receipt)

"""GapWorker: walks what a limited sync skipped, page by page, each page one commit with its cursor (B2, B3).

Rooms with an open gap are held: their sources wait, at most two minutes, so that recovered ones come first.
"""

import asyncio
import random
from collections.abc import Callable

import structlog

from mindroom.bot.admit import Admitter
from mindroom.bot.gate import StartGate
from mindroom.core.backoff import Backoff, backoff_seconds
from mindroom.core.clock import Clock
from mindroom.core.errors import DatabaseUnavailable, MatrixFailure, TransactionRefused
from mindroom.core.metrics import Metrics
from mindroom.core.ports import HistoryPage, HistoryPort
from mindroom.db.engine import Tx
from mindroom.journal.classify import classify_gap_page
from mindroom.journal.recovery import GapState

log = structlog.get_logger(__name__)

PAGE_EVENTS = 100
HOLD_SECONDS = 120.0
"""Lanes of a room wait for its gaps at most this long."""
SWEEP_SECONDS = 10.0


class GapWorker:
    """Walks the gaps of one principal, oldest first."""

    def __init__(
        self,
        admitter: Admitter,
        *,
        history: HistoryPort,
        gate: StartGate,
        found: asyncio.Event,
        released: Callable[[], None],
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._admitter = admitter
        self._history = history
        self._gate = gate
        self._released = released
        self._clock = clock
        self._metrics = metrics
        self._rng = random.Random()
        self._wake = found

    async def hold_known(self) -> None:
        """Hold the rooms whose gaps an earlier process left, before anything is fed (B7)."""
        self._hold(await self._admitter.recovery.gaps())

    async def run(self) -> None:
        """Walk until cancelled. Raises FenceLost."""
        await self._gate.opened()
        backoff = Backoff(0.5, 20.0)
        while True:
            self._wake.clear()
            try:
                gaps = await self._admitter.recovery.gaps()
                if self._wake.is_set():
                    continue  # another gap was recorded while these were read, and its room must stay held
                self._hold(gaps)
                due = next((gap for gap in gaps if gap.is_due), None)
                if due is not None:
                    await self._walk_page(due)
                    backoff.reset()
                    continue
            except DatabaseUnavailable:
                await self._clock.sleep(backoff.next_seconds())
                continue
            await self._rest(has_gaps=bool(gaps))

    async def _rest(self, *, has_gaps: bool) -> None:
        if not has_gaps:
            await self._wake.wait()
            return
        sleeper = asyncio.ensure_future(self._clock.sleep(1.0))
        waker = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait({sleeper, waker}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeper.cancel()
            waker.cancel()

    def _hold(self, gaps: list[GapState]) -> None:
        held = frozenset(g.gap.room for g in gaps if g.age_seconds < HOLD_SECONDS)
        released = self._gate.held_rooms - held
        self._gate.hold(held, gaps=frozenset(g.gap.room for g in gaps))
        if released:
            self._released()

    async def _walk_page(self, state: GapState) -> None:
        gap = state.gap
        try:
            page = await self._history.messages_back(
                gap.room, start=gap.cursor or gap.from_token, stop=gap.to_token or None, limit=PAGE_EVENTS
            )
        except MatrixFailure as failure:
            await self._failed(state, failure)
            return
        await self._admit_page(state, page)

    async def _admit_page(self, state: GapState, page: HistoryPage) -> None:
        gap = state.gap
        admission, entered = classify_gap_page(
            page.events,
            hearer=self._admitter.hearer,
            room=gap.room,
            epoch=gap.epoch,
            floor=gap.floor,
            page=gap.page,
            late_before_ms=gap.late_before_ms,
        )
        closes = page.end is None or entered

        async def body(tx: Tx) -> None:
            if not await self._admitter.recovery.advance(tx, gap, cursor=page.end, closes=closes):
                raise TransactionRefused("gap_page", "the gap moved on")
            await self._admitter.echoes_of(tx, admission.echoes)
            admitted = await self._admitter.hear(tx, admission)
            tx.after_commit(lambda: self._admitter.heard(admission, admitted))

        try:
            await self._admitter.lease.run("gap_close" if closes else "gap_page", body)
        except TransactionRefused:
            return
        log.info("gap_page_admitted", room=gap.room, events=len(page.events), closes=closes)
        if closes:
            self._metrics.sync_limited.labels("repaired").inc()

    async def _failed(self, state: GapState, failure: MatrixFailure) -> None:
        """Network trouble never truncates a gap; it is tried again (B3)."""
        delay = backoff_seconds(state.gap.attempts + 1, first=0.5, cap=60.0, rng=self._rng)
        log.warning("gap_page_failed", room=state.gap.room, failure=failure.failure_class.value)

        async def body(tx: Tx) -> None:
            await self._admitter.recovery.gap_failed(
                tx, state.gap, code=failure.errcode or failure.failure_class.value, delay_seconds=delay
            )

        await self._admitter.lease.run("gap_failed", body)

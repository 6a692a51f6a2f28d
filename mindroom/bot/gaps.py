"""GapWorker: walks what a limited sync skipped, page by page, each page one commit with its cursor (B2, B3).

Rooms with an open gap are held: their sources wait, at most two minutes, so that recovered ones come first. Rooms are
walked side by side, the gaps of one room oldest first; a gap in back-off lets the next one of its room pass.
"""

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from mindroom.bot.admit import Admitter
from mindroom.bot.gate import StartGate
from mindroom.core.backoff import Backoff, backoff_seconds
from mindroom.core.clock import Clock
from mindroom.core.content import identifier
from mindroom.core.errors import DatabaseUnavailable, MatrixFailure, TransactionRefused
from mindroom.core.ids import EventId, RoomId
from mindroom.core.metrics import Metrics
from mindroom.core.ports import HistoryPage, HistoryPort
from mindroom.core.values import GapState
from mindroom.db.engine import Tx
from mindroom.journal.gap_page import classify_gap_page
from mindroom.journal.records import Gap
from mindroom.journal.shape import as_objects
from mindroom.journal.stall import SyncRecoveryStallTracker

log = structlog.get_logger(__name__)

PAGE_EVENTS = 100
HOLD_SECONDS = 120.0
"""Lanes of a room wait for its gaps at most this long."""
HEARING_SECONDS = 120.0
"""Sync works as long as its newest admitted response was asked for within this time."""
MAX_ROOMS = 4
"""Rooms walked at a time."""


class GapWorker:
    """Walks the gaps of one principal."""

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
        self._walks: dict[RoomId, asyncio.Task[None]] = {}
        self._held_since: dict[RoomId, float] = {}

    async def hold_known(self) -> None:
        """Hold the rooms whose gaps an earlier process left, before anything is fed (B7)."""
        self._hold(await self._admitter.recovery.gaps())

    async def run(self) -> None:
        """Walk until cancelled. Raises FenceLost."""
        await self._gate.opened()
        self._held_since.clear()  # no page could be read until now
        backoff = Backoff(0.5, 20.0)
        try:
            while True:
                self._wake.clear()
                try:
                    self._collect()
                    gaps = await self._admitter.recovery.gaps()
                except DatabaseUnavailable:
                    await self._clock.sleep(backoff.next_seconds())
                    continue
                backoff.reset()
                if self._wake.is_set():
                    continue  # another gap was recorded while these were read, and its room must stay held
                self._hold(gaps)
                self._start(gaps)
                await self._rest(has_gaps=bool(gaps))
        finally:
            for walk in self._walks.values():
                walk.cancel()
            await asyncio.gather(*self._walks.values(), return_exceptions=True)

    def _collect(self) -> None:
        for room in [room for room, walk in self._walks.items() if walk.done()]:
            self._walks.pop(room).result()

    def _start(self, gaps: Iterable[Gap]) -> None:
        for gap in gaps:
            if gap.is_due and gap.room not in self._walks and len(self._walks) < MAX_ROOMS:
                self._walks[gap.room] = asyncio.ensure_future(self._walk_page(gap))

    async def _rest(self, *, has_gaps: bool) -> None:
        """Until a page is read, a gap is found, or the next look at back-offs and holds is due."""
        waiters: list[asyncio.Task[Any]] = [asyncio.ensure_future(self._wake.wait())]
        if has_gaps:
            waiters.append(asyncio.ensure_future(self._clock.sleep(1.0)))
        try:
            await asyncio.wait({*waiters, *self._walks.values()}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()

    def _hold(self, gaps: list[Gap]) -> None:
        now = self._clock.boottime()
        rooms = frozenset(gap.room for gap in gaps)
        self._held_since = {room: self._held_since.get(room, now) for room in rooms}
        held = frozenset(room for room, since in self._held_since.items() if now - since < HOLD_SECONDS)
        released = self._gate.held_rooms - held
        self._gate.hold(held, gaps=rooms)
        if released:
            self._released()

    async def _walk_page(self, gap: Gap) -> None:
        try:
            page = await self._history.messages_back(
                gap.room,
                start=gap.cursor or gap.from_token,
                stop=gap.to_token if gap.walk == 1 else None,
                limit=PAGE_EVENTS,
            )
        except MatrixFailure as failure:
            await self._failed(gap, failure)
            return
        await self._admit_page(gap, page)

    async def _admit_page(self, gap: Gap, page: HistoryPage) -> None:
        ids = [EventId(identifier(event.get("event_id"))) for event in as_objects(list(page.events))]
        known = await self._admitter.recovery.known(ids)
        read = classify_gap_page(page.events, hearer=self._admitter.hearer, gap=gap, known=known)
        after = SyncRecoveryStallTracker(gap).walked(read, end=page.end, events=len(page.events))

        async def body(tx: Tx) -> None:
            if not await self._admitter.recovery.advance(tx, gap, after):
                raise TransactionRefused("gap_page", "the gap moved on")
            await self._admitter.echoes_of(tx, read.admission.echoes)
            silenced = await self._admitter.silenced(tx, read.admission)
            admitted = await self._admitter.hear(tx, read.admission, silenced=silenced)
            tx.after_commit(lambda: self._admitter.heard(read.admission, admitted))

        try:
            await self._admitter.lease.run("gap_page" if after.state is GapState.REPAIRABLE else "gap_close", body)
        except TransactionRefused:
            return
        log.info("gap_page_admitted", room=gap.room, walk=gap.walk, events=len(page.events), state=after.state.value)
        self._note(gap, after.state, code="ceiling")

    async def _failed(self, gap: Gap, failure: MatrixFailure) -> None:
        """Network trouble never truncates a gap; it is tried again, no sooner than the server asked for (B3)."""
        tracker, code = SyncRecoveryStallTracker(gap), failure.errcode or failure.failure_class.value
        delay = backoff_seconds(gap.attempts + 1, first=0.5, cap=60.0, rng=self._rng)
        gives_up = tracker.gives_up(failure.failure_class, is_hearing=self._is_hearing())
        log.warning("gap_page_failed", room=gap.room, walk=gap.walk, failure=failure.failure_class.value)

        async def body(tx: Tx) -> bool:
            return await self._admitter.recovery.gap_failed(
                tx,
                gap,
                code=code,
                delay_seconds=max(delay, failure.retry_after_seconds or 0.0),
                is_refusal=tracker.is_refusal(failure.failure_class),
                gives_up=gives_up,
            )

        if await self._admitter.lease.run("gap_close" if gives_up else "gap_failed", body) and gives_up:
            self._note(gap, GapState.TRUNCATED, code=code)

    def _is_hearing(self) -> bool:
        heard_at = self._gate.heard_at
        return heard_at is not None and self._clock.boottime() - heard_at <= HEARING_SECONDS

    def _note(self, gap: Gap, state: GapState, *, code: str) -> None:
        if state is GapState.REPAIRABLE:
            return
        self._metrics.sync_limited.labels(state.value).inc()
        if state is GapState.TRUNCATED:
            log.warning(
                "matrix_sync_recovery_gap_skipped_after_stalled_rebuild",
                room=gap.room,
                since=gap.to_token,
                pages=gap.page,
                code=code,
            )

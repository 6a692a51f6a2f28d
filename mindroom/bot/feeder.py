"""Feeder: the only way into the lanes. Reads pending sources in order of work; a commit wakes it with the lowest key it
inserted, and its cursor goes back to that key. Sources already in a lane are skipped; rooms held for a gap stay unread.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable

import structlog

from mindroom.bot.gate import StartGate
from mindroom.core.backoff import Backoff
from mindroom.core.clock import Clock
from mindroom.core.errors import DatabaseUnavailable
from mindroom.core.ids import Receipt, RoomId
from mindroom.core.metrics import Metrics
from mindroom.core.values import OrderKey
from mindroom.journal.records import PendingSource
from mindroom.journal.store import Journal

log = structlog.get_logger(__name__)

PAGE = 500
MAX_HELD = 5_000
"""Receipts in memory at a time (C3)."""
MAX_HELD_IN_ROOM = MAX_HELD // 2
"""Of these one room may have so many: a room that settles nothing leaves the rest to others (C3)."""
TICKS_A_SECOND = 10
"""Sources that are due again in the same tick share one timer, so that any number in back-off needs little memory."""
SWEEP_SECONDS = 10.0
_START = (OrderKey(-1), -1)


class Feeder:
    """Hands pending sources of one principal to its lanes, each once until it is returned."""

    def __init__(
        self,
        journal: Journal,
        *,
        gate: StartGate,
        put: Callable[[PendingSource], None],
        clock: Clock,
        metrics: Metrics,
        name: str,
    ) -> None:
        self._journal = journal
        self._gate = gate
        self._put = put
        self._clock = clock
        self._metrics = metrics
        self._name = name
        self._cursor: tuple[OrderKey, int] = _START
        self._woken: tuple[OrderKey, int] | None = None
        """Lowest key told since the running read began; the read may have passed it."""
        self._wake = asyncio.Event()
        self._wake.set()
        self._held: dict[Receipt, RoomId] = {}
        self._in_room: Counter[RoomId] = Counter()
        self._full: dict[RoomId, tuple[OrderKey, int]] = {}
        """Rooms that hold their share, each with the place after which it is unread."""
        self._due: dict[int, OrderKey] = {}
        """The lowest key that is due in each tick."""
        self._room_in_memory = asyncio.Event()
        self._room_in_memory.set()
        self._tasks: asyncio.TaskGroup | None = None

    def wake(self, key: OrderKey) -> None:
        """There is pending work at `key` or later."""
        self._go_back((key, -1))

    def wake_all(self) -> None:
        """Anything may be readable now, for example because a room is no longer held."""
        self._go_back(_START)

    def _go_back(self, to: tuple[OrderKey, int]) -> None:
        self._cursor = min(self._cursor, to)
        self._woken = to if self._woken is None else min(self._woken, to)
        self._full = {room: min(after, to) for room, after in self._full.items()}
        self._wake.set()

    def returned(self, receipt: Receipt, key: OrderKey, due_in_seconds: float | None) -> None:
        """A source left the lanes: settled (None), or due again after some seconds."""
        if (room := self._held.pop(receipt, None)) is not None:
            self._leave(room)
        if due_in_seconds is not None and self._tasks is not None:
            self._wake_in(due_in_seconds, key, self._tasks)

    def _leave(self, room: RoomId) -> None:
        self._in_room[room] -= 1
        if self._in_room[room] <= MAX_HELD_IN_ROOM - PAGE and room in self._full:
            self._go_back(self._full.pop(room))
        if not self._in_room[room]:
            del self._in_room[room]
        if len(self._held) <= MAX_HELD - PAGE:
            self._room_in_memory.set()

    def settled(self, receipt: Receipt) -> None:
        """A source is settled."""
        self.returned(receipt, OrderKey(0), None)

    async def run(self) -> None:
        """Feed until cancelled, once the gate is open (B7)."""
        await self._gate.opened()
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._sweep())
            tasks.create_task(self._resume_back_offs())
            try:
                await self._feed()
            finally:
                self._tasks = None  # during a drain sources are still returned, and stay owed

    async def _feed(self) -> None:
        backoff = Backoff(0.25, 10.0)
        while True:
            await self._wake.wait()
            await self._room_in_memory.wait()
            self._wake.clear()
            try:
                await self._read_page()
                backoff.reset()
            except DatabaseUnavailable:
                self._wake.set()
                await self._clock.sleep(backoff.next_seconds())

    async def _read_page(self) -> None:
        asked, self._woken = self._cursor, None
        page = await self._journal.pending_page(*asked, held_rooms=self._unread_rooms(), limit=PAGE)
        if page:
            last = (page[-1].order_key, int(page[-1].receipt))
            # What was told while the page was read may lie before its end: then the next page begins there.
            self._cursor = last if self._woken is None else min(last, self._woken)
        self._hand_out(page)
        if len(page) == PAGE:
            self._wake.set()

    def _unread_rooms(self) -> list[RoomId]:
        return sorted(self._gate.held_rooms.union(self._full))

    def _is_known(self, source: PendingSource) -> bool:
        return source.receipt in self._held or source.room in self._full

    def _hand_out(self, page: list[PendingSource]) -> None:
        for source in page:
            if self._is_known(source):
                continue
            self._held[source.receipt] = source.room
            self._in_room[source.room] += 1
            if self._in_room[source.room] >= MAX_HELD_IN_ROOM:
                self._full[source.room] = (source.order_key, int(source.receipt))
            self._put(source)
        if len(self._held) > MAX_HELD - PAGE:
            self._room_in_memory.clear()

    def _wake_in(self, seconds: float, key: OrderKey, tasks: asyncio.TaskGroup) -> None:
        if seconds <= 0:
            self.wake(key)
            return
        tick = math.ceil((self._clock.boottime() + seconds) * TICKS_A_SECOND)
        if tick not in self._due:
            tasks.create_task(self._wake_at(tick))
        self._due[tick] = min(key, self._due.get(tick, key))

    async def _wake_at(self, tick: int) -> None:
        await self._clock.sleep(tick / TICKS_A_SECOND - self._clock.boottime())
        self.wake(self._due.pop(tick))

    async def _resume_back_offs(self) -> None:
        """Sources that an earlier process put in back-off: nobody's timer wakes for them any more."""
        backoff = Backoff(0.25, 10.0)
        while True:
            try:
                wait = (await self._journal.pending_summary()).next_attempt_seconds
            except DatabaseUnavailable:
                await self._clock.sleep(backoff.next_seconds())
                continue
            if wait is None:
                return
            await self._clock.sleep(wait)
            self.wake_all()

    async def _sweep(self) -> None:
        """Notice pending sources that no lane knows; finding one is a defect and is counted."""
        while True:
            await self._clock.sleep(SWEEP_SECONDS)
            try:
                summary = await self._journal.pending_summary()
                self._metrics.pending_events.labels(self._name).set(summary.pending)
                self._metrics.parked_events.labels(self._name).set(summary.parked)
                self._metrics.pending_oldest_seconds.labels(self._name).set(summary.oldest_seconds)
                if summary.pending and not self._wake.is_set():
                    await self._look_for_lost()
            except DatabaseUnavailable:
                continue

    async def _look_for_lost(self) -> None:
        """Read what lies before the cursor again, page by page. Whoever had a parked source retried, told nobody; and
        what failed before may be due a moment before its timer."""
        at = _START
        while at < self._cursor and self._room_in_memory.is_set():
            page = await self._journal.pending_page(*at, held_rooms=self._unread_rooms(), limit=PAGE)
            before = self._cursor
            found = [s for s in page if not self._is_known(s) and (s.order_key, int(s.receipt)) <= before]
            if lost := [s for s in found if not s.was_parked and not (s.failures and self._due)]:
                self._metrics.sweep_found.labels("pending").inc(len(lost))
                log.warning("sweep_found_pending", sources=len(lost))
            self._hand_out(found)
            if len(page) < PAGE:
                return
            at = (page[-1].order_key, int(page[-1].receipt))

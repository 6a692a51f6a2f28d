"""Hydrator: reads what was said in a conversation before we heard it, when a decision or a prompt needs it (A12).

One reader for each conversation; who comes meanwhile waits and finds its work done. Bounded in pages and in time: an
answer goes on with what is known. Never writes a receipt or a pending row, because a message that still waits in a gap
must become work there.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar
from weakref import WeakValueDictionary

import structlog

from mindroom.bot.forget import Forgetting
from mindroom.core.backoff import Backoff, backoff_seconds
from mindroom.core.clock import Clock
from mindroom.core.content import JsonObject
from mindroom.core.errors import MatrixFailure, MatrixFailureClass, RetryClass, TransactionRefused
from mindroom.core.ids import EventId, RoomId
from mindroom.core.metrics import Metrics
from mindroom.core.ports import HistoryPage, HistoryPort
from mindroom.core.values import Conversation, OrderKey
from mindroom.db.engine import Tx
from mindroom.db.lease import Lease
from mindroom.journal.gap_page import classify_gap_page
from mindroom.journal.hydration import Hydration, Reach, place
from mindroom.journal.projection import MessageProjection
from mindroom.journal.records import NO_TOKEN, Gap, Hearer, Original
from mindroom.journal.rooms import RoomBook

log = structlog.get_logger(__name__)
T = TypeVar("T")

PAGE_EVENTS: Final = 40
PAGES_AT_ONCE: Final = 5
"""So many pages are read at one need, the rest of a longer history later."""
BOUND_SECONDS: Final = 10.0
"""An answer waits at most this long for the homeserver's history."""
REST_SECONDS: Final = 60.0
_NOTHING: Final = HistoryPage((), None)
_MEMBERS_ONLY: Final = frozenset({"invited", "joined"})


@dataclass(frozen=True, slots=True)
class Hydrator:
    """Reads earlier messages for one principal."""

    lease: Lease
    hearer: Hearer
    book: RoomBook
    hydration: Hydration
    projection: MessageProjection
    forgetting: Forgetting
    history: HistoryPort
    clock: Clock
    metrics: Metrics
    _flights: WeakValueDictionary[Conversation, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    """A lock for each conversation that is being read."""
    _rng: random.Random = field(default_factory=random.Random)

    async def hydrate(self, conversation: Conversation) -> bool:
        """True when the conversation is known back to its start, or at least its newest part.

        Nothing is read of an encrypted room. Raises DatabaseUnavailable, FenceLost.
        """
        if not self._readable(conversation.room):
            return True
        async with self._flights.setdefault(conversation, asyncio.Lock()):
            reach = await self.hydration.reach(conversation)
            if reach is not None and reach.wants_reading:
                reach = await self._read(conversation, reach)
            return reach is not None and reach.is_known

    async def event(self, room: RoomId, event: EventId) -> JsonObject | None:
        """An event that the projection does not hold, or None. Stores nothing."""
        if not self._readable(room):
            return None
        try:
            return await self._in_time(lambda: self.history.event(room, event), self.clock.boottime() + BOUND_SECONDS)
        except MatrixFailure as failure:
            log.info("event_not_read", room=room, failure=failure.failure_class.value)
            return None

    def _readable(self, room: RoomId) -> bool:
        view = self.book.view(room)
        return view.is_known and not view.is_encrypted

    async def _read(self, conversation: Conversation, reach: Reach) -> Reach:
        deadline = self.clock.boottime() + BOUND_SECONDS
        last_page = reach.page + PAGES_AT_ONCE
        while reach.page < last_page and not reach.is_complete:
            try:
                page = await self._page(conversation, reach, deadline)
                rest_seconds = REST_SECONDS if reach.page + 1 == last_page else 0.0
                reach = await self._store(conversation, reach, page, rest_seconds=rest_seconds)
            except MatrixFailure as failure:
                await self._failed(conversation, reach, failure)
                return reach
            except TransactionRefused as refused:
                log.info("hydration_refused", room=conversation.room, reason=refused.reason)
                return reach
        self.metrics.hydrations.labels("complete" if reach.is_complete else "partial").inc()
        return reach

    # ---- asking --------------------------------------------------------------------------------------------------
    async def _page(self, conversation: Conversation, reach: Reach, deadline: float) -> HistoryPage:
        """The next page, newest first; the root of a thread stands at the end of its first one.

        What the homeserver refuses for good has nothing for us. Raises MatrixFailure when it is not there in time.
        """
        room, thread, start = conversation.room, conversation.thread, reach.start
        assert start is not None
        try:
            if thread is None:
                return await self._in_time(
                    lambda: self.history.messages_back(room, start=start, stop=None, limit=PAGE_EVENTS), deadline
                )
            is_first = reach.page == 0 and not reach.has_root
            root = [await self._in_time(lambda: self.history.event(room, thread), deadline)] if is_first else []
            page = await self._in_time(
                lambda: self.history.thread_back(room, thread, start=start, limit=PAGE_EVENTS), deadline
            )
            return replace(page, events=[*page.events, *root])
        except MatrixFailure as failure:
            if failure.retry_class is RetryClass.RETRY:
                raise
            return _NOTHING

    async def _in_time(self, request: Callable[[], Awaitable[T]], deadline: float) -> T:
        """Ask until there is an answer. Raises MatrixFailure: one for good, or the last one before the deadline."""
        backoff = Backoff(0.5, 5.0, self._rng)
        while True:
            try:
                return await self._before(request, deadline)
            except MatrixFailure as failure:
                delay = backoff.next_seconds()
                if failure.retry_class is not RetryClass.RETRY or self.clock.boottime() + delay >= deadline:
                    raise
            await self.clock.sleep(delay)

    async def _before(self, request: Callable[[], Awaitable[T]], deadline: float) -> T:
        asking = asyncio.ensure_future(request())
        sleeper = asyncio.ensure_future(self.clock.sleep(deadline - self.clock.boottime()))
        try:
            await asyncio.wait({asking, sleeper}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            raise MatrixFailure("history", MatrixFailureClass.NETWORK)
        finally:
            asking.cancel()
            sleeper.cancel()

    # ---- storing -------------------------------------------------------------------------------------------------
    async def _store(
        self, conversation: Conversation, reach: Reach, page: HistoryPage, *, rest_seconds: float
    ) -> Reach:
        """One page, one commit with its cursor. Raises TransactionRefused when the stay or the row is another."""
        room = conversation.room
        assert reach.start is not None
        behind = Gap(room, NO_TOKEN, reach.start, floor=0, epoch=reach.epoch, opened_ms=0, page=reach.page)
        read = classify_gap_page(page.events, hearer=self.hearer, gap=behind, known={})
        admission = read.admission
        cursor = None if read.is_beginning and self._starts_with_us(room) else page.end

        async def body(tx: Tx) -> int | None:
            standing, floors = await self.hydration.places(tx, room, [h.event_id for h in admission.heard])
            keys, passed = place(admission.heard, standing=standing, floors=floors, passed=reach.passed)
            if conversation.thread in keys:
                keys[conversation.thread] = OrderKey(0)
            if not await self.hydration.advance(
                tx, conversation, reach, passed=passed, cursor=cursor, rest_seconds=rest_seconds
            ):
                raise TransactionRefused("hydrate_chunk", "our stay or the gaps are others")
            keys |= {h.event_id: OrderKey(0) for h in admission.heard if h.event_id not in keys}
            new = [c for c in admission.projection if not isinstance(c, Original) or c.event_id not in standing]
            if (withdrawn := await self.projection.apply(tx, new, keys=keys)) is not None:
                await self.forgetting.forget(tx, withdrawn)
            return passed

        passed = await self.lease.run("hydrate_chunk", body)
        log.info("hydrated", room=room, events=len(page.events), complete=cursor is None)
        start = cursor or reach.start
        return replace(reach, page=reach.page + 1, start=start, passed=passed, is_complete=cursor is None)

    def _starts_with_us(self, room: RoomId) -> bool:
        """True where nothing said before our time is ours to read."""
        visibility = self.book.view(room).content("m.room.history_visibility")
        return visibility is not None and visibility.get("history_visibility") in _MEMBERS_ONLY

    async def _failed(self, conversation: Conversation, reach: Reach, failure: MatrixFailure) -> None:
        delay = backoff_seconds(reach.attempts + 1, first=5.0, cap=300.0, rng=self._rng)
        log.warning("hydration_failed", room=conversation.room, failure=failure.failure_class.value)
        self.metrics.hydrations.labels("failed").inc()

        async def body(tx: Tx) -> None:
            code = failure.errcode or failure.failure_class.value
            await self.hydration.failed(tx, conversation, epoch=reach.epoch, code=code, delay_seconds=delay)

        await self.lease.run("hydrate_failed", body)

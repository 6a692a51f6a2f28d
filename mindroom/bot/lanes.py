"""Lanes: first in, first decided, per (room, requester). A slot is held until the source has its verdict and stands in
its conversation's queue, never across a model call or a back-off (C1)."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from mindroom.core.errors import FenceLost
from mindroom.core.ids import PrincipalId
from mindroom.core.metrics import Metrics
from mindroom.core.values import ReceiptLaneKey
from mindroom.journal.records import PendingSource

log = structlog.get_logger(__name__)


@dataclass
class _Lane:
    waiting: deque[PendingSource] = field(default_factory=deque)


class Lanes:
    """All lanes of one principal; a lane lives only while it has something to do."""

    def __init__(self, principal: PrincipalId, *, metrics: Metrics, name: str) -> None:
        self._principal = principal
        self._decide: Callable[[PendingSource], Awaitable[None]] | None = None
        self._depth = metrics.lane_depth.labels(name)
        self._lanes: dict[ReceiptLaneKey, _Lane] = {}
        self._tasks: asyncio.TaskGroup | None = None

    def put(self, source: PendingSource) -> None:
        """Append to the source's lane."""
        key = ReceiptLaneKey(self._principal, source.room, source.sender)
        lane = self._lanes.get(key)
        self._depth.inc()
        if lane is not None:
            lane.waiting.append(source)
        elif self._tasks is not None:
            lane = self._lanes[key] = _Lane(deque([source]))
            self._tasks.create_task(self._serve(key, lane))

    async def run(self, decide: Callable[[PendingSource], Awaitable[None]]) -> None:
        """Host the lanes' tasks until cancelled; `decide` gives each source its verdict."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._decide, self._tasks = decide, tasks
                await asyncio.get_running_loop().create_future()
        finally:
            self._depth.set(0)  # what still waits stays owed, and the next service counts it anew

    async def _serve(self, key: ReceiptLaneKey, lane: _Lane) -> None:
        try:
            while lane.waiting and self._decide is not None:
                source = lane.waiting.popleft()
                self._depth.dec()
                await self._decide(source)
        except FenceLost:
            log.info("lane_stopped", room=key.room)
        finally:
            del self._lanes[key]

"""DeliveryLanes: which delivery is served when. One lane for each conversation, in order; timers for what is due later.

A lane stays at its first delivery until that is over or asks to be looked at again; no lane waits for another.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from mindroom.core.clock import Clock
from mindroom.core.errors import FenceLost
from mindroom.core.values import Conversation
from mindroom.outbox.records import Claimed, DeliveryKey

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A delivery in a lane; `claimed` when it may go out as it is."""

    conversation: Conversation
    key: DeliveryKey
    claimed: Claimed | None = None


@dataclass(eq=False)
class _Lane:
    waiting: deque[Waiting] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None


class DeliveryLanes:
    """Lanes and timers of one principal's outbox; `serve` returns the seconds until it wants to look again, or None."""

    def __init__(self, serve: Callable[[Waiting], Awaitable[float | None]], *, clock: Clock) -> None:
        self._serve = serve
        self._clock = clock
        self._lanes: dict[Conversation, _Lane] = {}
        self._timers: dict[DeliveryKey, asyncio.Task[None]] = {}
        self._known: set[DeliveryKey] = set()
        self._tasks: asyncio.TaskGroup | None = None

    def open(self, tasks: asyncio.TaskGroup) -> None:
        """From now on what is put is served, by tasks of this group."""
        self._tasks = tasks

    def close(self) -> None:
        """Nothing is served any more."""
        self._tasks = None

    def holds(self, key: DeliveryKey) -> bool:
        """True while the delivery waits in a lane or for its time."""
        return key in self._known

    def is_idle(self, conversation: Conversation) -> bool:
        """True when nothing of the conversation is being said."""
        return conversation not in self._lanes

    def put(self, entry: Waiting, *, delay_seconds: float = 0.0) -> None:
        """Serve it, not before `delay_seconds` from now; what waits for its time comes anew, what a lane has stays."""
        self.withdraw(entry.key)
        if self._tasks is None or entry.key in self._known:
            return
        self._known.add(entry.key)
        if delay_seconds <= 0:
            self._enqueue(entry, self._tasks)
        else:
            self._timers[entry.key] = self._tasks.create_task(self._later(entry, delay_seconds))

    def withdraw(self, key: DeliveryKey) -> None:
        """What waits for its time is forgotten; what a lane has is not."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
            self._known.discard(key)

    async def drain(self, *, seconds: float) -> None:
        """Wait until every lane is empty, at most `seconds`."""
        deadline = self._clock.boottime() + seconds
        while self._lanes and self._clock.boottime() < deadline:
            tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
            await asyncio.wait(tasks, timeout=max(0.01, deadline - self._clock.boottime()))

    async def _later(self, entry: Waiting, delay_seconds: float) -> None:
        await self._clock.sleep(delay_seconds)
        self._timers.pop(entry.key, None)
        if self._tasks is not None:
            self._enqueue(entry, self._tasks)

    def _enqueue(self, entry: Waiting, tasks: asyncio.TaskGroup) -> None:
        lane = self._lanes.setdefault(entry.conversation, _Lane())
        lane.waiting.append(entry)
        if lane.task is None:
            lane.task = tasks.create_task(self._work(entry.conversation, lane))

    async def _work(self, conversation: Conversation, lane: _Lane) -> None:
        try:
            while lane.waiting:
                entry = lane.waiting.popleft()
                again_seconds = await self._serve(entry)
                self._known.discard(entry.key)
                if again_seconds is not None:
                    self.put(Waiting(conversation, entry.key), delay_seconds=again_seconds)
        except FenceLost:
            log.info("outbox_lane_stopped", room=conversation.room)
        finally:
            if self._lanes.get(conversation) is lane:
                del self._lanes[conversation]

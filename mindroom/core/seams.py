"""Seams: typed, named places where listeners registered at composition take part in a run.

A `wrap` listener stands round a call, decides whether, when and how often it runs, and fails closed: its error is the
error of the call. A `notify` listener is told of something and can only fail open: its error is counted, the rest are
told, the caller never notices. A listener of `notify` is a plain function; what takes time belongs to a task of its
own. A registry belongs to one runtime; nothing here is global, and this module knows no event of its own.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from mindroom.core.clock import Clock
from mindroom.core.errors import MindRoomError

PayloadT = TypeVar("PayloadT")
ResultT = TypeVar("ResultT")


class SeamMode(StrEnum):
    """How listeners take part."""

    WRAP = "wrap"
    NOTIFY = "notify"


class OnFailure(StrEnum):
    """What a listener's own error does: CLOSED fails the call, OPEN is counted and passed over."""

    CLOSED = "closed"
    OPEN = "open"


class ListenerFault(StrEnum):
    """Closed metric label for what a listener of an OPEN event did wrong."""

    ERROR = "error"
    OVER_BUDGET = "over_budget"


@dataclass(frozen=True, slots=True)
class EventDef(Generic[PayloadT, ResultT]):
    """One seam. `budget_seconds` is a listener's own time for one event (None: no limit); a wrapped call is not in it.

    Raises ValueError when a wrap is not CLOSED or a notify is not OPEN.
    """

    name: str
    payload: type[PayloadT]
    result: type[ResultT]
    mode: SeamMode
    on_failure: OnFailure
    budget_seconds: float | None

    def __post_init__(self) -> None:
        wanted = OnFailure.CLOSED if self.mode is SeamMode.WRAP else OnFailure.OPEN
        if self.on_failure is not wanted:
            raise ValueError(f"{self.name}: {self.mode.value} fails {wanted.value}")


class BudgetSpent(MindRoomError):
    """A wrap listener used more time of its own than its event allows."""

    code = "budget"

    def __init__(self, event: str, budget_seconds: float) -> None:
        super().__init__(f"a listener of {event} used more than its {budget_seconds:g} s")


Call = Callable[[PayloadT], Awaitable[ResultT]]
WrapListener = Callable[[PayloadT, Call[PayloadT, ResultT]], Awaitable[ResultT]]
NotifyListener = Callable[[PayloadT], None]
FaultCounter = Callable[[str, ListenerFault], None]
"""Told the event's name and the fault; must not raise."""


class Seams:
    """The listeners of one runtime. `count_fault` is told of each fault of a notify listener."""

    def __init__(self, *, clock: Clock, count_fault: FaultCounter) -> None:
        self._clock = clock
        self._count_fault = count_fault
        self._wraps: dict[str, list[WrapListener[Any, Any]]] = {}
        self._notifies: dict[str, list[NotifyListener[Any]]] = {}

    def wrap(self, event: EventDef[PayloadT, ResultT], listener: WrapListener[PayloadT, ResultT]) -> None:
        """Register round `event`; the first registered is the outermost. Raises ValueError for another mode."""
        _require(event, SeamMode.WRAP)
        self._wraps.setdefault(event.name, []).append(listener)

    def listen(self, event: EventDef[PayloadT, None], listener: NotifyListener[PayloadT]) -> None:
        """Register for `event`; told in order of registration. Raises ValueError for another mode."""
        _require(event, SeamMode.NOTIFY)
        self._notifies.setdefault(event.name, []).append(listener)

    async def call(
        self, event: EventDef[PayloadT, ResultT], payload: PayloadT, *, innermost: Call[PayloadT, ResultT]
    ) -> ResultT:
        """Run `innermost` inside the listeners. Raises what they or it raise, and BudgetSpent."""
        _require(event, SeamMode.WRAP)
        call = innermost
        for listener in reversed(self._wraps.get(event.name, [])):
            call = self._layer(event, listener, call)
        return await call(payload)

    def notify(self, event: EventDef[PayloadT, None], payload: PayloadT) -> None:
        """Tell every listener; never raises for one of them."""
        _require(event, SeamMode.NOTIFY)
        for listener in self._notifies.get(event.name, []):
            began_seconds = self._clock.boottime()
            try:
                listener(payload)
            except Exception:
                self._count_fault(event.name, ListenerFault.ERROR)
            budget = event.budget_seconds
            if budget is not None and self._clock.boottime() - began_seconds > budget:
                self._count_fault(event.name, ListenerFault.OVER_BUDGET)

    def _layer(
        self,
        event: EventDef[PayloadT, ResultT],
        listener: WrapListener[PayloadT, ResultT],
        call: Call[PayloadT, ResultT],
    ) -> Call[PayloadT, ResultT]:
        budget = event.budget_seconds
        if budget is None:
            return lambda payload: listener(payload, call)

        async def run(payload: PayloadT) -> ResultT:
            async with _OwnTime(self._clock, event.name, budget) as own_time:

                async def proceed(inner: PayloadT) -> ResultT:
                    own_time.stop()
                    try:
                        return await call(inner)
                    finally:
                        own_time.start()

                return await listener(payload, proceed)

        return run


def _require(event: EventDef[Any, Any], mode: SeamMode) -> None:
    if event.mode is not mode:
        raise ValueError(f"{event.name} is a {event.mode.value} event")


class _OwnTime:
    """A stopwatch that interrupts its task when the time between starts and stops reaches the budget."""

    def __init__(self, clock: Clock, event: str, budget_seconds: float) -> None:
        self._clock = clock
        self._event = event
        self._budget_seconds = budget_seconds
        self._left_seconds = budget_seconds
        self._since_seconds = 0.0
        self._alarm: asyncio.Task[None] | None = None
        self._spent = False

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancels_before = task.cancelling()
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        # As in asyncio.timeout: only a cancellation that is ours alone becomes our error.
        ours = self._spent and self._task.uncancel() <= self._cancels_before
        if ours and isinstance(error, asyncio.CancelledError):
            raise BudgetSpent(self._event, self._budget_seconds) from error

    def start(self) -> None:
        self._since_seconds = self._clock.boottime()
        self._alarm = asyncio.get_running_loop().create_task(self._interrupt())

    def stop(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
            self._left_seconds -= self._clock.boottime() - self._since_seconds

    async def _interrupt(self) -> None:
        await self._clock.sleep(self._left_seconds)
        self._spent = True
        self._task.cancel()

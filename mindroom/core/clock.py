"""Time as a parameter: nothing else in the runtime reads a clock or sleeps (J1)."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol


class Clock(Protocol):
    """Wall time, boot time and sleeping, so that tests move all three together."""

    def now(self) -> datetime:
        """Wall time in UTC, only for what people read; ordering never uses it."""
        ...

    def boottime(self) -> float:
        """Seconds since boot, counting suspends: the base of every deadline."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return once `seconds` of this clock have passed."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def boottime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


class TestClock:
    """A clock that stands still until `advance`; sleepers wake in order of their deadline."""

    __test__ = False

    def __init__(self, start: datetime | None = None) -> None:
        self._start = start or datetime(2026, 1, 1, tzinfo=UTC)
        self._elapsed_seconds = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed_seconds)

    def boottime(self) -> float:
        return self._elapsed_seconds

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (self._elapsed_seconds + seconds, wake)
        self._sleepers.append(entry)
        try:
            await wake
        finally:
            if entry in self._sleepers:
                self._sleepers.remove(entry)

    async def advance(self, seconds: float) -> None:
        """Move time forward, waking each sleeper at its own moment."""
        target = self._elapsed_seconds + seconds
        while due := [entry for entry in self._sleepers if entry[0] <= target]:
            moment, wake = min(due, key=lambda entry: entry[0])
            self._elapsed_seconds = max(self._elapsed_seconds, moment)
            self._sleepers.remove((moment, wake))
            if not wake.done():
                wake.set_result(None)
            await asyncio.sleep(0)
        self._elapsed_seconds = target
        await asyncio.sleep(0)


async def within(clock: Clock, seconds: float, waited: asyncio.Future[Any]) -> bool:
    """True once `waited` is done, False when `seconds` of the clock have passed before; it is never cancelled."""
    sleeper = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({sleeper, waited}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        sleeper.cancel()
    return waited.done()

"""Signs of life while a turn runs: a read receipt, and typing while it lasts. Best effort, never journaled.

An answer that is ready within the delay is its own sign; that saves three requests for each message.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from mindroom.core.clock import Clock
from mindroom.core.errors import DependencyError
from mindroom.core.ids import EventId, RoomId
from mindroom.core.ports import AttentionPort
from mindroom.core.values import MessageTarget

TYPING_RENEWAL_SECONDS = 20.0
TYPING_SECONDS = 30.0
SIGN_DELAY_SECONDS = 0.3
"""As long as a placeholder waits."""

CLOSE_SECONDS = 2.0


class WorkingSigns:
    """Typing is per room: the first running turn starts it, the last one ends it."""

    def __init__(self, attention: AttentionPort, *, effect_seconds: Callable[[], float], clock: Clock) -> None:
        self._attention = attention
        self._effect_seconds = effect_seconds
        self._clock = clock
        self._running: Counter[RoomId] = Counter()
        self._typing: dict[RoomId, asyncio.Task[None]] = {}
        self._last: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def shown(self, target: MessageTarget, *, anchor: EventId) -> AsyncIterator[None]:
        """While the body runs, the room sees that its message was read and is being answered."""
        room = target.room
        reading = asyncio.create_task(self._read(target, anchor))
        self._running[room] += 1
        if self._running[room] == 1:
            self._typing[room] = asyncio.create_task(self._type(room))
        try:
            yield
        finally:
            reading.cancel()
            self._running[room] -= 1
            if self._running[room] == 0:
                del self._running[room]
                self._typing.pop(room).cancel()

    async def _read(self, target: MessageTarget, anchor: EventId) -> None:
        await self._clock.sleep(SIGN_DELAY_SECONDS)
        self._send(lambda: self._attention.read(target.room, anchor, thread=target.thread))

    def _send(self, sign: Callable[[], Awaitable[None]]) -> None:
        """On its way whatever becomes of the turn."""
        sending = asyncio.create_task(self._trusted(sign))
        self._last.add(sending)
        sending.add_done_callback(self._last.discard)

    async def _trusted(self, sign: Callable[[], Awaitable[None]]) -> None:
        """Nothing goes out while ownership is in doubt, nor longer than it lasts (H2)."""
        with suppress(DependencyError, TimeoutError):
            async with asyncio.timeout(self._effect_seconds()):
                await sign()

    async def _type(self, room: RoomId) -> None:
        await self._clock.sleep(SIGN_DELAY_SECONDS)
        try:
            while True:
                await self._trusted(lambda: self._attention.typing(room, seconds=TYPING_SECONDS))
                await self._clock.sleep(TYPING_RENEWAL_SECONDS)
        except asyncio.CancelledError:
            self._send(lambda: self._attention.typing(room, seconds=0))
            raise

    async def close(self) -> None:
        """Let the last signs go out; what is not gone in time is given up."""
        await asyncio.sleep(0)  # typing that was just ended says so first
        if self._last:
            _, late = await asyncio.wait(self._last, timeout=CLOSE_SECONDS)
            for sign in late:
                sign.cancel()

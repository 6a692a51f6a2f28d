"""Signs of life while a turn runs: a read receipt at its start, typing while it lasts. Best effort, never journaled."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mindroom.core.clock import Clock
from mindroom.core.ids import EventId, RoomId
from mindroom.core.ports import AttentionPort
from mindroom.core.values import MessageTarget

TYPING_RENEWAL_SECONDS = 20.0
TYPING_SECONDS = 30.0
TYPING_DELAY_SECONDS = 0.3
"""An answer that is ready sooner needs no sign; it saves two requests."""


class WorkingSigns:
    """Typing is per room: the first running turn starts it, the last one ends it."""

    def __init__(self, attention: AttentionPort, *, clock: Clock) -> None:
        self._attention = attention
        self._clock = clock
        self._running: Counter[RoomId] = Counter()
        self._typing: dict[RoomId, asyncio.Task[None]] = {}
        self._receipts: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def shown(self, target: MessageTarget, *, anchor: EventId) -> AsyncIterator[None]:
        """While the body runs, the room sees that its message was read and is being answered."""
        room = target.room
        receipt = asyncio.create_task(self._attention.read(room, anchor, thread=target.thread))
        self._receipts.add(receipt)
        receipt.add_done_callback(self._receipts.discard)
        self._running[room] += 1
        if self._running[room] == 1:
            self._typing[room] = asyncio.create_task(self._type(room))
        try:
            yield
        finally:
            self._running[room] -= 1
            if self._running[room] == 0:
                del self._running[room]
                self._typing.pop(room).cancel()

    async def _type(self, room: RoomId) -> None:
        await self._clock.sleep(TYPING_DELAY_SECONDS)
        try:
            while True:
                await self._attention.typing(room, seconds=TYPING_SECONDS)
                await self._clock.sleep(TYPING_RENEWAL_SECONDS)
        except asyncio.CancelledError:
            stop = asyncio.create_task(self._attention.typing(room, seconds=0))
            self._receipts.add(stop)
            stop.add_done_callback(self._receipts.discard)
            raise

    async def close(self) -> None:
        """Let the last signs go out."""
        if self._receipts:
            await asyncio.wait(self._receipts, timeout=2)

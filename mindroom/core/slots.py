"""Slots for work that waits on others: bounded in all and for each room, so that one room slows no other (C3)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from mindroom.core.ids import RoomId


class RoomSlots:
    """At most `total` at a time, of which one room has at most `per_room`; first come, first served within a room."""

    def __init__(self, *, total: int, per_room: int) -> None:
        self._all = asyncio.Semaphore(total)
        self._per_room = per_room
        self._rooms: WeakValueDictionary[RoomId, asyncio.Semaphore] = WeakValueDictionary()

    def is_full(self, room: RoomId) -> bool:
        """True when work of this room would have to wait."""
        own = self._rooms.get(room)
        return self._all.locked() or (own is not None and own.locked())

    @asynccontextmanager
    async def taken(self, room: RoomId) -> AsyncIterator[None]:
        """Holds one slot of the room; waits for it."""
        own = self._rooms.get(room)
        if own is None:
            own = self._rooms[room] = asyncio.Semaphore(self._per_room)
        async with own, self._all:
            yield

"""StartGate: nothing old goes out before the first response since the lease take is admitted (B7), and nothing at all
to a room whose encryption is unknown or on (E10). The SendGate of one principal's outbox."""

import asyncio
from collections.abc import Callable, Iterable

from mindroom.core.ids import Epoch, RoomId
from mindroom.journal.rooms import RoomBook
from mindroom.outbox.gate import Permission
from mindroom.outbox.records import Purpose


class StartGate:
    """Opens once; rooms with an open gap are held."""

    def __init__(self, book: RoomBook) -> None:
        self._book = book
        self._opened = asyncio.Event()
        self._held: frozenset[RoomId] = frozenset()
        self._listener: Callable[[], None] | None = None

    @property
    def is_open(self) -> bool:
        """True once a response has been admitted since the lease take."""
        return self._opened.is_set()

    @property
    def held_rooms(self) -> frozenset[RoomId]:
        """Rooms whose gap is still walked: neither their sources nor old deliveries move."""
        return self._held

    def open(self) -> None:
        """A response is admitted."""
        if not self._opened.is_set():
            self._opened.set()
            if self._listener is not None:
                self._listener()

    def when_opened(self, listener: Callable[[], None]) -> None:
        """Call `listener` at the moment the gate opens."""
        self._listener = listener

    def hold(self, rooms: frozenset[RoomId]) -> None:
        """These rooms, and only these, have a gap to wait for."""
        self._held = rooms

    def hold_also(self, rooms: Iterable[RoomId]) -> None:
        """Hold these as well: their gap has just been found."""
        self._held = self._held.union(rooms)

    async def opened(self) -> None:
        """Returns once the gate is open."""
        await self._opened.wait()

    def permission(self, room: RoomId, *, epoch: Epoch, purpose: Purpose) -> Permission:
        """Whether this may be said in this room now."""
        view = self._book.view(room)
        if view.membership is not None and self._book.epoch(room) != epoch:
            return Permission.RETIRE
        if room in self._held or not view.is_known:
            return Permission.WAIT
        if view.is_encrypted and purpose is not Purpose.NOTICE:
            return Permission.REFUSE
        return Permission.SEND

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
        self._gaps: frozenset[RoomId] = frozenset()
        self._heard_up_to: float | None = None
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

    def hold(self, rooms: frozenset[RoomId], *, gaps: frozenset[RoomId]) -> None:
        """`gaps` are all rooms with an open gap; those of `rooms` wait for it."""
        self._held, self._gaps = rooms, gaps

    def hold_also(self, rooms: Iterable[RoomId]) -> None:
        """Hold these as well: their gap has just been found."""
        found = frozenset(rooms)
        self._held, self._gaps = self._held | found, self._gaps | found

    def heard(self, *, asked_at: float) -> None:
        """All of a response that was asked for at that boot time is known."""
        self._heard_up_to = asked_at

    @property
    def heard_at(self) -> float | None:
        """Boot time at which the newest admitted response was asked for; None before the first."""
        return self._heard_up_to

    def heard_up_to(self, room: RoomId) -> float | None:
        """When the newest admitted response was asked for; None while the room has a gap (E4)."""
        return None if room in self._gaps else self._heard_up_to

    def is_tombstoned(self, room: RoomId) -> bool:
        """True when the room was upgraded (F4)."""
        return self._book.view(room).content("m.room.tombstone") is not None

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
        if view.is_encrypted and purpose not in (Purpose.NOTICE, Purpose.WITHDRAWAL):
            return Permission.REFUSE
        return Permission.SEND

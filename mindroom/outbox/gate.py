"""SendGate: whether a room may be written to now. Implemented by `bot`, which knows membership and trust."""

from enum import StrEnum
from typing import Protocol

from mindroom.core.ids import Epoch, RoomId
from mindroom.outbox.records import Purpose


class Permission(StrEnum):
    """What the worker does with a queued row."""

    SEND = "send"
    WAIT = "wait"
    """Something is not known yet; the row stays owed (B7, E10)."""
    RETIRE = "retire"
    """Its epoch has ended (F2)."""
    REFUSE = "refuse"
    """The room is encrypted and this is not the one sentence that may be said there in plain (E10)."""


class SendGate(Protocol):
    """Asked before each claim and before each re-send."""

    async def opened(self) -> None:
        """Returns once the first response since the lease take is admitted (B7)."""
        ...

    def heard_up_to(self, room: RoomId) -> float | None:
        """When the newest admitted response was asked for, on CLOCK_BOOTTIME; None while the room has a gap (E4)."""
        ...

    def is_tombstoned(self, room: RoomId) -> bool:
        """True when the room was upgraded and its successor takes what is owed here (F4)."""
        ...

    def permission(self, room: RoomId, *, epoch: Epoch, purpose: Purpose) -> Permission:
        """Whether this may be said in this room now."""
        ...

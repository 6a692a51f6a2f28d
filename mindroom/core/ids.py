"""Names for identities, so that no bare `str` or `int` crosses a package boundary."""

from typing import NewType
from uuid import UUID

EventId = NewType("EventId", str)
RoomId = NewType("RoomId", str)
UserId = NewType("UserId", str)
DeviceId = NewType("DeviceId", str)
SyncToken = NewType("SyncToken", str)
TxnId = NewType("TxnId", str)

PrincipalName = NewType("PrincipalName", str)
"""The key of a principal in the configuration."""
PrincipalId = NewType("PrincipalId", int)
"""The number of a principal inside the database."""
ProcessId = NewType("ProcessId", int)
Fence = NewType("Fence", int)
"""Grows with every lease take-over; a write under an older fence is refused."""
Epoch = NewType("Epoch", int)
"""Membership generation of a principal in a room."""
Receipt = NewType("Receipt", int)
TurnId = NewType("TurnId", UUID)
DeliveryId = NewType("DeliveryId", UUID)

THREAD_MAIN = EventId("")
"""How storage writes "the main timeline" where a thread root is expected."""

"""Signs of life: typing and read receipts. Best effort: a failure is counted by the client and goes no further."""

from contextlib import suppress
from typing import Final

from mindroom.core.content import JsonObject
from mindroom.core.errors import MatrixFailure
from mindroom.core.ids import EventId, RoomId
from mindroom.matrix.client import MatrixCall, MatrixClient
from mindroom.matrix.paths import client_path

_TIMEOUT_SECONDS: Final = 10.0


class MatrixAttention:
    """AttentionPort over one client; never raises a MatrixFailure."""

    def __init__(self, client: MatrixClient) -> None:
        self._client = client

    async def typing(self, room: RoomId, *, seconds: float) -> None:
        """Show typing for `seconds`; 0 stops it."""
        body: JsonObject = {"typing": seconds > 0}
        if seconds > 0:
            body["timeout"] = round(seconds * 1000)
        path = client_path("rooms", room, "typing", self._client.user_id)
        with suppress(MatrixFailure):
            await self._client.request(
                MatrixCall.TYPING, method="PUT", path=path, body=body, timeout_seconds=_TIMEOUT_SECONDS
            )

    async def read(self, room: RoomId, event: EventId, *, thread: EventId | None) -> None:
        """Mark `event` as read in its thread, or in the main timeline where `thread` is None."""
        # A root without answers yet stands in the main timeline only; servers refuse a receipt in the wrong thread.
        thread_id = "main" if thread is None or thread == event else thread
        path = client_path("rooms", room, "receipt", "m.read", event)
        with suppress(MatrixFailure):
            await self._client.request(
                MatrixCall.RECEIPT,
                method="POST",
                path=path,
                body={"thread_id": thread_id},
                timeout_seconds=_TIMEOUT_SECONDS,
            )

"""Joining and leaving rooms. Never moves an epoch: only sync does (F1)."""

from collections.abc import Sequence
from typing import Final

from mindroom.core.errors import MatrixFailure, MatrixFailureClass
from mindroom.core.ids import RoomId
from mindroom.matrix.client import MatrixCall, MatrixClient
from mindroom.matrix.paths import client_path

_JOIN_TIMEOUT_SECONDS: Final = 180.0
"""A join over federation fetches the room's state first."""
_ALREADY_OUT: Final = frozenset({MatrixFailureClass.FORBIDDEN, MatrixFailureClass.NOT_FOUND})


class MatrixMembership:
    """MembershipPort over one client; both calls are repeatable (E12)."""

    def __init__(self, client: MatrixClient) -> None:
        self._client = client

    async def join(self, room: RoomId, *, via: Sequence[str] = ()) -> None:
        """Join by room id or alias, asking the servers `via` for a room this server does not know.

        Raises MatrixFailure; FORBIDDEN means not invited, or banned.
        """
        # `server_name` is the older name of `via`.
        query = [(name, server) for server in via for name in ("via", "server_name")]
        await self._client.request(
            MatrixCall.JOIN,
            method="POST",
            path=client_path("join", room, query=query),
            body={},
            timeout_seconds=_JOIN_TIMEOUT_SECONDS,
        )

    async def leave(self, room: RoomId) -> None:
        """Leave, or reject an invite; not being in the room is success. Raises MatrixFailure."""
        try:
            await self._client.request(
                MatrixCall.LEAVE, method="POST", path=client_path("rooms", room, "leave"), body={}
            )
        except MatrixFailure as failure:
            if failure.failure_class not in _ALREADY_OUT:
                raise

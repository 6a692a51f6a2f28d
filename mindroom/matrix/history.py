"""Reading a room's timeline or a thread, page by page. Never decides where a gap ends (B2)."""

import json
from typing import Final

from mindroom.core.content import JsonObject
from mindroom.core.errors import MatrixFailure, MatrixFailureClass
from mindroom.core.ids import EventId, RoomId, SyncToken
from mindroom.core.ports import HistoryPage
from mindroom.core.text import storable
from mindroom.matrix.client import MatrixCall, MatrixClient
from mindroom.matrix.paths import client_path

_PAGE_EVENTS: Final = 100


class MatrixHistory:
    """HistoryPort and RoomReader over one client."""

    def __init__(self, client: MatrixClient) -> None:
        self._client = client

    async def messages_back(self, room: RoomId, *, start: SyncToken, stop: SyncToken | None, limit: int) -> HistoryPage:
        """One page, newest first; a chunk may be empty while `end` is not. Raises MatrixFailure.

        `stop` is the token at which the server ends the walk; without it the server also fills holes of its own copy.
        """
        query = [("dir", "b"), ("from", start), ("limit", str(limit))]
        if stop is not None:
            query.append(("to", stop))
        return await self._page(room, query, start=start)

    async def thread_back(self, room: RoomId, root: EventId, *, start: SyncToken, limit: int) -> HistoryPage:
        """One page of what relates to `root`, edits of its messages too, newest first. Raises MatrixFailure.

        Without a relation type, because a filter would hide those edits; the root itself is not among them.
        """
        query = [("dir", "b"), ("from", start), ("limit", str(limit)), ("recurse", "true")]
        answer = await self._client.request(
            MatrixCall.RELATIONS,
            method="GET",
            path=client_path("rooms", room, "relations", root, query=query, version="v1"),
        )
        return _page(MatrixCall.RELATIONS, answer.get("chunk"), answer.get("next_batch"))

    async def edits(self, room: RoomId, event: EventId, *, limit: int) -> HistoryPage:
        """The latest edits of an event, redacted ones not among them. Raises MatrixFailure."""
        query = [("dir", "b"), ("limit", str(limit))]
        answer = await self._client.request(
            MatrixCall.RELATIONS,
            method="GET",
            path=client_path("rooms", room, "relations", event, "m.replace", query=query, version="v1"),
        )
        return _page(MatrixCall.RELATIONS, answer.get("chunk"), answer.get("next_batch"))

    async def said_since(self, room: RoomId, *, start: SyncToken) -> HistoryPage:
        """One page of our own events after `start`, oldest first; filtered by the server (E4). Raises MatrixFailure."""
        own = json.dumps({"senders": [self._client.user_id]})
        query = [("dir", "f"), ("from", start), ("limit", str(_PAGE_EVENTS)), ("filter", own)]
        return await self._page(room, query, start=start)

    async def event(self, room: RoomId, event: EventId) -> JsonObject:
        """One event; a server that has it not asks the others of the room (E6). Raises MatrixFailure."""
        return await self._client.request(
            MatrixCall.GET_EVENT, method="GET", path=client_path("rooms", room, "event", event)
        )

    async def _page(self, room: RoomId, query: list[tuple[str, str]], *, start: SyncToken) -> HistoryPage:
        answer = await self._client.request(
            MatrixCall.MESSAGES, method="GET", path=client_path("rooms", room, "messages", query=query)
        )
        page = _page(MatrixCall.MESSAGES, answer.get("chunk"), answer.get("end"))
        # Some servers say "no more" with an empty page that leads to itself.
        return HistoryPage((), None) if not page.events and page.end == start else page


def _page(call: MatrixCall, chunk: object, end: object) -> HistoryPage:
    if not isinstance(chunk, list) or not isinstance(end, str | None) or storable(end or "") != (end or ""):
        raise MatrixFailure(call, MatrixFailureClass.NOT_JSON, status=200)
    events = tuple(event for event in chunk if isinstance(event, dict))
    return HistoryPage(events, SyncToken(end) if end else None)

"""A person's Matrix client over plain HTTP, as the demo's chat needs it: enter a room, say, hear.

Owns one login's requests and its place in the sync stream. Shares nothing with the hosted accounts' client, so that
what the chat shows is what any other client would show; never stores anything.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self
from uuid import uuid4

import aiohttp
from yarl import URL

from mindroom.core.clock import Clock
from mindroom.core.content import JsonObject
from mindroom.core.errors import MatrixFailure, MatrixFailureClass
from mindroom.core.ids import EventId, RoomId, UserId
from mindroom.matrix.failures import read_failure
from mindroom.matrix.paths import client_path

_SYNC_TIMEOUT_SECONDS: Final = 30
_CALL_TIMEOUT_SECONDS: Final = 60
_RETRY_SECONDS: Final = 0.5
_NOT_YET: Final = frozenset({MatrixFailureClass.NOT_FOUND, MatrixFailureClass.FORBIDDEN})
_PASSING: Final = frozenset(
    {
        MatrixFailureClass.NETWORK,
        MatrixFailureClass.SERVER,
        MatrixFailureClass.RATE_LIMITED,
        MatrixFailureClass.NOT_JSON,
    }
)
_FILTER: Final = {
    "presence": {"types": []},
    "account_data": {"types": []},
    "room": {
        "timeline": {"limit": 200, "types": ["m.room.message"]},
        "state": {"lazy_load_members": True},
        "ephemeral": {"types": []},
        "account_data": {"types": []},
    },
}


@dataclass(frozen=True, slots=True)
class HeardMessage:
    """One message event as the timeline has it; edits are messages of their own."""

    event_id: EventId
    sender: UserId
    content: JsonObject


@dataclass(eq=False)
class HumanClient:
    """One login; use as `async with`. Every call waits out an absence of the homeserver; the caller bounds the time."""

    url: str
    user_id: UserId
    clock: Clock
    access_token: str = field(repr=False)
    _since: str | None = None
    _session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_CALL_TIMEOUT_SECONDS))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def enter(self, alias: str) -> RoomId:
        """Join the room behind an alias, once it is made and we are invited. What was said before is skipped.

        Raises MatrixFailure when the homeserver refuses for another reason.
        """
        while True:
            await self._next_response()
            try:
                room: str = (await self._call("join", "POST", client_path("join", alias), body={}))["room_id"]
                return RoomId(room)
            except MatrixFailure as failure:
                if failure.failure_class not in _NOT_YET:
                    raise

    async def say(self, room: RoomId, text: str, *, thread: EventId | None) -> EventId:
        """Send a message into a thread, or into the room when `thread` is None. Raises MatrixFailure."""
        content: JsonObject = {"msgtype": "m.text", "body": text}
        if thread is not None:
            content["m.relates_to"] = {
                "rel_type": "m.thread",
                "event_id": thread,
                "is_falling_back": True,
                "m.in_reply_to": {"event_id": thread},
            }
        path = client_path("rooms", room, "send", "m.room.message", uuid4().hex)
        event: str = (await self._call("send", "PUT", path, body=content))["event_id"]
        return EventId(event)

    async def hear(self, room: RoomId) -> tuple[HeardMessage, ...]:
        """Messages of the next sync response, possibly none; half a minute is waited for one. Raises MatrixFailure."""
        joined = (await self._next_response()).get("rooms", {}).get("join", {})
        events = joined.get(room, {}).get("timeline", {}).get("events", [])
        return tuple(
            HeardMessage(EventId(event["event_id"]), UserId(event["sender"]), event["content"])
            for event in events
            if event["type"] == "m.room.message"
        )

    async def _next_response(self) -> Mapping[str, Any]:
        timeout = 0 if self._since is None else _SYNC_TIMEOUT_SECONDS * 1000
        query = [("timeout", str(timeout)), ("filter", json.dumps(_FILTER))]
        if self._since is not None:
            query.append(("since", self._since))
        answer = await self._call("sync", "GET", client_path("sync", query=query))
        self._since = answer["next_batch"]
        return answer

    async def _call(self, call: str, method: str, path: str, *, body: JsonObject | None = None) -> JsonObject:
        while True:
            try:
                return await self._attempt(call, method, path, body)
            except MatrixFailure as failure:
                if failure.failure_class not in _PASSING:
                    raise
            await self.clock.sleep(_RETRY_SECONDS)

    async def _attempt(self, call: str, method: str, path: str, body: JsonObject | None) -> JsonObject:
        assert self._session is not None, "the client is used inside `async with`"
        headers = {"Authorization": f"Bearer {self.access_token}"}
        target = URL(f"{self.url}{path}", encoded=True)
        try:
            async with self._session.request(method, target, json=body, headers=headers) as response:
                answer = await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise MatrixFailure(call, MatrixFailureClass.NETWORK) from error
        if response.status >= 400 or not isinstance(answer, dict):
            raise read_failure(call, status=response.status, document=answer, retry_after_header=None)
        return answer

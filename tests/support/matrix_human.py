"""A person with another Matrix client: the oracle of what a room shows.

Plain HTTP over aiohttp; imports nothing of the runtime and no Matrix library, so it cannot share their mistakes.
"""

import asyncio
import contextlib
import hashlib
import hmac
import html
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote
from uuid import uuid4

import aiohttp
from yarl import URL

Event = dict[str, Any]
T = TypeVar("T")
_SYNC_FILTER = {
    "presence": {"types": []},
    "room": {"include_leave": True, "timeline": {"limit": 5000}, "ephemeral": {"types": []}},
}


class MatrixRefused(Exception):
    """The homeserver answered with an error."""

    def __init__(self, call: str, status: int, body: Any) -> None:
        super().__init__(f"{call}: HTTP {status} {body}")
        self.status = status
        self.errcode: str = body.get("errcode", "") if isinstance(body, dict) else ""


@dataclass(frozen=True, slots=True)
class VisibleMessage:
    """A message as a client shows it now: its latest edit by its own sender, or empty when redacted."""

    event_id: str
    sender: str
    body: str
    content: Event
    """The newest content (of the last edit); empty when redacted."""
    thread: str | None
    edit_count: int
    redacted: bool


class MatrixHuman:
    """One logged-in account. Use as `async with`; `start_sync` collects what happens from then on and before."""

    def __init__(self, url: str, session: aiohttp.ClientSession, login: Event) -> None:
        self.url = url
        self.user_id: str = login["user_id"]
        self.device_id: str = login["device_id"]
        self.token: str = login["access_token"]
        self.rooms_invited: dict[str, list[Event]] = {}
        self.sync_was_limited = False
        """A gap in what was collected; `messages` has everything all the same."""
        self._session = session
        self._events: dict[str, list[Event]] = {}
        self._changed = asyncio.Condition()
        self._sync_task: asyncio.Task[None] | None = None

    # ---- account --------------------------------------------------------------------------------------------------
    @classmethod
    async def register(
        cls, url: str, *, shared_secret: str, username: str | None = None, password: str = "human-password"
    ) -> Self:
        """A new account through the shared-secret API, logged in; the name is random when none is given."""
        session = _session()
        try:
            path = "/_synapse/admin/v1/register"
            username = username or f"human-{uuid4().hex[:10]}"
            nonce = (await _request(session, url, "GET", path))["nonce"]
            text = "\0".join((nonce, username, password, "notadmin"))
            mac = hmac.new(shared_secret.encode(), text.encode(), hashlib.sha1).hexdigest()
            body = {"nonce": nonce, "username": username, "password": password, "admin": False, "mac": mac}
            return cls(url, session, await _request(session, url, "POST", path, body=body))
        except BaseException:
            await session.close()
            raise

    @classmethod
    async def login(cls, url: str, *, user: str, password: str = "human-password") -> Self:
        """A new device of an existing account; `user` is a localpart or a full id."""
        session = _session()
        try:
            body = {
                "type": "m.login.password",
                "identifier": {"type": "m.id.user", "user": user},
                "password": password,
            }
            return cls(url, session, await _request(session, url, "POST", "/_matrix/client/v3/login", body=body))
        except BaseException:
            await session.close()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the sync loop and the connections; harmless to repeat."""
        if self._sync_task is not None:
            self._sync_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sync_task
            self._sync_task = None
        await self._session.close()

    async def call(self, method: str, path: str, *, body: Any = None, query: dict[str, str] | None = None) -> Any:
        """Any client-server request below `/_matrix/client/v3`, authorized. Raises MatrixRefused."""
        return await _request(
            self._session, self.url, method, f"/_matrix/client/v3{path}", body=body, query=query, token=self.token
        )

    # ---- rooms ----------------------------------------------------------------------------------------------------
    async def create_room(
        self,
        *,
        name: str | None = None,
        invite: Sequence[str] = (),
        preset: str = "private_chat",
        is_direct: bool = False,
        initial_state: Sequence[Event] = (),
        extra: Event | None = None,
    ) -> str:
        """Room id of a new room; `extra` goes into the request as it is."""
        body = {"preset": preset, "invite": list(invite), "is_direct": is_direct, "initial_state": list(initial_state)}
        body |= ({"name": name} if name else {}) | (extra or {})
        room: str = (await self.call("POST", "/createRoom", body=body))["room_id"]
        return room

    async def join(self, room: str) -> None:
        """Join by id or alias."""
        await self.call("POST", f"/join/{_q(room)}", body={})

    async def leave(self, room: str) -> None:
        """Leave, or decline an invite."""
        await self.call("POST", f"/rooms/{_q(room)}/leave", body={})

    async def invite(self, room: str, user_id: str) -> None:
        """Invite somebody."""
        await self.call("POST", f"/rooms/{_q(room)}/invite", body={"user_id": user_id})

    async def kick(self, room: str, user_id: str) -> None:
        """Remove somebody who may come back."""
        await self.call("POST", f"/rooms/{_q(room)}/kick", body={"user_id": user_id})

    async def members(self, room: str) -> set[str]:
        """Who is joined."""
        return set((await self.call("GET", f"/rooms/{_q(room)}/joined_members"))["joined"])

    async def state(self, room: str) -> list[Event]:
        """All current state events."""
        found: list[Event] = await self.call("GET", f"/rooms/{_q(room)}/state")
        return found

    # ---- saying ---------------------------------------------------------------------------------------------------
    async def send_event(self, room: str, kind: str, content: Event, *, txn_id: str | None = None) -> str:
        """Event id of a sent event; the same `txn_id` again gives the same event."""
        path = f"/rooms/{_q(room)}/send/{kind}/{_q(txn_id or uuid4().hex)}"
        event_id: str = (await self.call("PUT", path, body=content))["event_id"]
        return event_id

    async def send(
        self,
        room: str,
        text: str,
        *,
        thread: str | None = None,
        reply_to: str | None = None,
        mentions: Iterable[str] | None = None,
        msgtype: str = "m.text",
        txn_id: str | None = None,
    ) -> str:
        """A message. `mentions` None leaves m.mentions out; ids in it become pills in front of the text."""
        content = _text_content(text, mentions, msgtype) | _relation(thread, reply_to)
        return await self.send_event(room, "m.room.message", content, txn_id=txn_id)

    async def edit(self, room: str, event_id: str, text: str, *, mentions: Iterable[str] | None = None) -> str:
        """Replace the text of one's own message."""
        new = _text_content(text, mentions, "m.text")
        content = new | {
            "body": f"* {new['body']}",
            "m.new_content": new,
            "m.relates_to": {"rel_type": "m.replace", "event_id": event_id},
        }
        return await self.send_event(room, "m.room.message", content)

    async def react(self, room: str, event_id: str, key: str) -> str:
        """A reaction."""
        relation = {"rel_type": "m.annotation", "event_id": event_id, "key": key}
        return await self.send_event(room, "m.reaction", {"m.relates_to": relation})

    async def redact(self, room: str, event_id: str, *, reason: str = "") -> str:
        """Remove a message; the redaction's event id."""
        path = f"/rooms/{_q(room)}/redact/{_q(event_id)}/{uuid4().hex}"
        redaction: str = (await self.call("PUT", path, body={"reason": reason} if reason else {}))["event_id"]
        return redaction

    # ---- hearing --------------------------------------------------------------------------------------------------
    async def start_sync(self) -> None:
        """Returns once the first response is collected, so nothing sent afterwards is missed."""
        since = await self._sync_once(None, timeout_ms=0)
        self._sync_task = asyncio.create_task(self._sync_for_ever(since))

    def seen(self, room: str) -> list[Event]:
        """Timeline events collected so far, oldest first."""
        return list(self._events.get(room, []))

    async def wait_for(self, room: str, predicate: Callable[[Event], bool], *, timeout_seconds: float = 20) -> Event:
        """The first event of the room, past or to come, that satisfies. Raises AssertionError with what was seen."""
        return await self._wait(
            lambda: next((event for event in self.seen(room) if predicate(event)), None), room, timeout_seconds
        )

    async def wait_for_message(
        self, room: str, predicate: Callable[[VisibleMessage], bool], *, timeout_seconds: float = 20
    ) -> VisibleMessage:
        """The first message that looks so now, edits applied. Raises AssertionError with what was seen."""
        return await self._wait(
            lambda: next((message for message in visible(self.seen(room)) if predicate(message)), None),
            room,
            timeout_seconds,
        )

    async def wait_for_invite(self, room: str, *, timeout_seconds: float = 20) -> None:
        """Return once invited to the room."""
        await self._wait(lambda: self.rooms_invited.get(room), room, timeout_seconds)

    async def messages(self, room: str) -> list[Event]:
        """The room's whole history from the homeserver, oldest first, independent of the sync loop."""
        events: list[Event] = []
        query = {"dir": "b", "limit": "1000"}
        while True:
            page = await self.call("GET", f"/rooms/{_q(room)}/messages", query=query)
            events.extend(page["chunk"])
            if "end" not in page:
                return events[::-1]
            query["from"] = page["end"]

    async def room_view(self, room: str) -> list[VisibleMessage]:
        """The room as this client would show it, from the whole history."""
        return visible(await self.messages(room))

    async def _wait(self, probe: Callable[[], T | None], room: str, timeout_seconds: float) -> T:
        if self._sync_task is None:
            raise RuntimeError("call start_sync first")
        try:
            async with asyncio.timeout(timeout_seconds), self._changed:
                while (found := probe()) is None:
                    self._raise_if_sync_failed()
                    await self._changed.wait()
                return found
        except TimeoutError:
            shown = "\n".join(_line(event) for event in self.seen(room)[-30:]) or "(nothing)"
            raise AssertionError(f"not seen in {room} within {timeout_seconds} s; the room holds:\n{shown}") from None

    def _raise_if_sync_failed(self) -> None:
        if self._sync_task is not None and self._sync_task.done():
            self._sync_task.result()

    async def _sync_for_ever(self, since: str) -> None:
        try:
            while True:
                try:
                    since = await self._sync_once(since, timeout_ms=30_000)
                except (aiohttp.ClientError, TimeoutError):  # the homeserver is being killed or cut off by a test
                    await asyncio.sleep(0.1)
        finally:
            async with self._changed:
                self._changed.notify_all()

    async def _sync_once(self, since: str | None, *, timeout_ms: int) -> str:
        query = {"timeout": str(timeout_ms), "filter": json.dumps(_SYNC_FILTER)} | ({"since": since} if since else {})
        answer = await self.call("GET", "/sync", query=query)
        async with self._changed:
            self._collect(answer.get("rooms", {}), first=since is None)
            self._changed.notify_all()
        token: str = answer["next_batch"]
        return token

    def _collect(self, rooms: Event, *, first: bool) -> None:
        for section in ("join", "leave"):
            for room, part in rooms.get(section, {}).items():
                timeline = part.get("timeline", {})
                self._events.setdefault(room, []).extend(timeline.get("events", []))
                self.sync_was_limited |= bool(timeline.get("limited")) and not first
                self.rooms_invited.pop(room, None)
        for room, part in rooms.get("invite", {}).items():
            self.rooms_invited[room] = part["invite_state"]["events"]


def visible(events: Iterable[Event]) -> list[VisibleMessage]:
    """The messages a client would show for these events, in timeline order: edits applied, redactions emptied."""
    events = list(events)
    redacted = {target for event in events if event["type"] == "m.room.redaction" and (target := _redacts(event))}
    edits: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        if _is_edit(event) and event["event_id"] not in redacted:
            edits.setdefault((event["content"]["m.relates_to"]["event_id"], event["sender"]), []).append(event)
    return [
        _visible(event, edits.get((event["event_id"], event["sender"]), []), redacted=event["event_id"] in redacted)
        for event in events
        if event["type"] == "m.room.message" and "state_key" not in event and not _is_edit(event)
    ]


def _visible(event: Event, edits: Sequence[Event], *, redacted: bool) -> VisibleMessage:
    redacted = redacted or "body" not in event["content"]
    content = edits[-1]["content"].get("m.new_content", {}) if edits else event["content"]
    relation = event["content"].get("m.relates_to", {})
    return VisibleMessage(
        event_id=event["event_id"],
        sender=event["sender"],
        body="" if redacted else content.get("body", ""),
        content={} if redacted else content,
        thread=relation.get("event_id") if relation.get("rel_type") == "m.thread" else None,
        edit_count=len(edits),
        redacted=redacted,
    )


def _is_edit(event: Event) -> bool:
    relation = event["content"].get("m.relates_to")
    return isinstance(relation, dict) and relation.get("rel_type") == "m.replace"


def _redacts(event: Event) -> str | None:
    target: str | None = event.get("redacts") or event["content"].get("redacts")
    return target


def _q(part: str) -> str:
    return quote(part, safe="")


def _line(event: Event) -> str:
    return f"{event['sender']} {event['type']} {json.dumps(event['content'], ensure_ascii=False)[:200]}"


def _text_content(text: str, mentions: Iterable[str] | None, msgtype: str) -> Event:
    if mentions is None:
        return {"msgtype": msgtype, "body": text}
    users = list(mentions)
    content: Event = {"msgtype": msgtype, "body": " ".join((*users, text)), "m.mentions": {"user_ids": users}}
    if not users:
        return content | {"m.mentions": {}}
    pills = " ".join(f'<a href="https://matrix.to/#/{_q(user)}">{html.escape(user)}</a>' for user in users)
    return content | {"format": "org.matrix.custom.html", "formatted_body": f"{pills} {html.escape(text)}"}


def _relation(thread: str | None, reply_to: str | None) -> Event:
    if thread is not None:
        answered = {"event_id": reply_to or thread}
        relation: Event = {"rel_type": "m.thread", "event_id": thread, "m.in_reply_to": answered}
        return {"m.relates_to": relation | {"is_falling_back": reply_to is None}}
    return {"m.relates_to": {"m.in_reply_to": {"event_id": reply_to}}} if reply_to is not None else {}


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=60))


async def _request(
    session: aiohttp.ClientSession,
    url: str,
    method: str,
    path: str,
    *,
    body: Any = None,
    query: dict[str, str] | None = None,
    token: str | None = None,
) -> Any:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    target = URL(f"{url}{path}", encoded=True).update_query(query or {})
    async with session.request(method, target, json=body, headers=headers) as response:
        answer = await response.json(content_type=None)
        if response.status >= 400:
            raise MatrixRefused(f"{method} {path}", response.status, answer)
        return answer

"""A homeserver on loopback whose every call can be told to misbehave: error, HTML, reset, hang, cut body, lost reply.

    async with ScriptedHomeserver() as server:
        server.script("send", lost_reply(), error(429, "M_LIMIT_EXCEEDED", retry_after_ms=1500))

Calls have the names of `mindroom.matrix.client.MatrixCall`; a scripted fault serves one call, in order, and calls
without one are answered from `server.world`. It must never talk to anything and knows nothing of our runtime.
"""

import asyncio
import json
import re
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

from aiohttp import web

from tests.support.homeserver_world import Json, Login, MatrixProblem, World


@dataclass(frozen=True)
class Misbehaviour:
    """One scripted answer. With `effect` the call does its work first; with no `status` nothing is answered."""

    status: int | None = None
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    effect: bool = False
    hang: bool = False
    cut: bool = False


def answer(status: int, body: bytes | Any, *, content_type: str = "application/json", **headers: str) -> Misbehaviour:
    """Any status with any body; what is not bytes is sent as JSON. Header names are written with underscores."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Misbehaviour(status=status, body=raw, headers={"Content-Type": content_type, **named})


def error(status: int, errcode: str, **fields: Any) -> Misbehaviour:
    """Matrix error JSON."""
    return answer(status, {"errcode": errcode, "error": "scripted", **fields})


def html(status: int, **headers: str) -> Misbehaviour:
    """What a proxy says in the homeserver's place."""
    return answer(status, b"<html><body>Bad gateway</body></html>", content_type="text/html", **headers)


def reset() -> Misbehaviour:
    """The connection breaks before the call is looked at."""
    return Misbehaviour()


def hang() -> Misbehaviour:
    """No answer at all until the client gives up."""
    return Misbehaviour(hang=True)


def lost_reply() -> Misbehaviour:
    """The call takes effect and the connection breaks."""
    return Misbehaviour(effect=True)


def truncated() -> Misbehaviour:
    """The call takes effect, its answer ends in the middle."""
    return Misbehaviour(effect=True, cut=True)


@dataclass(frozen=True)
class Seen:
    """One request as it arrived."""

    call: str
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        """The JSON it carried, None for none."""
        return json.loads(self.raw) if self.raw else None


class ScriptedHomeserver:
    """The server; use as an async context manager."""

    def __init__(self, world: World | None = None) -> None:
        self.world = world or World()
        self.url = ""
        self.seen: list[Seen] = []
        self._script: dict[str, deque[Misbehaviour]] = defaultdict(deque)
        self._changed = asyncio.Event()
        self._arrived = asyncio.Event()
        self._stopping = asyncio.Event()
        self._runner: web.AppRunner | None = None

    @property
    def server_name(self) -> str:
        """The part of its user ids after the colon."""
        return self.world.server_name

    @property
    def registration_shared_secret(self) -> str:
        """What the admin register call is signed with."""
        return self.world.shared_secret

    def script(self, call: str, *misbehaviours: Misbehaviour) -> None:
        """Queue misbehaviours for the next calls of that name."""
        self._script[call].extend(misbehaviours)

    async def arrival(self, call: str) -> Seen:
        """The newest request of that name, as soon as there is one."""
        while not self.calls(call):
            await self._arrived.wait()
        return self.calls(call)[-1]

    def calls(self, call: str) -> list[Seen]:
        """The requests of one name, in order of arrival."""
        return [seen for seen in self.seen if seen.call == call]

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=1.0, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        assert self._runner is not None
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        call, arguments = _call_of(request.method, request.raw_path.partition("?")[0])
        seen = Seen(
            call, request.method, request.path, dict(request.query), dict(request.headers), await request.read()
        )
        self.seen.append(seen)
        self._arrived.set()
        self._arrived = asyncio.Event()
        planned = self._script[call].popleft() if self._script[call] else None
        if planned is None:
            return _respond(*await self._serve(call, request, arguments, seen.body))
        if planned.effect:
            status, document = await self._serve(call, request, arguments, seen.body)
            return await self._cut(request, status, document) if planned.cut else self._break(request)
        if planned.hang:
            await self._stopping.wait()
        if planned.status is None:
            return self._break(request)
        return web.Response(status=planned.status, body=planned.body, headers=planned.headers)

    def _break(self, request: web.Request) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    async def _cut(self, request: web.Request, status: int, document: Json) -> web.StreamResponse:
        raw = json.dumps(document).encode()
        response = web.StreamResponse(status=status, headers={"Content-Length": str(len(raw) + 10)})
        await response.prepare(request)
        await response.write(raw[: len(raw) // 2])
        return self._break(request) if request.transport is not None else response

    async def _serve(self, call: str, request: web.Request, arguments: list[str], body: Any) -> tuple[int, Json]:
        try:
            if call in _PUBLIC:
                return 200, _PUBLIC[call](self.world, body or {}, arguments)
            login = self._login(request)
            if call == "sync":
                return 200, await self._sync(login, request)
            result = _PRIVATE[call](self.world, login, arguments, body or {}, dict(request.query))
        except MatrixProblem as problem:
            return problem.status, problem.body
        self._changed.set()
        self._changed = asyncio.Event()
        return 200, result

    def _login(self, request: web.Request) -> Login:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Bearer" or not token:
            raise MatrixProblem(401, "M_MISSING_TOKEN")
        if token not in self.world.tokens:
            raise MatrixProblem(401, "M_UNKNOWN_TOKEN", soft_logout=False)
        return self.world.tokens[token]

    async def _sync(self, login: Login, request: web.Request) -> Json:
        query = request.query
        since = _position(query["since"]) if "since" in query else None
        full_state = query.get("full_state") == "true"
        limit = json.loads(query.get("filter", "{}")).get("room", {}).get("timeline", {}).get("limit", 10)
        try:
            async with asyncio.timeout(int(query.get("timeout", "0")) / 1000):
                while True:
                    response = self.world.sync(login, since=since, full_state=full_state, limit=limit)
                    if "rooms" in response or since is None or full_state:
                        return response
                    await self._changed.wait()
        except TimeoutError:
            return self.world.sync(login, since=since, full_state=full_state, limit=limit)


def _respond(status: int, document: Json) -> web.Response:
    return web.json_response(document, status=status)


def _position(token: str) -> int:
    if not re.fullmatch(r"s\d+", token):
        raise MatrixProblem(400, "M_UNKNOWN")
    return int(token[1:])


_ROUTES: tuple[tuple[str, str, str], ...] = (
    ("GET", r"/_synapse/admin/v1/register", "register_nonce"),
    ("POST", r"/_synapse/admin/v1/register", "register"),
    ("POST", r"/login", "login"),
    ("GET", r"/capabilities", "capabilities"),
    ("GET", r"/account/whoami", "whoami"),
    ("GET", r"/sync", "sync"),
    ("PUT", r"/rooms/([^/]+)/send/([^/]+)/([^/]+)", "send"),
    ("GET", r"/rooms/([^/]+)/messages", "messages"),
    ("GET", r"/rooms/([^/]+)/relations/([^/]+)", "relations"),
    ("POST", r"/join/([^/]+)", "join"),
    ("POST", r"/rooms/([^/]+)/leave", "leave"),
    ("POST", r"/rooms/([^/]+)/invite", "invite"),
    ("GET", r"/rooms/([^/]+)/event/([^/]+)", "get_event"),
    ("PUT", r"/rooms/([^/]+)/typing/([^/]+)", "typing"),
    ("POST", r"/rooms/([^/]+)/receipt/([^/]+)/([^/]+)", "receipt"),
    ("GET", r"/rooms/([^/]+)/state/([^/]+)/([^/]*)", "get_state"),
    ("GET", r"/profile/([^/]+)/displayname", "profile_get"),
    ("PUT", r"/profile/([^/]+)/displayname", "profile_set"),
    ("GET", r"/directory/room/([^/]+)", "resolve_alias"),
    ("POST", r"/createRoom", "create_room"),
)
_CLIENT_API = re.compile(r"/_matrix/client/v[13](?=/)")


def _call_of(method: str, raw_path: str) -> tuple[str, list[str]]:
    path = _CLIENT_API.sub("", raw_path, count=1)
    for wanted, pattern, call in _ROUTES:
        if method == wanted and (found := re.fullmatch(pattern, path)):
            return call, [unquote(part) for part in found.groups()]
    raise web.HTTPNotFound(text=json.dumps({"errcode": "M_UNRECOGNIZED"}), content_type="application/json")


def _messages(world: World, login: Login, arguments: list[str], _body: Json, query: dict[str, str]) -> Json:
    room = world.joined_room(arguments[0], login.user)
    if query["dir"] == "f":
        senders = json.loads(query["filter"])["senders"]
        return world.messages_forward(room, start=_position(query["from"]), limit=int(query["limit"]), senders=senders)
    stop = _position(query["to"]) if "to" in query else 0
    return world.messages_back(room, start=_position(query["from"]), stop=stop, limit=int(query["limit"]))


def _get_state(world: World, login: Login, arguments: list[str], _body: Json, query: dict[str, str]) -> Json:
    room = world.joined_room(arguments[0], login.user)
    found = room.state.get((arguments[1], arguments[2]))
    if found is None:
        raise MatrixProblem(404, "M_NOT_FOUND")
    return found[1] if query.get("format") == "event" else found[1]["content"]


def _relations(world: World, login: Login, arguments: list[str], _body: Json, query: dict[str, str]) -> Json:
    room = world.joined_room(arguments[0], login.user)
    start = _position(query["from"])
    return world.relations_back(room, arguments[1], start=start, limit=int(query["limit"]))


def _get_event(world: World, login: Login, arguments: list[str], _body: Json, _query: dict[str, str]) -> Json:
    room = world.joined_room(arguments[0], login.user)
    found = next((event for _, event in room.timeline if event["event_id"] == arguments[1]), None)
    if found is None:
        raise MatrixProblem(404, "M_NOT_FOUND")
    return found


def _send(world: World, login: Login, arguments: list[str], body: Json, _query: dict[str, str]) -> Json:
    room = world.joined_room(arguments[0], login.user)
    return {"event_id": world.send(login, room, arguments[1], arguments[2], body)}


def _join(world: World, login: Login, arguments: list[str], _body: Json, _query: dict[str, str]) -> Json:
    room = world.room(arguments[0])
    world.join(room, login.user)
    return {"room_id": room.room_id}


def _leave(world: World, login: Login, arguments: list[str], _body: Json, _query: dict[str, str]) -> Json:
    world.leave(world.room(arguments[0]), login.user)
    return {}


def _invite(world: World, login: Login, arguments: list[str], body: Json, _query: dict[str, str]) -> Json:
    world.invite(world.joined_room(arguments[0], login.user), login.user, body["user_id"])
    return {}


def _in_room(world: World, login: Login, arguments: list[str], _body: Json, _query: dict[str, str]) -> Json:
    world.joined_room(arguments[0], login.user)
    return {}


def _whoami(_world: World, login: Login, _arguments: list[str], _body: Json, _query: dict[str, str]) -> Json:
    return {"user_id": login.user, "device_id": login.device}


def _profile(world: World, _login: Login, arguments: list[str], _body: Json, _query: dict[str, str]) -> Json:
    return {"displayname": world.display_names[arguments[0]]}


def _set_profile(world: World, login: Login, _arguments: list[str], body: Json, _query: dict[str, str]) -> Json:
    world.display_names[login.user] = body["displayname"]
    return {}


def _create_room(world: World, login: Login, _arguments: list[str], body: Json, _query: dict[str, str]) -> Json:
    return {"room_id": world.create_room(login.user, body)}


def _capabilities(world: World, _login: Login, _arguments: list[str], _body: Json, _query: dict[str, str]) -> Json:
    return {"capabilities": {"m.room_versions": {"default": world.default_room_version}}}


_PUBLIC: dict[str, Callable[[World, Json, list[str]], Json]] = {
    "register_nonce": lambda world, _body, _arguments: world.nonce(),
    "register": lambda world, body, _arguments: world.register(body),
    "login": lambda world, body, _arguments: world.log_in(body),
    "resolve_alias": lambda world, _body, arguments: {"room_id": world.room(arguments[0]).room_id, "servers": []},
}
_PRIVATE: dict[str, Callable[[World, Login, list[str], Json, dict[str, str]], Json]] = {
    "whoami": _whoami,
    "messages": _messages,
    "relations": _relations,
    "send": _send,
    "join": _join,
    "leave": _leave,
    "invite": _invite,
    "typing": _in_room,
    "receipt": _in_room,
    "get_event": _get_event,
    "get_state": _get_state,
    "profile_get": _profile,
    "profile_set": _set_profile,
    "create_room": _create_room,
    "capabilities": _capabilities,
}

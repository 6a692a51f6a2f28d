"""A whole Runtime in the test's own process, against a real homeserver and a real database.

    async with open_house(synapse, dsn, path, agents=[AgentSetup("assistant")]) as house:
        await house.start()
        room = await house.room("assistant")
        await house.human.send(room, "hello")

A House is one installation: one database, one data folder, agents and rooms with names of its own (the homeserver is
shared by all tests), and people. It may start, stop and start again. What it tells is read from the homeserver and from
SQL, never from the runtime's objects; only `metrics` is.
"""

import asyncio
import json
import os
import secrets
import shutil
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import asyncpg

from mindroom.app import Runtime, RuntimeSettings, compose
from mindroom.config import parse_config
from mindroom.core.content import DELIVERY_KEY
from mindroom.core.metrics import Metrics
from mindroom.db.embedded import EmbeddedPostgres
from mindroom.db.folder import DataFolder
from mindroom.matrix.local_homeserver import LocalHomeserver
from mindroom.matrix.sync import TIMELINE_LIMIT
from tests.support.bouncer import program_dsn
from tests.support.matrix_human import Event, MatrixHuman, VisibleMessage

T = TypeVar("T")

SECRET_VARIABLE = "MINDROOM_TEST_REGISTRATION_SECRET"
TEMPLATE = "mindroom_template"
"""The migrated database that `tests/conftest.py` keeps."""
STOP_SECONDS = 30.0
OFFLINE: Mapping[str, Any] = {"provider": "offline"}


@dataclass(frozen=True)
class AgentSetup:
    """An agent; `name` is made unique for the homeserver."""

    name: str
    answers: str = "auto"
    thread_mode: str = "thread"
    rooms: Sequence[str] = ()


def said_as(agent: str) -> Callable[[VisibleMessage], bool]:
    """Messages of that user."""
    return lambda message: message.sender == agent


def is_final(message: VisibleMessage) -> bool:
    """The terminal revision of an answer."""
    marker = message.content.get(DELIVERY_KEY)
    return isinstance(marker, dict) and marker.get("stage") == "final"


async def eventually(probe: Callable[[], Awaitable[T]], *, timeout_seconds: float = 20.0, what: str = "") -> T:
    """The first true value of `probe`; for facts that only SQL or a server can tell. Raises AssertionError."""
    deadline = time.monotonic() + timeout_seconds
    while not (found := await probe()):
        assert time.monotonic() < deadline, f"did not come true in {timeout_seconds} s: {what or probe}"
        await asyncio.sleep(0.03)
    return found


async def copy_database(server: EmbeddedPostgres, source: str, target: str) -> str:
    """A copy of a database nobody is connected to; returns its DSN."""
    connection = await asyncpg.connect(server.dsn)
    try:
        await connection.execute(f'DROP DATABASE IF EXISTS "{target}" WITH (FORCE)')
        await connection.execute(f'CREATE DATABASE "{target}" TEMPLATE "{source}"')
    finally:
        await connection.close()
    return server.dsn.replace("/mindroom?", f"/{target}?")


@asynccontextmanager
async def fresh_database(server: EmbeddedPostgres) -> AsyncIterator[str]:
    """A migrated database that outlives one test, for runtimes shared by a module."""
    name = f"house_{secrets.token_hex(6)}"
    dsn = await copy_database(server, TEMPLATE, name)
    try:
        yield dsn
    finally:
        connection = await asyncpg.connect(server.dsn)
        try:
            await connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        finally:
            await connection.close()


@dataclass
class RunningRuntime:
    """One process' worth of runtime, as a task."""

    runtime: Runtime
    http_port: int
    stop: asyncio.Event
    ready: asyncio.Event
    task: asyncio.Task[None]

    @property
    def metrics(self) -> Metrics:
        return self.runtime.metrics

    def metric(self, name: str, **labels: str) -> float:
        """The value of a sample, 0.0 when it has none yet."""
        return self.runtime.metrics.registry.get_sample_value(f"mindroom_{name}", labels) or 0.0

    async def until_ready(self, *, timeout_seconds: float = 30.0) -> None:
        """Returns once ready; raises what ended the runtime instead."""
        waiter = asyncio.ensure_future(self.ready.wait())
        try:
            await asyncio.wait({waiter, self.task}, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
            if self.task.done():
                self.task.result()
            assert self.ready.is_set(), "the runtime did not become ready"
        finally:
            waiter.cancel()

    async def http(self, path: str) -> tuple[int, str]:
        """Status and body of an operator endpoint."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.http_port}{path}") as response,
        ):
            return response.status, await response.text()


@dataclass
class House:
    """One installation and its people."""

    homeserver: LocalHomeserver
    dsn: str
    path: Path
    agents: Sequence[AgentSetup]
    model: Mapping[str, Any]
    people: dict[str, MatrixHuman]
    authorized: Sequence[str]
    suffix: str
    homeserver_url: str = ""
    """Where the runtime goes, when not straight to the homeserver."""
    timeline_limit: int = TIMELINE_LIMIT
    """Events of a room that one sync response shows."""
    running: list[RunningRuntime] = field(default_factory=list)

    # ---- names --------------------------------------------------------------------------------------------------
    def agent_name(self, name: str) -> str:
        """The config name of an agent."""
        return f"{name}_{self.suffix}"

    def agent(self, name: str) -> str:
        """The Matrix user of an agent."""
        return f"@mindroom_{self.agent_name(name)}:{self.homeserver.server_name}"

    def alias(self, room: str) -> str:
        """The alias of a configured room."""
        return f"#mindroom_{room}_{self.suffix}:{self.homeserver.server_name}"

    @property
    def human(self) -> MatrixHuman:
        """The authorized person."""
        return self.people["alice"]

    @property
    def runtime(self) -> RunningRuntime:
        """The newest process."""
        return self.running[-1]

    # ---- life ---------------------------------------------------------------------------------------------------
    async def start(self, *, folder: str = "data", until_ready: bool = True) -> RunningRuntime:
        """Start a process on a data folder of this installation."""
        os.environ["DATABASE_URL"] = program_dsn(self.dsn)
        os.environ[SECRET_VARIABLE] = self.homeserver.registration_shared_secret
        port = _free_port()
        composed = compose(RuntimeSettings(parse_config(self._config(port)), self.path / folder))
        runtime = replace(composed, timeline_limit=self.timeline_limit)
        stop, ready = asyncio.Event(), asyncio.Event()
        task = asyncio.ensure_future(runtime.run(stop, ready=ready))
        running = RunningRuntime(runtime, port, stop, ready, task)
        self.running.append(running)
        if until_ready:
            await running.until_ready()
        return running

    async def stop(self) -> None:
        """End all processes in order."""
        while self.running:
            await self.end(self.runtime)

    async def end(self, running: RunningRuntime) -> None:
        """An orderly stop, as SIGTERM asks for."""
        self.running.remove(running)
        running.stop.set()
        await asyncio.wait_for(running.task, STOP_SECONDS)

    async def kill(self, running: RunningRuntime) -> None:
        """Cut everything at once; the closest thing to SIGKILL that one process can do to a part of itself."""
        self.running.remove(running)
        running.task.cancel()
        await asyncio.gather(running.task, return_exceptions=True)

    def second_folder(self, name: str) -> str:
        """Another host's data folder: it has the key and nothing else."""
        ours, theirs = DataFolder(self.path / "data"), DataFolder(self.path / name)
        shutil.copy2(ours.key_file, theirs.key_file)
        return name

    def _config(self, port: int) -> str:
        rooms = sorted({room for agent in self.agents for room in agent.rooms})
        return json.dumps(
            {
                "matrix": {
                    "homeserver": self.homeserver_url or self.homeserver.url,
                    "server_name": self.homeserver.server_name,
                    "registration": {"shared_secret_env": SECRET_VARIABLE},
                },
                "models": {"default": dict(self.model)},
                "agents": {
                    self.agent_name(agent.name): {
                        "display_name": agent.name.capitalize(),
                        "answers": agent.answers,
                        "thread_mode": agent.thread_mode,
                        "rooms": [f"{room}_{self.suffix}" for room in agent.rooms],
                    }
                    for agent in self.agents
                },
                "rooms": {f"{room}_{self.suffix}": {"display_name": room} for room in rooms},
                "authorization": {"users": [self.people[name].user_id for name in self.authorized]},
                "http": {"port": port},
            }
        )

    # ---- rooms --------------------------------------------------------------------------------------------------
    async def room(self, *agents: str, humans: Sequence[str] = (), **options: Any) -> str:
        """A room of alice's with these agents, each joined by invitation, and these people."""
        room = await self.human.create_room(invite=[self.agent(agent) for agent in agents], **options)
        for name in humans:
            await self.human.invite(room, self.people[name].user_id)
            await self.people[name].join(room)
        for agent in agents:
            await self.joined(room, agent)
        return room

    async def joined(self, room: str, agent: str) -> None:
        """Returns once the agent is in the room and knows it."""
        user = self.agent(agent)

        async def knows() -> bool:
            row = await self.row(
                "SELECT 1 FROM room_membership m JOIN principals p USING (principal) "
                "WHERE p.user_id = $1 AND m.room_id = $2 AND m.membership = 'join'",
                user,
                room,
            )
            return row is not None

        await eventually(knows, what=f"{agent} joined {room}")

    async def answer(self, room: str, agent: str, source: str, *, timeout_seconds: float = 20.0) -> VisibleMessage:
        """The agent's final answer to that event."""
        user = self.agent(agent)

        def answers(message: VisibleMessage) -> bool:
            return message.sender == user and is_final(message) and source in message.content[DELIVERY_KEY]["sources"]

        return await self.human.wait_for_message(room, answers, timeout_seconds=timeout_seconds)

    async def said(self, room: str, agent: str) -> list[VisibleMessage]:
        """What the agent has said in the room, as a client shows it, redacted ones included."""
        return [m for m in await self.human.room_view(room) if m.sender == self.agent(agent)]

    async def events_of(self, room: str, agent: str) -> list[Event]:
        """Every message event of the agent, edits included."""
        events = await self.human.messages(room)
        return [e for e in events if e["sender"] == self.agent(agent) and e["type"] == "m.room.message"]

    # ---- SQL ----------------------------------------------------------------------------------------------------
    async def rows(self, statement: str, *args: Any) -> list[asyncpg.Record]:
        """Rows of a query on the installation's database."""
        connection = await asyncpg.connect(self.dsn)
        try:
            rows: list[asyncpg.Record] = await connection.fetch(statement, *args)
            return rows
        finally:
            await connection.close()

    async def row(self, statement: str, *args: Any) -> asyncpg.Record | None:
        """The first row."""
        rows = await self.rows(statement, *args)
        return rows[0] if rows else None

    async def outcome(self, agent: str, event_id: str, *, timeout_seconds: float = 20.0) -> str:
        """How the event was settled for that agent, as soon as it is."""

        async def settled() -> str | None:
            row = await self.row(
                "SELECT e.outcome FROM journal_events e JOIN principals p USING (principal) "
                "WHERE p.user_id = $1 AND e.event_id = $2 AND e.state = 'settled'",
                self.agent(agent),
                event_id,
            )
            return None if row is None else row["outcome"] or "context"

        what = f"{agent} settled {event_id}"
        return await eventually(settled, timeout_seconds=timeout_seconds, what=what) or ""

    async def quiet(self, *, timeout_seconds: float = 20.0) -> None:
        """Returns once nothing is pending, open, queued or claimed."""

        async def done() -> bool:
            row = await self.row(
                "SELECT (SELECT count(*) FROM journal_pending) + (SELECT count(*) FROM turns WHERE state = 'open')"
                " + (SELECT count(*) FROM delivery_outbox WHERE state IN ('queued', 'claimed')) AS owed"
            )
            return row is not None and row["owed"] == 0

        await eventually(done, timeout_seconds=timeout_seconds, what="nothing is owed")


@asynccontextmanager
async def open_house(
    homeserver: LocalHomeserver,
    dsn: str,
    path: Path,
    *,
    agents: Sequence[AgentSetup] = (AgentSetup("assistant"),),
    model: Mapping[str, Any] = OFFLINE,
    people: Sequence[str] = ("alice",),
    authorized: Sequence[str] = ("alice",),
) -> AsyncIterator[House]:
    """An installation with its people; nothing runs before `start`, everything is stopped at the end."""
    suffix = secrets.token_hex(3)
    async with AsyncExitStack() as stack:
        humans: dict[str, MatrixHuman] = {}
        for name in people:
            human = await MatrixHuman.register(
                homeserver.url,
                shared_secret=homeserver.registration_shared_secret,
                username=f"{name}-{suffix}",
            )
            humans[name] = await stack.enter_async_context(human)
            await human.start_sync()
        house = House(homeserver, dsn, path, agents, model, humans, authorized, suffix)
        before = {name: os.environ.get(name) for name in ("DATABASE_URL", SECRET_VARIABLE)}
        stack.callback(_restore, before)
        stack.push_async_callback(house.stop)
        yield house


def _restore(environment: Mapping[str, str | None]) -> None:
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

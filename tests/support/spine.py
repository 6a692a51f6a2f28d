"""One principal served over a real database, with everything outside scripted and time standing still.

    async with open_spine(dsn) as spine:
        await spine.serve()
        await spine.hear(message("$1"))
        assert spine.finals() == [["$1"]]

The homeserver is a queue of sync responses and a gateway that remembers what was sent; the model answers what its
script says; `advance` moves the process' clock and the database's together (J1). Nothing here sleeps for time: `settle`
waits until no statement is on its way and no task is ready.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast

import asyncpg

from mindroom.bot.agent_bot import AgentBot
from mindroom.bot.edges import Edges
from mindroom.bot.wiring import BotNeeds
from mindroom.config import EffectiveConfig, effective_config, parse_config
from mindroom.core.clock import TestClock
from mindroom.core.content import DELIVERY_KEY
from mindroom.core.errors import DatabaseUnavailable, MatrixFailure, MatrixFailureClass
from mindroom.core.ids import DeviceId, EventId, Fence, PrincipalId, PrincipalName, RoomId, SyncToken, UserId
from mindroom.core.metrics import Metrics
from mindroom.core.ports import (
    HistoryPage,
    ModelDone,
    ModelEvent,
    ModelRequest,
    OutgoingEvent,
    SyncBatch,
    TextDelta,
    WirePayload,
)
from mindroom.core.seams import Seams
from mindroom.db.address import read_address
from mindroom.db.engine import Database, Tx
from mindroom.db.lease import Lease, LeaseKeeper, LeaseTimes, register_process
from mindroom.matrix.client import MatrixClient
from mindroom.matrix.rooms import RoomPlan
from mindroom.ops.audit import Broken, audit_snapshot
from mindroom.responses.loop import MODEL_ATTEMPT, RetryListener
from tests.support.bouncer import program_dsn
from tests.support.events import ALICE, BOB, ME, ROOM, Event, joined_room, state

AGENT = PrincipalName("agent")
DEVICE = DeviceId("DEVICE")
FOREVER_SECONDS = 1e7
"""Leases do not end by themselves in these tests."""


# ---- outside ---------------------------------------------------------------------------------------------------------
class ScriptedSync:
    """SyncPort: answers with what was put, in order, and waits while there is nothing."""

    def __init__(self) -> None:
        self.cancelled = 0
        self.asked: list[SyncToken | None] = []
        self.timeouts: list[float] = []
        self._answers: asyncio.Queue[SyncBatch | Exception] = asyncio.Queue()

    def put(self, *answers: SyncBatch | Exception) -> None:
        """What the next requests come to."""
        for answer in answers:
            self._answers.put_nowait(answer)

    def drop(self) -> None:
        """Forget what was put and not asked for yet."""
        while not self._answers.empty():
            self._answers.get_nowait()

    async def sync(self, since: SyncToken | None, *, timeout_seconds: float, full_state: bool) -> SyncBatch:
        self.asked.append(since)
        self.timeouts.append(timeout_seconds)
        try:
            answer = await self._answers.get()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(answer, Exception):
            raise answer
        return answer


@dataclass
class ScriptedHistory:
    """HistoryPort: pages of gaps or failures, in order; a held one waits.

    What is asked from a token of `sync` is read for a prompt: it is answered from `rooms`, `threads` and `events`, and
    what is not there does not exist.
    """

    pages: deque[HistoryPage | Exception] = field(default_factory=deque)
    asked: list[tuple[SyncToken, SyncToken | None]] = field(default_factory=list)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    _born_ms: int = field(default_factory=lambda: round(datetime.now(UTC).timestamp() * 1000))

    rooms: deque[HistoryPage | Exception] = field(default_factory=deque)
    threads: deque[HistoryPage | Exception] = field(default_factory=deque)
    events: dict[str, Event | Exception] = field(default_factory=dict)
    edited: dict[str, list[Event]] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)
    """What was asked for prompts: `room`, or the event id."""
    readable: asyncio.Event = field(default_factory=asyncio.Event)
    """What is read for prompts waits for it; set at the beginning."""

    def __post_init__(self) -> None:
        self.readable.set()

    async def thread_back(self, room: RoomId, root: EventId, *, start: SyncToken, limit: int) -> HistoryPage:
        return await self._earlier(f"thread {root}", self.threads)

    async def edits(self, room: RoomId, event: EventId, *, limit: int) -> HistoryPage:
        self.read.append(f"edits {event}")
        return HistoryPage(self.edited.get(event, []), None)

    async def event(self, room: RoomId, event: EventId) -> Event:
        self.read.append(event)
        await self.readable.wait()
        found = self.events.get(event) or MatrixFailure("get_event", MatrixFailureClass.NOT_FOUND, status=404)
        if isinstance(found, Exception):
            raise found
        return found

    async def _earlier(self, what: str, pages: "deque[HistoryPage | Exception]") -> HistoryPage:
        self.read.append(what)
        await self.readable.wait()
        page = pages.popleft() if pages else HistoryPage((), None)
        if isinstance(page, Exception):
            raise page
        return page

    async def messages_back(self, room: RoomId, *, start: SyncToken, stop: SyncToken | None, limit: int) -> HistoryPage:
        if stop is None and start.startswith(("s", "room")):
            return await self._earlier("room", self.rooms)
        self.asked.append((start, stop))
        await self.open.wait()
        if stop is None and not self.pages:
            return HistoryPage((), None)  # the second walk of a gap finds nothing more
        page = self.pages.popleft()
        if isinstance(page, Exception):
            raise page
        return replace(page, events=dated(list(page.events), self._born_ms))


@dataclass
class ScriptedRoom:
    """RoomReader: what a gateway took is what the room holds; a failure ends every question."""

    gateway: "ScriptedGateway"
    failure: Exception | None = None
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Where each reading began, or the event asked for."""
    page_events: int = 1

    async def said_since(self, room: RoomId, *, start: SyncToken) -> HistoryPage:
        self.asked.append((room, start))
        if self.failure is not None:
            raise self.failure
        first = int(start.partition("+")[2] or 0)
        said = [{"event_id": event, "content": wire.content} for event, wire in self.gateway.visible(room)]
        end = f"{start.partition('+')[0]}+{first + self.page_events}" if said[first:] else None
        return HistoryPage(said[first : first + self.page_events], SyncToken(end) if end else None)

    async def event(self, room: RoomId, event: EventId) -> Event:
        self.asked.append((room, event))
        if self.failure is not None:
            raise self.failure
        return {"event_id": event}


class ScriptedMembership:
    """MembershipPort that remembers; joins of a room end as scripted, or wait."""

    def __init__(self) -> None:
        self.joined: list[RoomId] = []
        self.left: list[RoomId] = []
        self.via: list[tuple[str, ...]] = []
        self.faults: dict[str, list[MatrixFailure]] = {}
        self.held: dict[str, asyncio.Event] = {}
        self.asked: list[RoomId] = []
        """Every attempt to join."""
        self.given_up = asyncio.Event()

    async def join(self, room: RoomId, *, via: Sequence[str] = ()) -> None:
        self.asked.append(room)
        try:
            if room in self.held:
                await self.held[room].wait()
        except asyncio.CancelledError:
            self.given_up.set()
            raise
        if self.faults.get(room):
            raise self.faults[room].pop(0)
        self.joined.append(room)
        self.via.append(tuple(via))

    async def leave(self, room: RoomId) -> None:
        self.left.append(room)


class SilentAttention:
    """AttentionPort that does nothing."""

    async def typing(self, room: RoomId, *, seconds: float) -> None: ...

    async def read(self, room: RoomId, event: EventId, *, thread: EventId | None) -> None: ...


class LostReply(Exception):
    """In a gateway's script: the homeserver has the event, the answer is lost."""


@dataclass
class ScriptedGateway:
    """DeliveryGateway: a homeserver that dedupes by transaction id and misbehaves as scripted, one fault a send."""

    device_id: DeviceId = DEVICE
    attempts: list[WirePayload] = field(default_factory=list)
    events: dict[tuple[DeviceId, str], tuple[EventId, WirePayload]] = field(default_factory=dict)
    faults: dict[str, deque[Exception | None]] = field(default_factory=dict)
    """By room, or by stage (the first part of a transaction id)."""
    held: dict[str, asyncio.Event] = field(default_factory=dict)
    """Sends to such a room or of such a stage wait for the event."""

    def fail(self, where: str, *faults: Exception | None) -> None:
        """The next sends to that room, or of that stage, end so."""
        self.faults.setdefault(where, deque()).extend(faults)

    async def freeze(self, event: OutgoingEvent) -> WirePayload:
        return WirePayload(event.room, event.event_type, event.content, event.txn_id, self.device_id)

    async def send(self, wire: WirePayload) -> EventId:
        self.attempts.append(wire)
        stage = wire.txn_id.partition(".")[0]
        for where in (wire.room, stage):
            if where in self.held:
                await self.held[where].wait()
        fault = next((self.faults[w].popleft() for w in (wire.room, stage) if self.faults.get(w)), None)
        if fault is not None and not isinstance(fault, LostReply):
            raise fault
        known = self.events.setdefault((wire.device_id, wire.txn_id), (EventId(f"$said{len(self.events)}"), wire))
        if fault is not None:
            raise fault.args[0]
        return known[0]

    def visible(self, room: str = ROOM) -> list[tuple[EventId, WirePayload]]:
        """The distinct events of a room, in order."""
        return [entry for entry in self.events.values() if entry[1].room == room]

    def stages(self, room: str = ROOM) -> list[str]:
        """Their stages."""
        return [wire.txn_id.partition(".")[0] for _, wire in self.visible(room)]


@dataclass
class ScriptedModel:
    """ModelPort: each call takes the next entry of the script, and answers `answer` when there is none."""

    answer: str = "an answer"
    script: deque[str | Exception] = field(default_factory=deque)
    failure: Exception | None = None
    """While set every call ends so."""
    requests: list[ModelRequest] = field(default_factory=list)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    """Calls wait for it; set at the beginning."""
    held: dict[str, asyncio.Event] = field(default_factory=dict)
    """Calls whose newest message holds such a word wait for the event."""
    pieces: int = 1
    finish: asyncio.Event = field(default_factory=asyncio.Event)
    """What has been written waits for it before it is complete; set at the beginning."""

    def __post_init__(self) -> None:
        self.go.set()
        self.finish.set()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.requests.append(request)
        await self.go.wait()
        for word, event in self.held.items():
            if word in request.messages[-1].text:
                await event.wait()
        entry = self.script.popleft() if self.script else self.failure or self.answer
        if isinstance(entry, Exception):
            raise entry
        size = -(-len(entry) // self.pieces)
        for at in range(0, len(entry), size):
            yield TextDelta(entry[at : at + size])
        await self.finish.wait()
        yield ModelDone("scripted", 1, 1)


@dataclass(frozen=True, slots=True)
class ScriptedEdges(Edges):
    """Edges without a client."""

    async def set_display_name(self, name: str) -> None:
        return None

    async def ensure_room(self, plan: RoomPlan) -> RoomId:
        raise AssertionError("no rooms are configured")

    async def find_room(self, alias: str) -> RoomId | None:
        raise AssertionError("no rooms are configured")

    async def close(self) -> None:
        return None


# ---- the database, observed ------------------------------------------------------------------------------------------
class ObservedConnection:
    """Counts the statements of one transaction."""

    def __init__(self, connection: Any, statements: list[str]) -> None:
        self._connection = connection
        self._statements = statements

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def fetch(self, statement: str, *args: Any) -> Any:
        self._statements.append(statement)
        return await self._connection.fetch(statement, *args)

    async def fetchrow(self, statement: str, *args: Any) -> Any:
        self._statements.append(statement)
        return await self._connection.fetchrow(statement, *args)

    async def execute(self, statement: str, *args: Any) -> Any:
        self._statements.append(statement)
        return await self._connection.execute(statement, *args)


@dataclass(frozen=True, slots=True)
class Barrier:
    """Where a transaction stands still while others come."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)


class ObservedDatabase(Database):
    """Knows whether a statement is on its way, what transactions said, and fails the ones it is told to."""

    def __init__(self, pool: asyncpg.Pool, metrics: Metrics, clock: TestClock) -> None:
        super().__init__(pool, metrics, clock=clock)
        self.in_flight = 0
        self.transactions: list[tuple[str, list[str]]] = []
        self.outage: Callable[[str], bool] = lambda _name: False
        """True for transactions (or `read`) that find no database, before their commit."""
        self.barriers: dict[str, Barrier] = {}
        """The next transaction of that name stops at its beginning."""

    async def fetch(self, statement: str, *args: Any) -> list[asyncpg.Record]:
        if self.outage("read"):
            raise DatabaseUnavailable("scripted")
        self.in_flight += 1
        try:
            return await super().fetch(statement, *args)
        finally:
            self.in_flight -= 1

    @asynccontextmanager
    async def transaction(self, name: str, *, guard: tuple[PrincipalId, Fence] | None = None) -> AsyncIterator[Tx]:
        self.in_flight += 1
        try:
            async with super().transaction(name, guard=guard) as tx:
                statements: list[str] = []
                tx.connection = ObservedConnection(tx.connection, statements)
                if (barrier := self.barriers.pop(name, None)) is not None:
                    barrier.reached.set()
                    await barrier.go.wait()
                yield tx
                if self.outage(name):
                    raise DatabaseUnavailable("scripted")
                self.transactions.append((name, statements))
        finally:
            self.in_flight -= 1

    def statements_of(self, name: str) -> list[int]:
        """How many statements each committed transaction of that name took."""
        return [len(statements) for known, statements in self.transactions if known == name]


# ---- the whole -------------------------------------------------------------------------------------------------------
@dataclass
class Spine:
    """One principal with everything around it."""

    database: ObservedDatabase
    keeper: LeaseKeeper
    principal: PrincipalId
    clock: TestClock
    config: EffectiveConfig
    metrics: Metrics
    sync: ScriptedSync = field(default_factory=ScriptedSync)
    history: ScriptedHistory = field(default_factory=ScriptedHistory)
    membership: ScriptedMembership = field(default_factory=ScriptedMembership)
    gateway: ScriptedGateway = field(default_factory=ScriptedGateway)
    model: ScriptedModel = field(default_factory=ScriptedModel)
    room: ScriptedRoom = field(init=False)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    server: Any = None
    """Stands for sync, history, membership and gateway when it is set (tests.support.room_server)."""
    version: str = "1.0.0"
    lease: Lease | None = None
    task: asyncio.Task[None] | None = None
    _tokens: int = 0
    _born_ms: int = field(default_factory=lambda: round(datetime.now(UTC).timestamp() * 1000))

    def __post_init__(self) -> None:
        self.room = ScriptedRoom(self.gateway)

    # ---- life ---------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Take the lease and serve; no response is there yet."""
        self.lease = await self.keeper.take(self.principal, AGENT)
        assert self.lease is not None
        self.sync, self.stop = ScriptedSync(), asyncio.Event()
        edges = ScriptedEdges(
            sync=self.server or self.sync,
            history=self.server or self.history,
            membership=self.server or self.membership,
            attention=SilentAttention(),
            gateway=self.server or self.gateway,
            reader=self.server or self.room,
            client=cast("MatrixClient", None),
        )
        needs = BotNeeds(
            config=self.config,
            config_generation="test",
            version=self.version,
            model=self.model,
            new_seams=self._seams,
            clock=self.clock,
            metrics=self.metrics,
        )
        bot = AgentBot(self.config.agents[0], self.lease, edges=edges, needs=needs, synced=lambda: None)
        self.task = asyncio.ensure_future(bot.serve(self.stop))
        await self.settle()

    async def serve(self) -> None:
        """Start, and admit the baseline in which we and alice are in ROOM."""
        await self.start()
        self.answer(self.room_batch())
        await self.settle()

    async def crash(self) -> None:
        """Everything in memory is gone."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            self.task = None

    def _seams(self) -> Seams:
        seams = Seams(clock=self.clock, count_fault=lambda _name, _fault: None)
        listener = RetryListener(clock=self.clock, rng=random.Random(1), count_failure=lambda _kind: None)
        seams.wrap(MODEL_ATTEMPT, listener)
        return seams

    def without(self, user: str) -> EffectiveConfig:
        """The configuration in which that user is not authorized."""
        return replace(self.config, authorized_users=self.config.authorized_users - {UserId(user)})

    # ---- time ---------------------------------------------------------------------------------------------------
    async def settle(self) -> None:
        """Returns once no statement is on its way and no task is ready."""
        calm = 0
        while calm < 25:
            self._raise_if_ended()
            calm = calm + 1 if self.database.in_flight == 0 else 0
            await asyncio.sleep(0 if calm else 0.0005)

    async def advance(self, seconds: float, *, step_seconds: float = 1.0) -> None:
        """Time passes for the process and the database together."""
        while seconds > 0:
            step = min(seconds, step_seconds)
            await self._move_database_clock(step)
            await self.clock.advance(step)
            await self.settle()
            seconds -= step

    async def _move_database_clock(self, seconds: float) -> None:
        connection = await self.database._pool.acquire()
        try:
            await connection.execute(
                "UPDATE clock_control SET test_offset = test_offset + make_interval(secs => $1)", seconds
            )
        finally:
            await self.database._pool.release(connection)

    def _raise_if_ended(self) -> None:
        if self.task is not None and self.task.done() and not self.stop.is_set():
            self.task.result()
            raise AssertionError("the bot ended by itself")

    # ---- hearing ------------------------------------------------------------------------------------------------
    def batch(self, *rooms: tuple[str, Event], **sections: Event) -> SyncBatch:
        """A response with the next token; times of its events count from when the spine was opened."""
        self._tokens += 1
        shown = dated({"join": dict(rooms), **sections}, self._born_ms)
        raw: Event = {"next_batch": f"s{self._tokens}", "rooms": shown}
        return SyncBatch(SyncToken(f"s{self._tokens}"), raw)

    def room_batch(self, *rooms: str, also: Sequence[Event] = ()) -> SyncBatch:
        """A response that shows us, alice and bob in these rooms (ROOM when none is named)."""
        return self.batch(*((room, joined_room(also, state=_furniture())) for room in rooms or (ROOM,)))

    def answer(self, *answers: SyncBatch | Exception) -> None:
        """What the next sync requests come to."""
        self.sync.put(*answers)

    async def hear(self, *events: Event, room: str = ROOM) -> None:
        """These events of a room are admitted and given their verdict."""
        self.answer(self.batch((room, joined_room(events))))
        await self.settle()
        await self.advance(0.1, step_seconds=0.1)

    # ---- facts --------------------------------------------------------------------------------------------------
    async def rows(self, statement: str, *args: Any) -> list[tuple[Any, ...]]:
        """Rows of a query, whatever outage is scripted."""
        async with self.database._pool.acquire() as connection:
            return [tuple(row) for row in await connection.fetch(statement, *args)]

    async def value(self, statement: str, *args: Any) -> Any:
        """The first column of the first row."""
        rows = await self.rows(statement, *args)
        return rows[0][0] if rows else None

    async def outcome(self, event_id: str) -> str | None:
        """How an event was settled; None while it is pending."""
        outcome: str | None = await self.value("SELECT outcome FROM journal_events WHERE event_id = $1", event_id)
        return outcome

    async def broken_rules(self) -> list[Broken]:
        """What the audit finds, the clock apart, which tests move."""
        async with self.database._pool.acquire() as connection:
            found = await audit_snapshot(connection)
        return [broken for broken in found if broken.rule != "clock_was_moved"]

    def finals(self, room: str = ROOM) -> list[list[str]]:
        """The sources of each FINAL in the room that names any."""
        return [
            wire.content[DELIVERY_KEY]["sources"]
            for _, wire in self.gateway.visible(room)
            if wire.txn_id.startswith("final.") and "sources" in wire.content.get(DELIVERY_KEY, {})
        ]


def dated(value: Any, base_ms: int) -> Any:
    """The same with every small `origin_server_ts` counted from `base_ms`: what is older than a day is late (A3)."""
    if isinstance(value, list):
        return [dated(part, base_ms) for part in value]
    if not isinstance(value, dict):
        return value
    copy = {key: dated(part, base_ms) for key, part in value.items()}
    if isinstance(copy.get("origin_server_ts"), int) and copy["origin_server_ts"] < base_ms // 2:
        copy["origin_server_ts"] += base_ms
    return copy


def _furniture() -> list[Event]:
    people: Iterable[str] = (ME, ALICE, BOB)
    created = state("$create", "m.room.create", {"room_version": "12"})
    return [
        created,
        *[
            {
                "event_id": f"$member{user}",
                "type": "m.room.member",
                "state_key": user,
                "sender": user,
                "origin_server_ts": 1,
                "content": {"membership": "join"},
            }
            for user in people
        ],
    ]


def spine_config(*, thread_mode: str = "thread") -> EffectiveConfig:
    """One agent, whose account is ME."""
    return effective_config(
        parse_config(
            f"""
matrix:
  homeserver: http://127.0.0.1:1
  server_name: x
  accounts:
    agent: {{user_id: "{ME}", password_env: UNUSED}}
models:
  default: {{provider: offline}}
agents:
  agent: {{role: helps, thread_mode: {thread_mode}}}
authorization:
  users: ["{ALICE}", "{BOB}"]
"""
        )
    )


@asynccontextmanager
async def open_spine(dsn: str, *, thread_mode: str = "thread") -> AsyncIterator[Spine]:
    """A spine that is stopped at the end, whatever the test left; then every rule that SQL can see must hold (K4)."""
    metrics = Metrics()
    async with AsyncExitStack() as stack:
        address, pooled = read_address(program_dsn(dsn))
        pool = await stack.enter_async_context(
            asyncpg.create_pool(address, min_size=1, max_size=8, statement_cache_size=0 if pooled else 100)
        )
        # The database's clock is the real one plus an offset, so ours starts at the same moment.
        clock = TestClock(datetime.now(UTC))
        database = ObservedDatabase(pool, metrics, clock)
        process = await register_process(database, host="host", pid=1, boot_id="boot", data_folder="/data", version="0")
        times = LeaseTimes(FOREVER_SECONDS)
        keeper = LeaseKeeper(database, process=process, clock=clock, times=times, beat_database=database)
        principal = await _add_principal(database, UserId(ME))
        spine = Spine(database, keeper, principal, clock, spine_config(thread_mode=thread_mode), metrics)
        stack.push_async_callback(spine.crash)
        yield spine
        await spine.crash()
        broken = await spine.broken_rules()
        assert not broken, broken


async def _add_principal(database: Database, user: UserId) -> PrincipalId:
    async with database.transaction("test.principal") as tx:
        row = await tx.fetchrow(
            "INSERT INTO principals (name, kind, user_id) VALUES ($1, 'agent', $2) RETURNING principal", AGENT, user
        )
        assert row is not None
        await tx.execute("INSERT INTO principal_fence (principal) VALUES ($1)", row["principal"])
        await tx.execute("INSERT INTO principal_beat (principal) VALUES ($1)", row["principal"])
    return PrincipalId(row["principal"])

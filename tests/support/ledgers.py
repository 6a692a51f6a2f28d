"""The three ledgers of one principal over a real database, as a test opens them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from mindroom.core.clock import Clock, TestClock
from mindroom.core.ids import Epoch, EventId, PrincipalId, PrincipalName, ProcessId, Receipt, RoomId
from mindroom.core.metrics import Metrics
from mindroom.core.values import EventClass, EventKind, Membership, OrderKey
from mindroom.db.engine import Database, connect
from mindroom.db.lease import Lease, LeaseKeeper, LeaseTimes, register_process
from mindroom.journal.projection import MessageProjection
from mindroom.journal.records import Admitted, Heard, RoomMembership
from mindroom.journal.recovery import Recovery
from mindroom.journal.store import Journal
from mindroom.outbox.store import Outbox
from mindroom.turnstore.store import TurnStore
from tests.support.bouncer import program_dsn
from tests.support.events import ALICE, ROOM

START = OrderKey(-1)
"""Before every key."""


@asynccontextmanager
async def open_database(
    dsn: str,
    *,
    pool_size: int = 4,
    lease_ttl_seconds: float = 15.0,
    acquire_seconds: float = 10.0,
    clock: Clock | None = None,
) -> AsyncIterator[Database]:
    """A pool that is closed again."""
    database = await connect(
        program_dsn(dsn),
        metrics=Metrics(),
        pool_size=pool_size,
        lease_ttl_seconds=lease_ttl_seconds,
        acquire_seconds=acquire_seconds,
        clock=clock,
    )
    try:
        yield database
    finally:
        await database.close()


async def add_principal(database: Database, name: str = "agent") -> PrincipalId:
    """A principal with its fence and its free lease."""
    async with database.transaction("test.principal") as tx:
        row = await tx.fetchrow(
            "INSERT INTO principals (name, kind, user_id) VALUES ($1, 'agent', $2) RETURNING principal",
            name,
            f"@{name}:x",
        )
        assert row is not None
        await tx.execute("INSERT INTO principal_fence (principal) VALUES ($1)", row["principal"])
        await tx.execute("INSERT INTO principal_beat (principal) VALUES ($1)", row["principal"])
    return PrincipalId(row["principal"])


async def add_process(
    database: Database, *, folder: str = "/data", boot_id: str = "boot", pid: int = 1, host: str = "host"
) -> ProcessId:
    """A registered process."""
    return await register_process(database, host=host, pid=pid, boot_id=boot_id, data_folder=folder, version="0")


def keeper(database: Database, process: ProcessId, *, clock: TestClock, ttl_seconds: float = 15.0) -> LeaseKeeper:
    """The lease keeper of a process."""
    return LeaseKeeper(database, process=process, clock=clock, times=LeaseTimes(ttl_seconds), beat_database=database)


async def move_database_clock(database: Database, seconds: float) -> None:
    """Move `mindroom_now()` forward."""
    async with database.transaction("test.clock") as tx:
        await tx.execute("UPDATE clock_control SET test_offset = test_offset + make_interval(secs => $1)", seconds)


@dataclass(frozen=True)
class Ledgers:
    """Everything of one principal that holds a lease."""

    database: Database
    lease: Lease
    keeper: LeaseKeeper
    clock: TestClock
    principal: PrincipalId
    journal: Journal
    projection: MessageProjection
    recovery: Recovery
    turns: TurnStore
    outbox: Outbox

    async def hear(self, *heard: Heard) -> Admitted:
        """One committed batch of receipts."""
        async with self.lease.transaction("admit") as tx:
            return await self.journal.hear(tx, heard)

    async def standing(self, membership: Membership = Membership.JOIN, *, room: RoomId = ROOM, epoch: int = 1) -> None:
        """Our committed membership of a room."""
        async with self.lease.transaction("admit") as tx:
            await self.journal.write_memberships(tx, {room: RoomMembership(Epoch(epoch), membership)})

    async def pending(self, *, held: Sequence[RoomId] = (), limit: int = 500) -> list[EventId]:
        """Event ids of the feeder's first page."""
        return [p.event_id for p in await self.journal.pending_page(START, 0, held_rooms=held, limit=limit)]

    async def outcome(self, event_id: str) -> tuple[str, str | None]:
        """State and outcome of an event in the operators' view."""
        row = await self.database.fetchrow(
            "SELECT state, outcome FROM journal_events WHERE principal = $1 AND event_id = $2", self.principal, event_id
        )
        assert row is not None, f"{event_id} has no receipt"
        return row["state"], row["outcome"]

    async def count(self, table: str) -> int:
        """Rows of a table."""
        row = await self.database.fetchrow(f"SELECT count(*) AS n FROM {table}")
        assert row is not None
        return int(row["n"])


@asynccontextmanager
async def open_ledgers(dsn: str) -> AsyncIterator[Ledgers]:
    """A database with one principal, whose lease is taken."""
    async with open_database(dsn) as database:
        principal = await add_principal(database)
        clock = TestClock()
        leases = keeper(database, await add_process(database), clock=clock)
        lease = await leases.take(principal, PrincipalName("agent"))
        assert lease is not None
        yield Ledgers(
            database=database,
            lease=lease,
            keeper=leases,
            clock=clock,
            principal=principal,
            journal=Journal(principal, database),
            projection=MessageProjection(principal, database),
            recovery=Recovery(principal, database),
            turns=TurnStore(principal, database),
            outbox=Outbox(principal, database),
        )


def source(event_id: str, *, room: RoomId = ROOM, epoch: int = 1, thread: str = "") -> Heard:
    """A live message that is owed an outcome."""
    return Heard(
        event_id=EventId(event_id),
        room=room,
        thread=EventId(thread),
        kind=EventKind.MESSAGE,
        event_class=EventClass.LIVE,
        sender=ALICE,
        origin_ts=1000,
        epoch=Epoch(epoch),
        source={"event_id": event_id, "content": {"body": "hello"}},
    )


def context(event_id: str) -> Heard:
    """A message that starts nothing."""
    heard = source(event_id)
    heard.event_class, heard.source = EventClass.HISTORY, None
    return heard


def receipt_of(admitted: Admitted, event_id: str) -> Receipt:
    """The fresh receipt of an event."""
    return admitted.receipts[EventId(event_id)]

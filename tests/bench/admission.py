"""Admission through the real `admit`: durable commits of synthetic responses, beside a bare insert in the same run."""

import asyncio
import json
import time
from dataclasses import dataclass

from mindroom.bot.admit import AdmissionHooks, Admitter
from mindroom.bot.forget import Forgetting
from mindroom.bot.gate import StartGate
from mindroom.bot.wiring import Ledgers
from mindroom.core.clock import SystemClock
from mindroom.core.ids import PrincipalName, SyncToken, UserId
from mindroom.core.ports import SyncBatch
from mindroom.core.values import Trust
from mindroom.db.engine import Database
from mindroom.db.lease import Lease, LeaseKeeper, LeaseTimes
from mindroom.journal.records import Checkpoint, Hearer
from mindroom.journal.trust import CheckpointTrust, TrustEvent
from mindroom.outbox.limits import SendLimits
from mindroom.outbox.worker import OutboxWorker
from mindroom.turns.release import TurnRelease
from mindroom.turns.running import RunningTurns
from tests.support.ledgers import add_principal, add_process

CERTIFIED = CheckpointTrust(Trust.CERTIFIED, TrustEvent.ADMITTED)
ROOM = "!bench:localhost"


class _NoPresentation:
    def draft_content(self, _delivery: object) -> None:
        return None

    def is_being_written(self, _delivery: object) -> bool:
        return False

    def initial_visible(self, _delivery: object, _event: object) -> None:
        return None


@dataclass
class Listener:
    """One principal that hears."""

    lease: Lease
    admitter: Admitter
    number: int
    sent: int = 0
    sender: str = "@alice:localhost"
    msgtype: str = "m.text"
    trust: CheckpointTrust = CERTIFIED

    def response(self, events: int) -> SyncBatch:
        """A sync response of so many messages by an authorized human."""
        timeline = []
        for _ in range(events):
            self.sent += 1
            timeline.append(
                {
                    "event_id": f"$bench-{self.number}-{self.sent:09d}-abcdefghijklmnopqrstuv",
                    "type": "m.room.message",
                    "sender": self.sender,
                    "origin_server_ts": 1_790_000_000_000 + self.sent,
                    "content": {"msgtype": self.msgtype, "body": f"message number {self.sent} of the bench"},
                    "unsigned": {"age": 5, "membership": "join"},
                }
            )
        raw = {"rooms": {"join": {ROOM: {"timeline": {"events": timeline, "limited": False, "prev_batch": "p"}}}}}
        token = SyncToken(f"s{self.sent}")
        return SyncBatch(token, {"next_batch": token, **raw})

    async def admit(self, batch: SyncBatch) -> None:
        """Classify and commit, as the sync loop does."""
        admission = self.admitter.classify(batch.raw, since=SyncToken("s"), certified_ms=0)
        await self.admitter.admit(admission, Checkpoint(batch.next_batch, CERTIFIED))


async def listeners(database: Database, count: int) -> list[Listener]:
    """Principals of one process, each with its lease."""
    clock = SystemClock()
    process = await add_process(database)
    keeper = LeaseKeeper(database, process=process, clock=clock, times=LeaseTimes(600), beat_database=database)
    found: list[Listener] = []
    for number in range(count):
        name = PrincipalName(f"bench{number}-{time.monotonic_ns()}")
        lease = await keeper.take(await add_principal(database, name), name)
        assert lease is not None
        found.append(Listener(lease, await admitter_for(lease, clock), number))
    return found


async def admitter_for(lease: Lease, clock: SystemClock) -> Admitter:
    """The real admitter of a lease, with nobody to wake."""
    ledgers = await Ledgers.load(lease)
    metrics = lease.database.metrics
    worker = OutboxWorker(
        lease,
        outbox=ledgers.outbox,
        gateway=None,  # type: ignore[arg-type]  # nothing is sent here
        gate=StartGate(ledgers.book),
        presentation=_NoPresentation(),
        reader=None,  # type: ignore[arg-type]
        limits=SendLimits(clock, metrics=metrics, name=lease.name),
        clock=clock,
        metrics=metrics,
    )
    release = TurnRelease(ledgers.turns, ledgers.outbox, worker, RunningTurns())
    return Admitter(
        lease=lease,
        hearer=Hearer(
            UserId("@bot:localhost"),
            frozenset({UserId("@bot:localhost")}),
            frozenset({UserId("@alice:localhost"), UserId("@human:localhost")}),
        ),
        book=ledgers.book,
        journal=ledgers.journal,
        projection=ledgers.projection,
        recovery=ledgers.recovery,
        turns=ledgers.turns,
        outbox=ledgers.outbox,
        worker=worker,
        release=release,
        forgetting=Forgetting(ledgers.journal, ledgers.turns, ledgers.outbox, release),
        metrics=metrics,
        hooks=AdmissionHooks(pending=lambda _key: None, held=lambda _rooms: None, gaps=lambda: None, rooms=()),
    )


@dataclass(frozen=True)
class AdmissionFigure:
    """One row of the table."""

    events_per_response: int
    principals: int
    events_per_second: float
    statements_per_response: float
    bare_events_per_second: float


async def measure(database: Database, *, events: int, principals: int, seconds: float) -> AdmissionFigure:
    """Admit for some seconds, then insert the same number of bare rows per commit for half of them."""
    hearers = await listeners(database, principals)
    for hearer in hearers:
        for _ in range(max(4, 2000 // events // principals)):
            await hearer.admit(hearer.response(events))
    await database.fetch("ANALYZE")  # as autovacuum does within a minute of a table's first rows
    before = await _statements(database)
    admitted, wall, responses = await _timed(hearers, events, seconds)
    statements = (await _statements(database) - before) / max(1, responses)
    bare = await _bare(database, events, principals, seconds / 2)
    return AdmissionFigure(events, principals, admitted / wall, statements, bare)


async def _timed(hearers: list[Listener], events: int, seconds: float) -> tuple[int, float, int]:
    started, responses = time.perf_counter(), 0

    async def one(hearer: Listener) -> int:
        count = 0
        while time.perf_counter() - started < seconds:
            await hearer.admit(hearer.response(events))
            count += 1
        return count

    responses = sum(await asyncio.gather(*(one(hearer) for hearer in hearers)))
    return responses * events, time.perf_counter() - started, responses


async def _statements(database: Database) -> int:
    row = await database.fetchrow(
        "SELECT coalesce(sum(calls), 0)::bigint AS calls FROM pg_stat_statements s "
        "JOIN pg_database d ON d.oid = s.dbid "
        "WHERE d.datname = current_database() AND query LIKE '%mindroom:%'"
    )
    return int(row["calls"]) if row else 0


async def _bare(database: Database, events: int, principals: int, seconds: float) -> float:
    """The baseline: one `unnest` insert of id and payload per commit, nothing else."""
    async with database.transaction("bench.setup") as tx:
        await tx.execute("CREATE TABLE IF NOT EXISTS bench_bare (id text PRIMARY KEY, payload jsonb)")
    payload = json.dumps({"body": "message of the bench", "msgtype": "m.text"})
    started, number = time.perf_counter(), 0

    async def one(worker: int) -> int:
        nonlocal number
        count = 0
        while time.perf_counter() - started < seconds:
            number += 1
            ids = [f"{worker}-{number}-{time.monotonic_ns()}-{i}" for i in range(events)]
            await database.fetch(
                "INSERT INTO bench_bare SELECT * FROM unnest($1::text[], $2::jsonb[]) ON CONFLICT DO NOTHING",
                ids,
                [payload] * events,
            )
            count += events
        return count

    total = sum(await asyncio.gather(*(one(worker) for worker in range(principals))))
    return total / (time.perf_counter() - started)

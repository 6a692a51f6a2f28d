"""Several processes divide the principals of one database, with both clocks moved by hand (H1)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from mindroom.bot.division import STANDBY_SECONDS, Division, share_of, to_take
from mindroom.core.clock import TestClock
from mindroom.core.ids import PrincipalId, PrincipalName
from mindroom.db.engine import Database
from mindroom.db.lease import Lease, LeaseKeeper
from tests.support.ledgers import add_principal, add_process, keeper, move_database_clock, open_database

TTL = 15.0


@dataclass(eq=False)
class Process:
    """What a runtime does about leases, with nothing to serve."""

    keeper: LeaseKeeper
    division: Division
    leases: dict[PrincipalId, Lease] = field(default_factory=dict)
    reads: int = 0
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self, principals: Sequence[PrincipalId]) -> None:
        """Serve and stand by for these."""
        self.tasks = [asyncio.ensure_future(self.keeper.beat()), asyncio.ensure_future(self.division.run())]
        self.tasks += [asyncio.ensure_future(self._keep(principal)) for principal in principals]

    async def _keep(self, principal: PrincipalId) -> None:
        while True:
            leave = await self.division.turn(principal)
            lease = await self.keeper.take(principal, PrincipalName(f"agent{principal}"))
            if lease is not None:
                self.leases[principal] = lease
                ends = [asyncio.ensure_future(leave.wait()), asyncio.ensure_future(lease.lost.wait())]
                try:
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for end in ends:
                        end.cancel()
                del self.leases[principal]
                await self.keeper.resign(lease)
            self.division.done(principal)
            if self.division._is_closed:
                return

    async def freeze(self) -> None:
        """As SIGKILL or SIGSTOP: nothing of it happens any more."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def drain(self) -> None:
        """As SIGTERM."""
        self.division.close()
        await self.keeper.leave()
        await asyncio.gather(*self.tasks[2:])


@dataclass(eq=False)
class World:
    """Processes on one database."""

    database: Database
    stack: AsyncExitStack
    dsn: str
    clock: TestClock
    principals: list[PrincipalId]
    processes: list[Process] = field(default_factory=list)

    async def start(self, principals: Sequence[PrincipalId] | None = None) -> Process:
        """One more process."""
        number = len(self.processes)
        database = await self.stack.enter_async_context(open_database(self.dsn))
        row = await add_process(database, folder=f"/{number}")
        leases = keeper(database, row, clock=self.clock, ttl_seconds=TTL)
        mine = self.principals if principals is None else principals
        process = Process(leases, Division(leases, self.clock, len(mine), lambda: None))
        _count_reads(process, database)
        self.processes.append(process)
        self.stack.push_async_callback(process.freeze)
        process.start(mine)
        await self.settle()
        return process

    async def settle(self) -> None:
        """Return when no statement is on its way."""
        for _ in range(12):
            await self.database.fetch("SELECT pg_sleep(0.004)")

    async def pass_(self, seconds: float) -> None:
        """Both clocks, a second at a time."""
        for _ in range(round(seconds)):
            await move_database_clock(self.database, 1.0)
            await self.clock.advance(1.0)
            await self.settle()

    def held(self) -> list[int]:
        """How many principals each process serves."""
        return [len(process.leases) for process in self.processes]


def _count_reads(process: Process, database: Database) -> None:
    fetch = database.fetch

    async def counting(statement: str, *args: Any) -> Any:
        process.reads += 1
        return await fetch(statement, *args)

    database.fetch = counting  # type: ignore[method-assign]


@asynccontextmanager
async def open_world(dsn: str, *, principals: int) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(dsn))
        known = [await add_principal(database, f"agent{n}") for n in range(1, principals + 1)]
        yield World(database, stack, dsn, TestClock(), known)


# ---- the rule --------------------------------------------------------------------------------------------------------
def test_h1_a_share_is_rounded_up_so_that_the_shares_cover_all() -> None:
    assert [share_of(5, live=live) for live in (1, 2, 3, 5, 9)] == [5, 3, 2, 1, 1]


def test_h1_what_is_free_is_taken_up_to_the_share_and_an_orphan_beyond_it() -> None:
    free = [PrincipalId(n) for n in (1, 2, 3)]
    assert to_take(free, room=2, orphans=set()) == [1, 2]
    assert to_take(free, room=-1, orphans=set()) == []
    assert to_take(free, room=0, orphans={PrincipalId(3)}) == [3]


# ---- the life --------------------------------------------------------------------------------------------------------
async def test_h1_one_process_serves_all_and_a_second_gets_its_half_at_turn_boundaries(database_dsn: str) -> None:
    async with open_world(database_dsn, principals=5) as world:
        await world.start()
        assert world.held() == [5]
        await world.start()
        await world.pass_(TTL / 3 + STANDBY_SECONDS)
        assert world.held() == [3, 2]
        await world.pass_(3 * TTL)
        assert world.held() == [3, 2], "nobody swings"
        fences = await world.database.fetch("SELECT fence FROM principal_fence ORDER BY principal")
        assert sorted(row["fence"] for row in fences) == [1, 1, 1, 2, 2], "two changed hands, once"


@pytest.mark.parametrize("survivors", [1, 2])
async def test_h1_the_leases_of_a_dead_process_are_taken_when_they_expire(database_dsn: str, survivors: int) -> None:
    """Within a second of their expiry, since by then the dead one counts no more."""
    async with open_world(database_dsn, principals=4) as world:
        for _ in range(1 + survivors):
            await world.start()
        await world.pass_(TTL)
        dead = world.processes[0]
        await dead.freeze()
        dead.leases.clear()
        await world.pass_(TTL + 1)
        assert sum(world.held()) == 4
        assert max(world.held()) == share_of(4, live=survivors)


async def test_h1_an_orderly_end_hands_over_within_a_look_and_not_after_the_ttl(database_dsn: str) -> None:
    async with open_world(database_dsn, principals=4) as world:
        first = await world.start()
        await world.start()
        await world.pass_(TTL)
        assert world.held() == [2, 2]
        await first.drain()
        await world.pass_(2)
        assert world.held() == [0, 4]


async def test_h1_what_no_process_with_room_takes_is_taken_beyond_the_share_and_kept(database_dsn: str) -> None:
    """The second process lives but serves nothing: nobody stays unserved, and nothing swings for ever."""
    async with open_world(database_dsn, principals=2) as world:
        await world.start()
        await world.start([])
        await world.pass_(TTL / 3 + 1)
        assert world.held() == [1, 0], "it gave the second principal its chance"
        await world.pass_(TTL + 1)
        assert world.held() == [2, 0]
        await world.pass_(4 * TTL)
        assert world.held() == [2, 0]
        fences = await world.database.fetch("SELECT fence FROM principal_fence ORDER BY principal")
        assert [row["fence"] for row in fences] == [1, 2]


async def test_h1_a_process_that_comes_back_gets_its_share_again(database_dsn: str) -> None:
    """H2: a frozen owner loses its leases, and once awake steps down and takes what it is due."""
    async with open_world(database_dsn, principals=4) as world:
        first, second = await world.start(), await world.start()
        await world.pass_(TTL)
        stale = dict(first.leases)
        await first.freeze()
        await world.pass_(TTL + 1)
        assert len(second.leases) == 4
        for principal in stale:  # its services see their leases lost
            del first.leases[principal]
            first.division.done(principal)
        first.start(world.principals)
        await world.pass_(2 * TTL)
        assert world.held() == [2, 2]
        assert all(first.leases.get(principal) is not lease for principal, lease in stale.items())


async def test_h1_a_standby_makes_one_read_a_second_and_writes_nothing(database_dsn: str) -> None:
    """However many principals it stands by for."""
    async with open_world(database_dsn, principals=6) as world:
        owner = await world.start()
        owner.division.principals = 12  # a share of six: it keeps them all
        standby = await world.start()
        await world.pass_(TTL)
        assert world.held() == [6, 0]
        standby.reads = 0
        before = await _changes(world)
        await world.pass_(5)
        assert 4 <= standby.reads <= 6
        assert await _changes(world) == before


async def _changes(world: World) -> list[tuple[str, str]]:
    """Every version of a row that says who serves what."""
    rows = await world.database.fetch(
        "SELECT 'fence' AS of, xmin::text AS version FROM principal_fence "
        "UNION ALL SELECT 'name', xmin::text FROM principals"
    )
    return sorted((row["of"], row["version"]) for row in rows)

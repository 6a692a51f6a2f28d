"""Leases: taken, renewed, resigned, expired and lost, with the database's clock moved by hand (H1, H2, J1)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from mindroom.core import faults
from mindroom.core.clock import TestClock
from mindroom.core.errors import DependencyError, FenceLost
from mindroom.core.faults import Fault, FaultPlan
from mindroom.core.ids import PrincipalId, PrincipalName
from mindroom.db.engine import Database, Tx
from mindroom.db.lease import EFFECT_TIMEOUT_SECONDS, Lease, LeaseKeeper, LeaseTimes
from tests.support.ledgers import add_principal, add_process, keeper, move_database_clock, open_database

NAME = PrincipalName("agent")
INSERT = "INSERT INTO answered_marks (principal, event_id) VALUES (1, $1)"
TTL = 15.0


@dataclass(frozen=True)
class Pair:
    """Two processes on one database, each with its pool, its keeper and one common clock."""

    database: Database
    clock: TestClock
    principal: PrincipalId
    first: LeaseKeeper
    second: LeaseKeeper

    async def advance(self, seconds: float) -> None:
        """Both clocks together."""
        await move_database_clock(self.database, seconds)
        await self.clock.advance(seconds)

    async def take(self, keeper_: LeaseKeeper) -> Lease:
        lease = await keeper_.take(self.principal, NAME)
        assert lease is not None
        return lease

    async def marks(self) -> list[str]:
        return [r["event_id"] for r in await self.database.fetch("SELECT event_id FROM answered_marks")]


@asynccontextmanager
async def two_processes(dsn: str) -> AsyncIterator[Pair]:
    async with open_database(dsn) as database, open_database(dsn) as other:
        principal = await add_principal(database)
        clock = TestClock()
        first = keeper(database, await add_process(database, folder="/a"), clock=clock, ttl_seconds=TTL)
        second = keeper(other, await add_process(other, folder="/b"), clock=clock, ttl_seconds=TTL)
        yield Pair(database, clock, principal, first, second)


@pytest.fixture
async def pair(database_dsn: str) -> AsyncIterator[Pair]:
    async with two_processes(database_dsn) as made:
        yield made


async def mark(lease: Lease, event_id: str) -> None:
    async with lease.transaction("test.write") as tx:
        await tx.execute(INSERT, event_id)


# ---- taking ----------------------------------------------------------------------------------------------------------
async def test_a_second_process_is_refused_until_the_lease_expires(pair: Pair) -> None:
    """H1, J1."""
    await pair.take(pair.first)
    assert await pair.second.take(pair.principal, NAME) is None
    await pair.advance(TTL - 0.5)
    assert await pair.second.take(pair.principal, NAME) is None
    await pair.advance(1)
    assert await pair.second.take(pair.principal, NAME) is not None


async def test_the_fence_grows_with_every_take_in_the_same_process_too(pair: Pair) -> None:
    fences = [(await pair.take(pair.first)).fence for _ in range(2)]
    await pair.advance(TTL + 1)
    fences.append((await pair.take(pair.second)).fence)
    assert fences == [1, 2, 3]


async def test_two_processes_that_take_at_once_have_one_winner(pair: Pair) -> None:
    taken = await asyncio.gather(*(k.take(pair.principal, NAME) for k in (pair.first, pair.second)))
    assert sum(lease is not None for lease in taken) == 1


async def test_a_principal_without_rows_cannot_be_taken(pair: Pair) -> None:
    assert await pair.first.take(PrincipalId(99), NAME) is None


# ---- renewing and resigning ------------------------------------------------------------------------------------------
async def test_a_beating_owner_keeps_its_lease_for_ever(pair: Pair) -> None:
    lease = await pair.take(pair.first)
    beat = asyncio.create_task(pair.first.beat())
    try:
        for _ in range(9):
            await asyncio.sleep(0)
            before = lease.trusted_until
            await pair.advance(TTL / 3)
            while lease.trusted_until == before:
                await pair.database.fetch("SELECT 1")
            assert await pair.second.take(pair.principal, NAME) is None
    finally:
        beat.cancel()
    assert lease.effect_seconds() == EFFECT_TIMEOUT_SECONDS
    assert not lease.lost.is_set()
    rows = await pair.database.fetch("SELECT beat_at > started_at AS beats FROM processes ORDER BY process_id")
    assert [r["beats"] for r in rows] == [True, False]


async def test_a_failed_renewal_is_tried_again(pair: Pair) -> None:
    lease = await pair.take(pair.first)
    beat = asyncio.create_task(pair.first.beat())
    faults.install(FaultPlan(point="tx.lease.renew", moment="before", fault=Fault.ERROR))
    try:
        await asyncio.sleep(0)
        before = lease.trusted_until
        while lease.trusted_until == before:
            await pair.clock.advance(TTL / 3)
            await pair.database.fetch("SELECT 1")
    finally:
        faults.install(None)
        beat.cancel()
    assert not lease.lost.is_set()


async def test_a_resigned_lease_is_free_at_once(pair: Pair) -> None:
    lease = await pair.take(pair.first)
    await pair.first.resign(lease)
    with pytest.raises(DependencyError):
        lease.effect_seconds()
    assert await pair.second.take(pair.principal, NAME) is not None


async def test_resigning_an_older_lease_does_not_free_the_newer_one(pair: Pair) -> None:
    """A service that ends late must not give away what its successor in the same process holds."""
    older = await pair.take(pair.first)
    newer = await pair.take(pair.first)
    assert older.lost.is_set()
    await pair.first.resign(older)
    assert await pair.second.take(pair.principal, NAME) is None
    await mark(newer, "$a")


async def test_resigning_without_a_database_does_not_raise(pair: Pair) -> None:
    lease = await pair.take(pair.first)
    await pair.database.close()
    await pair.first.resign(lease)


async def test_a_lease_taken_while_a_renewal_runs_is_not_lost(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The renewal did not ask for it, so its answer says nothing about it."""
    taken: list[Lease] = []
    fetch = Tx.fetch

    async def slow_fetch(tx: Tx, statement: str, *args: object) -> object:
        rows = await fetch(tx, statement, *args)
        if tx.name == "lease.renew" and not taken:
            taken.append(await pair.take(pair.first))
        return rows

    monkeypatch.setattr(Tx, "fetch", slow_fetch)
    beat = asyncio.create_task(pair.first.beat())
    await asyncio.sleep(0)
    await pair.clock.advance(TTL / 3)
    await asyncio.sleep(0)
    while not taken:
        await pair.database.fetch("SELECT 1")
    before = taken[0].trusted_until
    while taken[0].trusted_until == before and not taken[0].lost.is_set():
        await pair.clock.advance(TTL / 3)
        await pair.database.fetch("SELECT 1")
    beat.cancel()
    assert not taken[0].lost.is_set()


# ---- losing ----------------------------------------------------------------------------------------------------------
async def test_a_stale_owner_writes_nothing_and_steps_down(pair: Pair) -> None:
    """H2."""
    stale = await pair.take(pair.first)
    await mark(stale, "$before")
    await pair.advance(TTL + 1)
    current = await pair.take(pair.second)
    with pytest.raises(FenceLost):
        await mark(stale, "$after")
    assert await pair.marks() == ["$before"]
    assert stale.lost.is_set()
    with pytest.raises(DependencyError):
        stale.effect_seconds()
    await mark(current, "$mine")


async def test_a_renewal_that_comes_too_late_marks_the_lease_lost(pair: Pair) -> None:
    stale = await pair.take(pair.first)
    await pair.advance(TTL + 1)
    await pair.take(pair.second)
    beat = asyncio.create_task(pair.first.beat())
    await asyncio.sleep(0)
    await pair.clock.advance(TTL / 3)
    await asyncio.wait_for(stale.lost.wait(), 10)
    beat.cancel()
    with pytest.raises(DependencyError):
        stale.effect_seconds()


async def test_an_open_transaction_of_the_old_owner_holds_a_take_over_up_only_until_it_ends(pair: Pair) -> None:
    """H2: what it wrote before the take-over stands; nothing of it comes after."""
    stale = await pair.take(pair.first)
    async with stale.transaction("test.write") as tx:
        await tx.execute(INSERT, "$in_time")
        await tx.execute("UPDATE clock_control SET test_offset = interval '20 seconds'")
        taking = asyncio.create_task(pair.second.take(pair.principal, NAME))
        while not await tx.fetch("SELECT 1 FROM pg_locks WHERE NOT granted"):
            await tx.execute("SELECT pg_sleep(0.005)")
        assert not taking.done()
    assert await taking is not None
    assert await pair.marks() == ["$in_time"]
    with pytest.raises(FenceLost):
        await mark(stale, "$late")


async def test_ownership_is_in_doubt_before_the_lease_expires(pair: Pair) -> None:
    """A margin of a fifth of the TTL; a single effect never gets more than its own limit."""
    lease = await pair.take(pair.first)
    assert lease.effect_seconds() == EFFECT_TIMEOUT_SECONDS
    await pair.clock.advance(TTL * 4 / 5 - 2)
    assert lease.effect_seconds() == pytest.approx(2)
    await pair.clock.advance(2)
    with pytest.raises(DependencyError, match="doubt"):
        lease.effect_seconds()
    assert not lease.lost.is_set()


def test_one_setting_gives_renewal_and_margin() -> None:
    assert (LeaseTimes(3.0).renewal_seconds, LeaseTimes(3.0).margin_seconds) == (1.0, 0.6)


async def test_write_transactions_of_one_lease_run_one_at_a_time(pair: Pair) -> None:
    """A5."""
    lease = await pair.take(pair.first)
    running: list[int] = []

    async def write(number: int) -> None:
        async with lease.transaction("test.write") as tx:
            running.append(number)
            await tx.execute(INSERT, f"${number}")
            assert running.pop() == number
            assert not running

    await asyncio.gather(*(write(n) for n in range(5)))
    assert len(await pair.marks()) == 5


# ---- processes -------------------------------------------------------------------------------------------------------
async def test_a_restart_of_the_same_folder_and_boot_frees_the_leases_of_the_dead(pair: Pair) -> None:
    """Holding the folder's file lock proves the owner dead."""
    await pair.take(pair.first)
    await add_process(pair.database, folder="/a", boot_id="boot")
    assert await pair.second.take(pair.principal, NAME) is not None
    rows = await pair.database.fetch("SELECT stopped_at IS NULL AS runs FROM processes ORDER BY process_id")
    assert [r["runs"] for r in rows] == [False, True, True]


@pytest.mark.parametrize(
    ("folder", "boot_id", "host"), [("/other", "boot", "host"), ("/a", "other boot", "host"), ("/a", "boot", "other")]
)
async def test_a_process_of_another_folder_boot_or_host_frees_nothing(
    pair: Pair, folder: str, boot_id: str, host: str
) -> None:
    """Containers of one machine share its boot and often the path of their folder, which is another one in each."""
    await pair.take(pair.first)
    await add_process(pair.database, folder=folder, boot_id=boot_id, host=host)
    assert await pair.second.take(pair.principal, NAME) is None


async def test_a_process_killed_in_its_orderly_end_is_freed_by_its_restart_too(pair: Pair) -> None:
    await pair.take(pair.first)
    await pair.first.leave()
    await add_process(pair.database, folder="/a", boot_id="boot")
    assert await pair.second.take(pair.principal, NAME) is not None


async def test_an_orderly_end_is_noted(pair: Pair) -> None:
    process = await add_process(pair.database, folder="/c")
    await keeper(pair.database, process, clock=pair.clock).leave()
    rows = await pair.database.fetch("SELECT process_id FROM processes WHERE stopped_at IS NOT NULL")
    assert [r["process_id"] for r in rows] == [process]

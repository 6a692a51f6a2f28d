"""H3, R40: a database that is away, slow, locked or replaced. The engine's clock stands still: nothing here waits."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import unquote

import asyncpg
import pytest
from structlog.testing import capture_logs

from mindroom.core.clock import TestClock
from mindroom.core.errors import DatabaseUnavailable, FenceLost
from mindroom.core.ids import PrincipalName
from mindroom.db.embedded import EmbeddedPostgres
from mindroom.db.engine import Database
from mindroom.db.folder import DataFolder
from mindroom.db.schema import upgrade
from tests.support.ledgers import add_principal, add_process, keeper, open_database
from tests.support.owner import wait_until
from tests.support.tcp_proxy import Mode, TcpProxy

INSERT = "INSERT INTO answered_marks (principal, event_id) VALUES (1, $1)"
NAME = PrincipalName("agent")


@asynccontextmanager
async def proxied(dsn: str, clock: TestClock | None = None) -> AsyncIterator[tuple[TcpProxy, Database]]:
    at = re.fullmatch(r"(.*)\?host=(.+)&port=(\d+)", dsn)
    assert at is not None
    socket = Path(unquote(at[2])) / f".s.PGSQL.{at[3]}"
    async with (
        TcpProxy(socket) as proxy,
        open_database(f"{at[1]}?host=127.0.0.1&port={proxy.port}", clock=clock) as database,
    ):
        yield proxy, database


async def turns_of_the_loop(count: int = 200) -> None:
    """Give everything that is ready its chance."""
    for _ in range(count):
        await asyncio.sleep(0)


async def rows(dsn: str) -> list[str]:
    async with open_database(dsn) as database:
        return [row["event_id"] for row in await database.fetch("SELECT event_id FROM answered_marks")]


async def write(database: Database, event_id: str) -> None:
    async with database.transaction("test.write") as tx:
        await tx.execute(INSERT, event_id)


def retries(database: Database) -> float:
    found = database.metrics.registry.get_sample_value("mindroom_db_retries_total", {"name": "test.write"})
    return found or 0.0


async def lost_commit(proxy: TcpProxy, database: Database) -> "asyncio.Task[None]":
    """A commit that happened, whose reply is lost, on a database that is away from then on."""

    async def body() -> None:
        async with database.transaction("test.write") as tx:
            await tx.execute(INSERT, "$a")
            lost.set_result(proxy.lose_reply_of(b"COMMIT"))

    lost: asyncio.Future[asyncio.Event] = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(database.rerun("test.write", body))
    await (await lost).wait()
    await proxy.set_mode(Mode.REFUSE)
    return task


# ---- the fate of a commit --------------------------------------------------------------------------------------------
async def test_h3_a_fate_nobody_can_tell_is_never_called_not_written(database_dsn: str) -> None:
    """K2: an hour without a database, and the caller still waits; then it hears that its rows are there."""
    clock = TestClock()
    async with proxied(database_dsn, clock) as (proxy, database):
        task = await lost_commit(proxy, database)
        for _ in range(60):
            await clock.advance(60)
            await turns_of_the_loop(20)
        assert not task.done()
        await proxy.set_mode(Mode.FORWARD)
        while not task.done():
            await clock.advance(1)
            await turns_of_the_loop(5)
        await task
    assert await rows(database_dsn) == ["$a"]


async def test_h3_a_cancelled_caller_waits_for_a_fate_only_for_a_while(database_dsn: str) -> None:
    """A stop is not held up by a database that is away, and nothing is said about the rows."""
    clock = TestClock()
    async with proxied(database_dsn, clock) as (proxy, database):
        task = await lost_commit(proxy, database)
        task.cancel()
        await turns_of_the_loop()
        assert not task.done()
        await clock.advance(5)
        with pytest.raises(asyncio.CancelledError):
            await task


# ---- attempts --------------------------------------------------------------------------------------------------------
async def test_j1_r40_attempts_wait_on_the_clock_and_are_few(database_dsn: str) -> None:
    """No spin: six attempts, each after a wait that the clock has to pass; then the caller decides."""
    clock, ran = TestClock(), list[int]()
    async with open_database(database_dsn, clock=clock) as database:

        async def body() -> None:
            ran.append(1)
            raise DatabaseUnavailable("away")

        task = asyncio.ensure_future(database.rerun("test.write", body))
        await turns_of_the_loop()
        assert len(ran) == 1
        while not task.done():
            await clock.advance(0.5)
            await turns_of_the_loop(5)
        with pytest.raises(DatabaseUnavailable):
            await task
        assert len(ran) == 6
        assert 1 <= clock.boottime() <= 4
        assert retries(database) == 5


async def test_r40_the_log_tells_how_long_the_database_was_away(database_dsn: str) -> None:
    clock = TestClock()
    async with proxied(database_dsn, clock) as (proxy, database):
        await proxy.set_mode(Mode.REFUSE)
        with capture_logs() as logs:
            for _ in range(3):
                with pytest.raises(DatabaseUnavailable):
                    await database.fetch("SELECT 1")
                await clock.advance(14)
            await proxy.set_mode(Mode.FORWARD)
            await database.fetch("SELECT 1")
            await database.fetch("SELECT 1")
        told = [entry["outage_seconds"] for entry in logs if entry["event"] == "database_answers_again"]
        assert told == [42.0]


async def test_r40_slow_commits_are_waited_for_and_run_once(database_dsn: str) -> None:
    """B6: every packet takes its time; nothing is cancelled, nothing runs twice."""
    async with proxied(database_dsn) as (proxy, database):
        proxy.latency_seconds = 0.2
        await database.rerun("test.write", lambda: write(database, "$slow"))
        assert retries(database) == 0
    assert await rows(database_dsn) == ["$slow"]


# ---- rivals ----------------------------------------------------------------------------------------------------------
async def test_r40_a_rival_that_idles_on_the_fence_row_delays_and_does_not_hang(database_dsn: str) -> None:
    """Its session is somebody else's and stays as long as it likes: we ask again, and go on when it ends."""
    async with open_database(database_dsn, lease_ttl_seconds=0.6) as database:
        principal = await add_principal(database)
        leases = keeper(database, await add_process(database), clock=TestClock())
        lease = await leases.take(principal, NAME)
        assert lease is not None
        rival = await asyncpg.connect(database_dsn)
        await rival.execute("BEGIN")
        await rival.execute("SELECT 1 FROM principal_fence FOR UPDATE")
        with pytest.raises(DatabaseUnavailable):
            await asyncio.wait_for(_mark(lease.transaction("test.write"), "$never"), 5)
        task = asyncio.ensure_future(lease.run("test.write", lambda tx: tx.execute(INSERT, "$a")))
        await wait_until(lambda: retries(database) > 0)
        await rival.close()
        await task
    assert await rows(database_dsn) == ["$a"]


async def _mark(transaction: object, event_id: str) -> None:
    async with transaction as tx:  # type: ignore[attr-defined]
        await tx.execute(INSERT, event_id)


# ---- another server --------------------------------------------------------------------------------------------------
async def test_h3_after_a_fail_over_a_lease_writes_nothing_and_fates_are_not_asked(short_path: Path) -> None:
    """On a new timeline transaction ids are given out again, and what was committed may be gone: all is read anew."""
    async with EmbeddedPostgres(DataFolder(short_path)) as server:
        await upgrade(server.dsn)
        async with open_database(server.dsn) as database:
            principal = await add_principal(database)
            leases = keeper(database, await add_process(database), clock=TestClock())
            lease = await leases.take(principal, NAME)
            assert lease is not None
            async with database.transaction("test.write") as tx:
                mark = await tx.fetchrow("SELECT pg_current_xact_id()::text AS xid, pg_backend_pid() AS pid")
                assert mark is not None
                before = {"xid": mark["xid"], "pid": mark["pid"], "timeline": tx.timeline}
            assert await database._fate(before)
            await database.fetch("SELECT pg_switch_wal()")
            await _promote(server)
            assert not await database._fate(before)
            with pytest.raises(FenceLost):
                await lease.run("test.write", lambda tx: tx.execute(INSERT, "$stale"))
            assert lease.lost.is_set()
            again = await leases.take(principal, NAME)
            assert again is not None
            await again.run("test.write", lambda tx: tx.execute(INSERT, "$a"))
            assert [row["event_id"] for row in await database.fetch("SELECT event_id FROM answered_marks")] == ["$a"]


async def _promote(server: EmbeddedPostgres) -> None:
    """The same rows under a new timeline, as a standby has them after its promotion."""
    connection = await asyncpg.connect(server.dsn)
    await connection.execute("ALTER SYSTEM SET restore_command = 'false'")
    await connection.close()
    await server.stop()
    (server._folder.postgres / "recovery.signal").touch()
    await server.start()

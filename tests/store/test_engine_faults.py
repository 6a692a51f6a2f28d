"""Named transactions over a PostgreSQL that fails in every way the engine promises to survive."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from mindroom.core import faults
from mindroom.core.errors import DatabaseUnavailable
from mindroom.core.faults import Fault, FaultPlan, Moment
from mindroom.db.engine import Database, Tx
from tests.support.ledgers import open_database
from tests.support.tcp_proxy import TcpProxy

INSERT = "INSERT INTO answered_marks (principal, event_id) VALUES (1, $1)"
SURVIVABLE = [Fault.ERROR, Fault.LOST_REPLY, Fault.DISCONNECT]


@pytest.fixture
async def database(database_dsn: str) -> AsyncIterator[Database]:
    async with open_database(database_dsn) as opened:
        yield opened


@pytest.fixture(autouse=True)
def no_plan() -> Iterator[None]:
    yield
    faults.install(None)


async def rows(database: Database) -> list[str]:
    return [r["event_id"] for r in await database.fetch("SELECT event_id FROM answered_marks ORDER BY event_id")]


async def backend(tx: Tx) -> int:
    row = await tx.fetchrow("SELECT pg_backend_pid() AS pid")
    assert row is not None
    return int(row["pid"])


async def kill(database: Database, pid: int) -> None:
    await database.fetch("SELECT pg_terminate_backend($1, 5000)", pid)


def metric(database: Database, sample: str, transaction: str | None = None) -> float:
    labels = {} if transaction is None else {"name": transaction}
    return database.metrics.registry.get_sample_value(f"mindroom_{sample}", labels) or 0.0


async def _waits_for_lock(tx: Tx) -> None:
    while not await tx.fetch("SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'advisory'"):
        await tx.execute("SELECT pg_sleep(0.005)")


async def test_effects_do_not_run_when_the_commit_fails(database: Database) -> None:
    seen: list[str] = []
    faults.install(FaultPlan(point="tx.test.write", moment="before", fault=Fault.ERROR))
    with pytest.raises(DatabaseUnavailable):
        async with database.transaction("test.write") as tx:
            tx.after_commit(lambda: seen.append("never"))
    assert seen == []


@pytest.mark.parametrize("fault", SURVIVABLE)
@pytest.mark.parametrize(("moment", "runs"), [("before", 2), ("after", 1)])
async def test_a_body_runs_again_only_when_nothing_was_written(
    database: Database, fault: Fault, moment: Moment, runs: int
) -> None:
    """K2: executed, but the caller saw a timeout: the fate is asked, so the rows are there exactly once."""
    ran: list[int] = []
    effects: list[str] = []

    async def body() -> str:
        async with database.transaction("test.write") as tx:
            ran.append(1)
            await tx.execute(INSERT, f"$run{len(ran)}")
            tx.after_commit(lambda: effects.append("once"))
        return "done"

    faults.install(FaultPlan(point="tx.test.write", moment=moment, fault=fault))
    assert await database.rerun("test.write", body) == "done"
    assert len(ran) == runs
    assert await rows(database) == [f"$run{runs}"]
    assert effects == ["once"]
    assert metric(database, "db_retries_total", "test.write") == runs - 1


async def test_a_fate_is_asked_even_through_a_pool_of_one(database_dsn: str) -> None:
    """The connection in doubt gives its place back before the question is put."""
    async with open_database(database_dsn, pool_size=1) as database:
        faults.install(FaultPlan(point="tx.test.write", moment="after", fault=Fault.LOST_REPLY))
        async with database.transaction("test.write") as tx:
            await tx.execute(INSERT, "$a")
        assert await rows(database) == ["$a"]


async def test_a_killed_backend_in_the_middle_is_unavailable_and_a_rerun_heals(database: Database) -> None:
    """R40, H3."""
    killed: list[int] = []

    async def body() -> None:
        async with database.transaction("test.write") as tx:
            await tx.execute(INSERT, "$a")
            if not killed:
                killed.append(await backend(tx))
                await kill(database, killed[0])
            await tx.execute(INSERT, "$b")

    with pytest.raises(DatabaseUnavailable):
        await body()
    assert await rows(database) == []
    killed.clear()
    await database.rerun("test.write", body)
    assert await rows(database) == ["$a", "$b"]


async def test_a_backend_killed_before_its_commit_wrote_nothing(database: Database) -> None:

    async def body() -> None:
        async with database.transaction("test.write") as tx:
            await tx.execute(INSERT, "$a")
            await kill(database, await backend(tx))

    with pytest.raises(DatabaseUnavailable, match="did not commit"):
        await body()
    assert await rows(database) == []


async def test_all_sessions_killed_at_once_heal(database: Database, database_dsn: str) -> None:
    """H3."""
    await asyncio.gather(*(database.fetch("SELECT pg_sleep(0.01)") for _ in range(4)))
    async with open_database(database_dsn, pool_size=1) as rival:
        await rival.fetch(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )

    async def body() -> None:
        async with database.transaction("test.write") as tx:
            await tx.execute(INSERT, "$a")

    await database.rerun("test.write", body)
    assert await rows(database) == ["$a"]


async def test_a_cancelled_commit_is_still_there_and_the_cancellation_arrives(database: Database) -> None:
    """COMMIT is shielded; effects have run before CancelledError reaches the caller."""
    effects: list[str] = []
    at_commit = asyncio.Event()

    async def write() -> None:
        async with database.transaction("test.write") as tx:
            await tx.execute(
                "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON answered_marks DEFERRABLE INITIALLY DEFERRED "
                "FOR EACH ROW EXECUTE FUNCTION slow_commit()"
            )
            await tx.execute(INSERT, "$a")
            tx.after_commit(lambda: effects.append("ran"))
            at_commit.set()

    async with database.transaction("test.setup") as tx:
        await tx.execute(
            "CREATE FUNCTION slow_commit() RETURNS trigger LANGUAGE plpgsql "
            "AS 'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END'"
        )
    async with database.transaction("test.lock") as lock:
        await lock.execute("SELECT pg_advisory_xact_lock(1)")
        task = asyncio.create_task(write())
        await at_commit.wait()
        await _waits_for_lock(lock)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        assert not task.done()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert await rows(database) == ["$a"]
    assert effects == ["ran"]


async def test_a_cancelled_body_rolls_back_and_gives_its_connection_back(database_dsn: str) -> None:
    async with open_database(database_dsn, pool_size=1) as database:
        inside = asyncio.Event()

        async def write() -> None:
            async with database.transaction("test.write") as tx:
                await tx.execute(INSERT, "$a")
                inside.set()
                await tx.execute("SELECT pg_sleep(60)")

        task = asyncio.create_task(write())
        await inside.wait()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await rows(database) == []


async def test_a_cancellation_wins_over_a_commit_that_failed(database: Database) -> None:
    """Otherwise a rerun would go on with work that was cancelled."""
    ran: list[int] = []

    async def body() -> None:
        async with database.transaction("test.write") as tx:
            ran.append(1)
            await kill(database, await backend(tx))
            task.get_loop().call_soon(task.cancel)

    task = asyncio.create_task(database.rerun("test.write", body))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ran == [1]


async def test_a_session_idle_in_its_transaction_is_ended_by_the_server(database_dsn: str) -> None:
    """H3: a stopped owner cannot hold its locks longer than a third of the TTL."""
    async with open_database(database_dsn, lease_ttl_seconds=0.3) as database:

        async def body() -> None:
            async with database.transaction("test.write") as tx:
                await tx.execute(INSERT, "$a")
                pid = await backend(tx)
                while await database.fetch("SELECT 1 FROM pg_stat_activity WHERE pid = $1", pid):
                    await database.fetch("SELECT pg_sleep(0.01)")

        with pytest.raises(DatabaseUnavailable):
            await body()
        assert await rows(database) == []


async def test_a_commit_whose_reply_is_lost_on_the_wire_is_found_committed(database_dsn: str) -> None:
    """K2, over a real connection."""
    ran: list[int] = []
    lost: list[asyncio.Event] = []
    at = re.fullmatch(r"(.*)\?host=(.+)&port=(\d+)", database_dsn)
    assert at is not None
    socket = Path(unquote(at[2])) / f".s.PGSQL.{at[3]}"
    async with TcpProxy(socket) as proxy, open_database(f"{at[1]}?host=127.0.0.1&port={proxy.port}") as database:

        async def body() -> None:
            async with database.transaction("test.write") as tx:
                ran.append(1)
                await tx.execute(INSERT, "$a")
                lost.append(proxy.lose_reply_of(b"COMMIT"))

        await database.rerun("test.write", body)
        assert lost[0].is_set()
        assert ran == [1]
        assert await rows(database) == ["$a"]

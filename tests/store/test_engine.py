"""Named transactions against a real PostgreSQL that fails in every way the engine promises to survive."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from mindroom.core import faults
from mindroom.core.errors import CorruptState, DatabaseUnavailable, FenceLost
from mindroom.core.faults import Fault, FaultPlan, Moment
from mindroom.core.ids import Fence, PrincipalId
from mindroom.db.engine import Database, Tx
from tests.support.ledgers import add_principal, open_database

INSERT = "INSERT INTO answered_marks (principal, event_id) VALUES (1, $1)"
OTHER_FAULTS = [Fault.ERROR, Fault.LOST_REPLY, Fault.DISCONNECT]


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


def metric(database: Database, sample: str, transaction: str | None = None) -> float:
    labels = {} if transaction is None else {"name": transaction}
    return database.metrics.registry.get_sample_value(f"mindroom_{sample}", labels) or 0.0


async def test_a_committed_transaction_is_there_and_measured_by_its_name(database: Database) -> None:
    async with database.transaction("test.write") as tx:
        await tx.execute(INSERT, "$a")
    assert await rows(database) == ["$a"]
    assert metric(database, "db_transaction_seconds_count", "test.write") == 1


async def test_an_error_in_the_body_leaves_nothing_and_the_pool_whole(database: Database) -> None:
    for _ in range(10):
        with pytest.raises(RuntimeError, match="mine"):
            async with database.transaction("test.write") as tx:
                await tx.execute(INSERT, "$a")
                raise RuntimeError("mine")
    assert await rows(database) == []


async def test_effects_run_after_the_commit_and_never_without_it(database: Database) -> None:
    seen: list[str] = []
    with pytest.raises(RuntimeError):
        async with database.transaction("test.write") as tx:
            tx.after_commit(lambda: seen.append("never"))
            raise RuntimeError
    async with database.transaction("test.write") as tx:
        await tx.execute(INSERT, "$a")
        tx.after_commit(lambda: seen.append("committed"))
        assert seen == []
    assert seen == ["committed"]


async def test_effects_do_not_run_when_the_commit_fails(database: Database) -> None:
    seen: list[str] = []
    faults.install(FaultPlan(point="tx.test.write", moment="before", fault=Fault.ERROR))
    with pytest.raises(DatabaseUnavailable):
        async with database.transaction("test.write") as tx:
            tx.after_commit(lambda: seen.append("never"))
    assert seen == []


@pytest.mark.parametrize("fault", OTHER_FAULTS)
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
                row = await tx.fetchrow("SELECT pg_backend_pid() AS pid")
                assert row is not None
                killed.append(row["pid"])
                await database.fetch("SELECT pg_terminate_backend($1, 5000)", row["pid"])
            await tx.execute(INSERT, "$b")

    with pytest.raises(DatabaseUnavailable):
        await body()
    assert await rows(database) == []
    killed.clear()
    await database.rerun("test.write", body)
    assert await rows(database) == ["$a", "$b"]


async def test_a_backend_killed_before_its_commit_wrote_nothing(database: Database) -> None:
    with pytest.raises(DatabaseUnavailable, match="did not commit"):
        async with database.transaction("test.write") as tx:
            await tx.execute(INSERT, "$a")
            row = await tx.fetchrow("SELECT pg_backend_pid() AS pid")
            assert row is not None
            await database.fetch("SELECT pg_terminate_backend($1, 5000)", row["pid"])
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


async def _waits_for_lock(tx: Tx) -> None:
    while not await tx.fetch("SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'advisory'"):
        await asyncio.sleep(0.005)


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
            row = await tx.fetchrow("SELECT pg_backend_pid() AS pid")
            assert row is not None
            await database.fetch("SELECT pg_terminate_backend($1, 5000)", row["pid"])
            task.get_loop().call_soon(task.cancel)

    task = asyncio.create_task(database.rerun("test.write", body))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ran == [1]


async def test_a_session_idle_in_its_transaction_is_ended_by_the_server(database_dsn: str) -> None:
    """H3: a stopped owner cannot hold its locks longer than a third of the TTL."""
    async with open_database(database_dsn, lease_ttl_seconds=0.3) as database:
        with pytest.raises(DatabaseUnavailable):
            async with database.transaction("test.write") as tx:
                await tx.execute(INSERT, "$a")
                row = await tx.fetchrow("SELECT pg_backend_pid() AS pid")
                assert row is not None
                while await database.fetch("SELECT 1 FROM pg_stat_activity WHERE pid = $1", row["pid"]):
                    await asyncio.sleep(0.01)
        assert await rows(database) == []


async def test_an_exhausted_pool_makes_callers_wait_and_then_says_unavailable(database_dsn: str) -> None:
    """H3."""
    async with open_database(database_dsn, pool_size=1, acquire_seconds=0.05) as database:
        async with database.transaction("test.write"):
            with pytest.raises(DatabaseUnavailable):
                await database.fetch("SELECT 1")
        assert await database.fetch("SELECT 1")


async def test_a_waiting_caller_gets_the_connection_when_it_is_free(database_dsn: str) -> None:
    async with open_database(database_dsn, pool_size=1) as database:
        async with database.transaction("test.write"):
            waiting = asyncio.create_task(database.fetch("SELECT 1 AS one"))
            await asyncio.sleep(0)
        assert [r["one"] for r in await waiting] == [1]


async def test_a_guard_lets_only_the_current_fence_write(database: Database) -> None:
    """H2: under another fence nothing is written, and the refusal is counted."""
    principal = await add_principal(database)
    async with database.transaction("test.write", guard=(principal, Fence(0))) as tx:
        await tx.execute(INSERT, "$a")
    for guard in [(principal, Fence(1)), (PrincipalId(principal + 1), Fence(0))]:
        with pytest.raises(FenceLost):
            async with database.transaction("test.write", guard=guard) as tx:
                await tx.execute(INSERT, "$b")
    assert await rows(database) == ["$a"]
    assert metric(database, "fence_rejected_total") == 2


async def test_a_wrong_statement_is_not_an_unavailable_database(database: Database) -> None:
    with pytest.raises(asyncpg.UndefinedTableError):
        await database.fetch("SELECT * FROM no_such_table")
    with pytest.raises(asyncpg.UniqueViolationError):
        async with database.transaction("test.write") as tx:
            await tx.execute(INSERT, "$a")
            await tx.execute(INSERT, "$a")


async def test_an_argument_that_does_not_fit_is_not_an_unavailable_database(database: Database) -> None:
    """Retrying it for ever would block everything behind it."""
    for argument in (2**40, "text"):
        with pytest.raises(asyncpg.DataError):
            await database.fetch("SELECT $1::int", argument)
    with pytest.raises(asyncpg.DataError):
        await database.fetch("SELECT $1::text", "\ud800")


async def test_a_swallowed_error_cannot_pass_for_a_commit(database: Database) -> None:
    """PostgreSQL answers COMMIT of a failed transaction with ROLLBACK and no error."""

    async def swallow(tx: Tx) -> None:
        with pytest.raises(asyncpg.UndefinedTableError):
            await tx.fetch("SELECT * FROM no_such_table")

    with pytest.raises(CorruptState, match=r"test\.write"):
        async with database.transaction("test.write") as tx:
            await tx.execute(INSERT, "$a")
            await swallow(tx)
    assert await rows(database) == []


async def test_a_server_that_cannot_be_reached_is_unavailable() -> None:
    with pytest.raises(DatabaseUnavailable):
        async with open_database("postgresql://nobody@/none?host=/nonexistent"):
            pass

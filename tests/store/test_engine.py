"""Named transactions: what is written, measured, refused, and told apart."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from mindroom.core.errors import CorruptState, DatabaseUnavailable, FenceLost
from mindroom.core.ids import Fence, PrincipalId
from mindroom.db.engine import Database, Tx, unavailable
from tests.support.ledgers import add_principal, open_database

INSERT = "INSERT INTO answered_marks (principal, event_id) VALUES (1, $1)"


@pytest.fixture
async def database(database_dsn: str) -> AsyncIterator[Database]:
    async with open_database(database_dsn) as opened:
        yield opened


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

    async def body() -> None:
        async with database.transaction("test.write") as tx:
            await tx.execute(INSERT, "$a")
            raise RuntimeError("mine")

    for _ in range(10):
        with pytest.raises(RuntimeError, match="mine"):
            await body()
    assert await rows(database) == []


async def test_effects_run_after_the_commit_and_never_without_it(database: Database) -> None:
    seen: list[str] = []

    async def body() -> None:
        async with database.transaction("test.write") as tx:
            tx.after_commit(lambda: seen.append("never"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await body()
    async with database.transaction("test.write") as tx:
        await tx.execute(INSERT, "$a")
        tx.after_commit(lambda: seen.append("committed"))
        assert seen == []
    assert seen == ["committed"]


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


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (asyncpg.ConnectionDoesNotExistError(), True),
        (asyncpg.TooManyConnectionsError(), True),
        (asyncpg.AdminShutdownError(), True),
        (asyncpg.CannotConnectNowError(), True),
        (asyncpg.QueryCanceledError(), True),
        (asyncpg.DeadlockDetectedError(), True),
        (asyncpg.SerializationError(), True),
        (asyncpg.LockNotAvailableError(), True),
        (asyncpg.IdleInTransactionSessionTimeoutError(), True),
        (asyncpg.ReadOnlySQLTransactionError(), True),
        (asyncpg.InterfaceError("connection is closed"), True),
        (asyncpg.InternalClientError("another operation is in progress"), True),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (asyncpg.UniqueViolationError(), False),
        (asyncpg.InFailedSQLTransactionError(), False),
        (asyncpg.UndefinedColumnError(), False),
        (asyncpg.DataError(), False),
        (ValueError(), False),
    ],
)
def test_errors_that_say_not_now_are_told_from_wrong_statements(error: Exception, expected: bool) -> None:
    """H3, C2: the first are tried again for ever, the second would never work."""
    assert unavailable(error) is expected


async def test_a_wrong_statement_is_not_an_unavailable_database(database: Database) -> None:
    with pytest.raises(asyncpg.UndefinedTableError):
        await database.fetch("SELECT * FROM no_such_table")

    async def body() -> None:
        async with database.transaction("test.write") as tx:
            await tx.execute(INSERT, "$a")
            await tx.execute(INSERT, "$a")

    with pytest.raises(asyncpg.UniqueViolationError):
        await body()


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

    async def body() -> None:
        async with database.transaction("test.write") as tx:
            await tx.execute(INSERT, "$a")
            await swallow(tx)

    with pytest.raises(CorruptState, match=r"test\.write"):
        await body()
    assert await rows(database) == []


async def test_a_server_that_cannot_be_reached_is_unavailable() -> None:
    with pytest.raises(DatabaseUnavailable):
        async with open_database("postgresql://nobody@/none?host=/nonexistent"):
            pass

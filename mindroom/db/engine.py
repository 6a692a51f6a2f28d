"""Connection pool and named transactions.

A transaction has a name: metric label, log field and fault point before and after its COMMIT. COMMIT is shielded from
cancellation. When its reply is lost, the fate of the transaction is asked of PostgreSQL by transaction id, so that the
caller knows whether its rows are there (architecture section 5). No network await of another kind happens while a
connection is held.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import asyncpg
import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from mindroom.core import faults
from mindroom.core.errors import CorruptState, DatabaseUnavailable, FenceLost
from mindroom.core.faults import Fault, InjectedFault
from mindroom.core.ids import Fence, PrincipalId
from mindroom.core.metrics import Metrics

log = structlog.get_logger(__name__)
T = TypeVar("T")

# SQLSTATEs that say "not now": connection, resources, operator intervention, serialization, lock timeouts, a session
# ended in its transaction, and a server that became a standby.
_UNAVAILABLE_CLASSES = ("08", "53", "57", "40", "55P03", "25P03", "25006")
# InternalClientError: the server's last word has arrived, but the driver has not noticed the end of the connection yet.
_DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
_FATE_PATIENCE_SECONDS = 30.0
_RERUN_ATTEMPTS = 6

_GUARD = """SELECT /* mindroom:guard */ pg_current_xact_id()::text AS xid, pg_backend_pid() AS pid, fence
FROM principal_fence WHERE principal = $1 FOR SHARE"""
_BEGIN_UNGUARDED = "SELECT /* mindroom:begin */ pg_current_xact_id()::text AS xid, pg_backend_pid() AS pid"
_FATE = "/* mindroom:fate */ SELECT pg_xact_status($1::text::xid8) AS status"
_END_BACKEND = "/* mindroom:end_backend */ SELECT pg_terminate_backend($1)"


def unavailable(error: BaseException) -> bool:
    """True when `error` means that the database cannot be used now, rather than that a statement is wrong."""
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        return state.startswith(_UNAVAILABLE_CLASSES)
    return isinstance(error, _DRIVER_ERRORS)


@asynccontextmanager
async def database_errors() -> AsyncIterator[None]:
    """Turn driver errors of an absent database into DatabaseUnavailable; others pass."""
    try:
        yield
    except _DRIVER_ERRORS as error:
        if unavailable(error):
            raise DatabaseUnavailable(f"{type(error).__name__}") from error
        raise


@dataclass
class Tx:
    """One open transaction: statements, and effects to run once it is committed."""

    name: str
    connection: Any
    _after_commit: list[Callable[[], None]] = field(default_factory=list)

    async def fetch(self, statement: str, *args: Any) -> list[asyncpg.Record]:
        """All rows of a statement."""
        rows: list[asyncpg.Record] = await self.connection.fetch(statement, *args)
        return rows

    async def fetchrow(self, statement: str, *args: Any) -> asyncpg.Record | None:
        """The first row, or None."""
        return await self.connection.fetchrow(statement, *args)

    async def execute(self, statement: str, *args: Any) -> None:
        """A statement whose rows nobody needs."""
        await self.connection.execute(statement, *args)

    def after_commit(self, effect: Callable[[], None]) -> None:
        """Run `effect` once the commit is known; never when it is not."""
        self._after_commit.append(effect)

    def run_after_commit(self) -> None:
        """Called by the engine."""
        for effect in self._after_commit:
            effect()


class Database:
    """A pool on one PostgreSQL database. Reads may use `read`; every write is a named transaction."""

    def __init__(self, pool: asyncpg.Pool, metrics: Metrics, *, acquire_seconds: float = 10.0) -> None:
        self._pool = pool
        self._acquire_seconds = acquire_seconds
        self.metrics = metrics

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        waited = time.perf_counter()
        async with database_errors():
            connection = await self._pool.acquire(timeout=self._acquire_seconds)
        self.metrics.db_pool_wait_seconds.observe(time.perf_counter() - waited)
        try:
            yield connection
        finally:
            with suppress(*_DRIVER_ERRORS):
                await asyncio.shield(self._pool.release(connection))

    async def fetch(self, statement: str, *args: Any) -> list[asyncpg.Record]:
        """A read outside any transaction. Raises DatabaseUnavailable."""
        async with self._connection() as connection, database_errors():
            rows: list[asyncpg.Record] = await connection.fetch(statement, *args)
            return rows

    async def fetchrow(self, statement: str, *args: Any) -> asyncpg.Record | None:
        """The first row of a read. Raises DatabaseUnavailable."""
        rows = await self.fetch(statement, *args)
        return rows[0] if rows else None

    @asynccontextmanager
    async def transaction(self, name: str, *, guard: tuple[PrincipalId, Fence] | None = None) -> AsyncIterator[Tx]:
        """A named transaction, guarded by a principal's fence when one is given.

        Raises DatabaseUnavailable when nothing was written, FenceLost when the fence moved.
        """
        started = time.perf_counter()
        async with self._connection() as connection:
            try:
                async with database_errors():
                    await connection.execute("BEGIN")
                    xid, pid = await self._guard(connection, guard)
                    tx = Tx(name, connection)
                    yield tx
                faults.hit(f"tx.{name}", "before")
            except InjectedFault as fault:
                await self._abandon(connection, cut=fault.fault is not Fault.ERROR)
                raise DatabaseUnavailable(str(fault)) from fault
            except BaseException:
                await self._abandon(connection, cut=False)
                raise
            cancelled = await self._commit(connection, name, xid, pid)
        self.metrics.db_transaction_seconds.labels(name).observe(time.perf_counter() - started)
        tx.run_after_commit()
        if cancelled:
            raise asyncio.CancelledError

    async def _guard(self, connection: Any, guard: tuple[PrincipalId, Fence] | None) -> tuple[str, int]:
        if guard is None:
            row = await connection.fetchrow(_BEGIN_UNGUARDED)
            return row["xid"], row["pid"]
        principal, fence = guard
        row = await connection.fetchrow(_GUARD, principal)
        if row is None or row["fence"] != fence:
            self.metrics.fence_rejected.inc()
            raise FenceLost(f"principal {principal}: fence {fence} is no longer current")
        return row["xid"], row["pid"]

    async def _abandon(self, connection: Any, *, cut: bool) -> None:
        """End an uncommitted transaction; a connection in doubt is thrown away."""
        if cut:
            _cut(connection)
            return
        try:
            await asyncio.wait_for(connection.execute("ROLLBACK"), timeout=5)
        except _DRIVER_ERRORS:
            _cut(connection)
        except asyncio.CancelledError:
            _cut(connection)
            raise

    async def _commit(self, connection: Any, name: str, xid: str, pid: int) -> bool:
        """COMMIT whatever happens to the caller; returns whether the caller was cancelled meanwhile."""
        work = asyncio.ensure_future(self._commit_or_ask(connection, name, xid, pid))
        cancelled = False
        while not work.done():
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:
                cancelled = True
            except BaseException:  # read from the task below
                break
        try:
            work.result()
        except DatabaseUnavailable:
            if cancelled:  # a rerun would swallow the cancellation
                raise asyncio.CancelledError from None
            raise
        return cancelled

    async def _commit_or_ask(self, connection: Any, name: str, xid: str, pid: int) -> None:
        try:
            if await connection.execute("COMMIT") != "COMMIT":
                raise CorruptState(f"{name}: a statement failed, its error was swallowed, and nothing was written")
            faults.hit(f"tx.{name}", "after")
        except InjectedFault:
            _cut(connection)
        except _DRIVER_ERRORS as error:
            if not unavailable(error):
                raise
            _cut(connection)
        else:
            return
        if not await self._fate(xid, pid):
            raise DatabaseUnavailable(f"{name} did not commit")
        log.info("transaction_reply_lost_but_committed", transaction=name)

    async def _fate(self, xid: str, pid: int) -> bool:
        """Whether transaction `xid` committed. A backend that still holds it open is ended and asked again."""
        deadline = time.monotonic() + _FATE_PATIENCE_SECONDS
        pause = 0.02
        while time.monotonic() < deadline:
            with suppress(DatabaseUnavailable):
                try:
                    row = await self.fetchrow(_FATE, xid)
                except asyncpg.PostgresError:
                    return False  # a transaction id "in the future": the server lost it
                status = row["status"] if row is not None else None
                if status != "in progress":
                    return bool(status == "committed")
                await self.fetch(_END_BACKEND, pid)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)
        raise DatabaseUnavailable("the fate of a commit could not be asked")

    async def rerun(self, name: str, body: Callable[[], Awaitable[T]]) -> T:
        """Run `body`, which opens the transaction `name`, again while the database says that nothing was written."""
        try:
            return await body()
        except DatabaseUnavailable:
            log.info("transaction_runs_again", transaction=name)
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(DatabaseUnavailable),
            stop=stop_after_attempt(_RERUN_ATTEMPTS - 1),
            wait=wait_random_exponential(multiplier=0.05, max=2),
            reraise=True,
        ):
            with attempt:
                self.metrics.db_retries.labels(name).inc()
                return await body()
        raise AssertionError("unreachable")

    async def close(self) -> None:
        """Close the pool; connections in use are given a moment, then cut."""
        try:
            await asyncio.wait_for(self._pool.close(), timeout=5)
        except TimeoutError:
            self._pool.terminate()


def _cut(connection: Any) -> None:
    """Drop a connection in doubt; the pool has taken back one that is already closed and refuses any call on it."""
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


async def _keep_session(_connection: Any) -> None:
    """Sessions carry no state worth a RESET round trip."""


async def connect(
    dsn: str,
    *,
    metrics: Metrics,
    pool_size: int = 8,
    lease_ttl_seconds: float = 15.0,
    statement_cache_size: int = 200,
    acquire_seconds: float = 10.0,
) -> Database:
    """Open a pool. `statement_cache_size` 0 is what PgBouncer in transaction mode needs.

    `lease_ttl_seconds` bounds how long a stopped session may hold a transaction open (TTL / 3); `acquire_seconds` how
    long a caller waits for a free connection. Raises DatabaseUnavailable.
    """
    async with database_errors():
        pool = await asyncpg.create_pool(
            dsn,
            min_size=1,
            max_size=pool_size,
            max_inactive_connection_lifetime=0,
            command_timeout=60,
            statement_cache_size=statement_cache_size,
            reset=_keep_session,
            server_settings={
                "application_name": "mindroom",
                "jit": "off",
                # Lookups by key all of them; planning again for each set of parameters would find the same plan.
                "plan_cache_mode": "force_generic_plan",
                "idle_in_transaction_session_timeout": str(int(lease_ttl_seconds * 1000 / 3)),
                "tcp_user_timeout": "10000",
                "default_transaction_isolation": "read committed",
            },
        )
    return Database(pool, metrics, acquire_seconds=acquire_seconds)

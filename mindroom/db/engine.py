"""Connection pool and named transactions.

A transaction has a name: metric label, log field and fault point before and after its COMMIT. COMMIT is shielded from
cancellation. When its reply is lost, the fate of the transaction is asked of PostgreSQL by transaction id, so that the
caller knows whether its rows are there (architecture section 5). As long as PostgreSQL does not tell, the caller waits:
what may be there is never called absent. No network await of another kind happens while a connection is held.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import asyncpg
import structlog

from mindroom.core import faults
from mindroom.core.backoff import Backoff
from mindroom.core.clock import Clock, SystemClock
from mindroom.core.errors import CorruptState, DatabaseUnavailable, FenceLost
from mindroom.core.faults import Fault, InjectedFault
from mindroom.core.ids import Fence, PrincipalId
from mindroom.core.metrics import Metrics
from mindroom.db.address import read_address

log = structlog.get_logger(__name__)
T = TypeVar("T")

# SQLSTATEs that say "not now": connection, resources, operator intervention, serialization, lock timeouts, a session
# ended in its transaction, and a server that is a standby (25006, 55000).
_UNAVAILABLE_CLASSES = ("08", "53", "57", "40", "55P03", "25P03", "25006", "55000")
# InternalClientError: the server's last word has arrived, but the driver has not noticed the end of the connection yet.
_DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
_FAREWELL_SECONDS = 5.0
"""A caller that was cancelled waits this long for the fate of its commit."""
_RERUN_ATTEMPTS = 6

# Transaction ids mean something on one timeline only: a server that was promoted or restored gives them out anew.
_TIMELINE = "left(pg_walfile_name(pg_current_wal_lsn()), 8) AS timeline"
_MARK = f"pg_current_xact_id()::text AS xid, pg_backend_pid() AS pid, {_TIMELINE}"
_GUARD = f"SELECT /* mindroom:guard */ {_MARK}, fence FROM principal_fence WHERE principal = $1 FOR SHARE"
_BEGIN_UNGUARDED = f"SELECT /* mindroom:begin */ {_MARK}"
_FATE = f"/* mindroom:fate */ SELECT pg_xact_status($1::text::xid8) AS status, {_TIMELINE}"
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
    timeline: str
    """Of the server's history; another one means that what was committed before may be gone."""
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

    def __init__(
        self,
        pool: asyncpg.Pool,
        metrics: Metrics,
        *,
        acquire_seconds: float = 10.0,
        clock: Clock | None = None,
        begin: str = "BEGIN",
    ) -> None:
        """`begin` opens a transaction and sets what the session cannot keep."""
        self._pool = pool
        self._acquire_seconds = acquire_seconds
        self._clock = clock or SystemClock()
        self._begin = begin
        self._out_since: float | None = None
        self.metrics = metrics

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        waited = time.perf_counter()
        try:
            async with database_errors():
                connection = await self._pool.acquire(timeout=self._acquire_seconds)
            self.metrics.db_pool_wait_seconds.observe(time.perf_counter() - waited)
            try:
                yield connection
            finally:
                with suppress(*_DRIVER_ERRORS):
                    await asyncio.shield(self._pool.release(connection))
        except DatabaseUnavailable:
            if self._out_since is None:
                self._out_since = self._clock.boottime()
            raise
        if self._out_since is not None:
            outage_seconds, self._out_since = self._clock.boottime() - self._out_since, None
            log.info("database_answers_again", outage_seconds=round(outage_seconds, 3))

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

        Raises DatabaseUnavailable when nothing was written, FenceLost when the fence moved. Does not return before the
        fate of the commit is known, except to a caller that was cancelled.
        """
        started = time.perf_counter()
        async with self._connection() as connection:
            try:
                async with database_errors():
                    await connection.execute(self._begin)
                    mark = await self._guard(connection, guard)
                    tx = Tx(name, connection, mark["timeline"])
                    yield tx
                faults.hit(f"tx.{name}", "before")
            except InjectedFault as fault:
                await self._abandon(connection, cut=fault.fault is not Fault.ERROR)
                raise DatabaseUnavailable(str(fault)) from fault
            except BaseException:
                await self._abandon(connection, cut=False)
                raise
            cancelled = await self._commit(connection, name, mark)
        self.metrics.db_transaction_seconds.labels(name).observe(time.perf_counter() - started)
        tx.run_after_commit()
        if cancelled:
            raise asyncio.CancelledError

    async def _guard(self, connection: Any, guard: tuple[PrincipalId, Fence] | None) -> Any:
        if guard is None:
            return await connection.fetchrow(_BEGIN_UNGUARDED)
        principal, fence = guard
        row = await connection.fetchrow(_GUARD, principal)
        if row is None or row["fence"] != fence:
            self.metrics.fence_rejected.inc()
            raise FenceLost(f"principal {principal}: fence {fence} is no longer current")
        return row

    async def _abandon(self, connection: Any, *, cut: bool) -> None:
        """End an uncommitted transaction; a connection in doubt is thrown away."""
        if cut:
            _cut(connection)
            return
        try:
            async with asyncio.timeout(5):
                await connection.execute("ROLLBACK")
        except _DRIVER_ERRORS:
            _cut(connection)
        except asyncio.CancelledError:
            _cut(connection)
            raise

    async def _commit(self, connection: Any, name: str, mark: Any) -> bool:
        """COMMIT whatever happens to the caller; returns whether the caller was cancelled meanwhile."""
        work = asyncio.ensure_future(self._commit_or_ask(connection, name, mark))
        farewell: asyncio.Future[None] | None = None
        while not work.done() and not (farewell is not None and farewell.done()):
            try:
                await asyncio.wait({work, farewell} if farewell else {work}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                farewell = farewell or asyncio.ensure_future(self._clock.sleep(_FAREWELL_SECONDS))
        if farewell is not None:
            farewell.cancel()
        if not work.done():
            work.cancel()
            log.warning("transaction_fate_unknown", transaction=name)
            raise asyncio.CancelledError
        try:
            work.result()
        except DatabaseUnavailable:
            if farewell is not None:  # a rerun would swallow the cancellation
                raise asyncio.CancelledError from None
            raise
        return farewell is not None

    async def _commit_or_ask(self, connection: Any, name: str, mark: Any) -> None:
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
        if not await self._fate(mark):
            raise DatabaseUnavailable(f"{name} did not commit")
        log.info("transaction_reply_lost_but_committed", transaction=name)

    async def _fate(self, mark: Any) -> bool:
        """Whether that transaction committed, asked until it is told. A backend that holds it open is ended."""
        backoff = Backoff(0.02, 1.0)
        while True:
            with suppress(DatabaseUnavailable):
                try:
                    row = await self.fetchrow(_FATE, mark["xid"])
                except asyncpg.InvalidParameterValueError:
                    return False  # a transaction id "in the future": the server lost it
                if row is None or row["timeline"] != mark["timeline"]:
                    return False  # nobody knows; a lease of the earlier timeline writes no more, so all is read again
                if row["status"] != "in progress":
                    return bool(row["status"] == "committed")
                await self.fetch(_END_BACKEND, mark["pid"])
            await self._clock.sleep(backoff.next_seconds())

    async def rerun(self, name: str, body: Callable[[], Awaitable[T]]) -> T:
        """Run `body`, which opens the transaction `name`, again while the database says that nothing was written."""
        backoff = Backoff(0.05, 2.0)
        while True:
            try:
                return await body()
            except DatabaseUnavailable:
                wait_seconds = backoff.next_seconds()
                if backoff.failures == _RERUN_ATTEMPTS:
                    raise
            log.info("transaction_runs_again", transaction=name)
            self.metrics.db_retries.labels(name).inc()
            await self._clock.sleep(wait_seconds)

    async def close(self) -> None:
        """Close the pool; connections in use are given a moment, then cut."""
        try:
            async with asyncio.timeout(5):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()


def _cut(connection: Any) -> None:
    """Drop a connection in doubt; the pool has taken back one that is already closed and refuses any call on it."""
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


_SESSION = {
    "jit": "off",
    # Lookups by key all of them; planning again for each set of parameters would find the same plan.
    "plan_cache_mode": "force_generic_plan",
    "tcp_user_timeout": "10000",
    "default_transaction_isolation": "read committed",
}


async def _keep_session(_connection: Any) -> None:
    """Sessions carry no state worth a RESET round trip."""


async def connect(
    dsn: str,
    *,
    metrics: Metrics,
    pool_size: int = 8,
    lease_ttl_seconds: float = 15.0,
    acquire_seconds: float = 10.0,
    command_seconds: float = 60.0,
    clock: Clock | None = None,
) -> Database:
    """Open a pool; with `pgbouncer=true` in the DSN it keeps nothing in its sessions.

    A third of `lease_ttl_seconds` bounds how long a stopped session may hold a transaction open, and how long a
    statement waits for a lock; `acquire_seconds` how long a caller waits for a free connection. Raises
    DatabaseUnavailable.
    """
    address, pooled = read_address(dsn)
    patience = str(int(lease_ttl_seconds * 1000 / 3))
    limits = {"idle_in_transaction_session_timeout": patience, "lock_timeout": patience}
    session = {} if pooled else _SESSION | limits
    async with database_errors():
        pool = await asyncpg.create_pool(
            address,
            min_size=1,
            max_size=pool_size,
            max_inactive_connection_lifetime=0,
            command_timeout=command_seconds,
            statement_cache_size=0 if pooled else 200,
            reset=_keep_session,
            server_settings={"application_name": "mindroom"} | session,
        )
    begin = "; ".join(["BEGIN", *(f"SET LOCAL {name} = {value}" for name, value in limits.items() if pooled)])
    return Database(pool, metrics, acquire_seconds=acquire_seconds, clock=clock, begin=begin)

"""Leases: who serves a principal, proven by a fence on every write and a trust deadline before every external effect.

A lease is taken by locking fence, then beat, and reading the expiry again after the lock (architecture section 6).
Doubt pauses effects; only a changed fence steps down.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from mindroom.core.clock import Clock
from mindroom.core.errors import DependencyError, FenceLost
from mindroom.core.ids import Fence, PrincipalId, PrincipalName, ProcessId
from mindroom.db.engine import Database, Tx
from mindroom.db.sql import load

log = structlog.get_logger(__name__)
T = TypeVar("T")
SQL = load("mindroom.db", "lease.sql")

EFFECT_TIMEOUT_SECONDS = 10.0
"""An external effect never gets longer than this, whatever the lease has left."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """One setting: renewals every TTL / 3, a safety margin of TTL / 5."""

    ttl_seconds: float = 15.0

    @property
    def renewal_seconds(self) -> float:
        return self.ttl_seconds / 3

    @property
    def margin_seconds(self) -> float:
        return self.ttl_seconds / 5


@dataclass(eq=False)
class Lease:
    """The right to act for one principal under one fence, and the mutex of its write transactions (A5)."""

    principal: PrincipalId
    name: PrincipalName
    fence: Fence
    after_crash: bool
    """True when the holder before did not resign (D4)."""
    database: Database
    clock: Clock
    trusted_until: float
    """Seconds on CLOCK_BOOTTIME; after it no external effect may start."""
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    _mutex: asyncio.Lock = field(default_factory=asyncio.Lock)

    @asynccontextmanager
    async def transaction(self, name: str) -> AsyncIterator[Tx]:
        """A named write transaction of this principal; one at a time. Raises FenceLost, DatabaseUnavailable."""
        async with self._mutex:
            try:
                async with self.database.transaction(name, guard=(self.principal, self.fence)) as tx:
                    yield tx
            except FenceLost:
                self.end()
                self.lost.set()
                raise

    async def run(self, name: str, body: Callable[[Tx], Awaitable[T]]) -> T:
        """Run `body` in the transaction `name`, again when the database lost it before the commit."""

        async def once() -> T:
            async with self.transaction(name) as tx:
                return await body(tx)

        return await self.database.rerun(name, once)

    def effect_seconds(self) -> float:
        """How long an external effect may take now. Raises DependencyError while ownership is in doubt (H2)."""
        left = self.trusted_until - self.clock.boottime()
        if left <= 0:
            raise DependencyError(f"lease of {self.name} is in doubt")
        return min(left, EFFECT_TIMEOUT_SECONDS)

    def end(self) -> None:
        """No external effect starts any more, whatever the lease had left."""
        self.trusted_until = float("-inf")


class LeaseKeeper:
    """Takes, renews and resigns the leases of one process. `beat` runs as a task of the runtime."""

    def __init__(
        self, database: Database, *, process: ProcessId, clock: Clock, times: LeaseTimes, beat_database: Database
    ) -> None:
        self._database = database
        self._beat_database = beat_database
        self._process = process
        self._clock = clock
        self.times = times
        self._leases: dict[PrincipalId, Lease] = {}

    async def take(self, principal: PrincipalId, name: PrincipalName) -> Lease | None:
        """Take the lease when it is free, expired or owned by this process; None while another process holds it."""
        started = self._clock.boottime()

        async def once() -> tuple[Fence, bool] | None:
            async with self._database.transaction("lease.take") as tx:
                await tx.fetchrow(SQL["lock_fence"], principal)
                await tx.fetchrow(SQL["lock_beat"], principal)
                row = await tx.fetchrow(SQL["take"], principal, self._process, self.times.ttl_seconds)
                return (Fence(row["fence"]), not row["resigned"]) if row else None

        taken = await self._database.rerun("lease.take", once)
        if taken is None:
            return None
        fence, after_crash = taken
        if (former := self._leases.get(principal)) is not None:
            former.end()
            former.lost.set()
        lease = Lease(principal, name, fence, after_crash, self._database, self._clock, self._deadline(started))
        self._leases[principal] = lease
        self._database.metrics.lease_held.labels(name).set(1)
        log.info("lease_taken", principal=name, fence=fence)
        return lease

    async def resign(self, lease: Lease) -> None:
        """Give the lease back so that another process need not wait for the TTL. Never raises for a lost database."""
        lease.end()
        if self._leases.get(lease.principal) is lease:
            del self._leases[lease.principal]
            self._database.metrics.lease_held.labels(lease.name).set(0)
        try:
            async with self._database.transaction("lease.resign") as tx:
                await tx.execute(SQL["resign"], lease.principal, self._process, lease.fence)
        except DependencyError:
            log.warning("lease_not_resigned", principal=lease.name)

    async def beat(self) -> None:
        """Renew for ever. A principal that is no longer ours is marked lost."""
        while True:
            await self._clock.sleep(self.times.renewal_seconds)
            try:
                await self._renew()
            except DependencyError as error:
                log.warning("lease_renewal_failed", code=error.code)

    async def _renew(self) -> None:
        started = self._clock.boottime()
        asked = dict(self._leases)
        async with self._beat_database.transaction("lease.renew") as tx:
            rows = await tx.fetch(SQL["renew"], self._process, list(asked), self.times.ttl_seconds)
        held = {row["principal"] for row in rows}
        for principal, lease in asked.items():
            if self._leases.get(principal) is not lease:
                continue  # resigned, or taken anew, while the statement ran
            if principal in held:
                lease.trusted_until = self._deadline(started)
                continue
            del self._leases[principal]
            self._database.metrics.lease_lost.labels("taken").inc()
            self._database.metrics.lease_held.labels(lease.name).set(0)
            lease.end()
            lease.lost.set()
            log.warning("lease_lost", principal=lease.name, fence=lease.fence)

    def _deadline(self, attempt_started: float) -> float:
        return attempt_started + self.times.ttl_seconds - self.times.margin_seconds


async def register_process(
    database: Database, *, host: str, pid: int, boot_id: str, data_folder: str, version: str
) -> ProcessId:
    """A row for this process. Holding the folder's file lock proves that earlier processes of the folder are dead, so
    their leases are freed in the same commit."""

    async def once() -> ProcessId:
        async with database.transaction("register_process") as tx:
            row: Any = await tx.fetchrow(SQL["register_process"], host, pid, boot_id, data_folder, version)
            await tx.execute(SQL["free_dead"], row["process_id"], boot_id, data_folder)
            return ProcessId(row["process_id"])

    return await database.rerun("register_process", once)


async def end_process(database: Database, process: ProcessId) -> None:
    """Note the orderly end of a process."""
    async with database.transaction("end_process") as tx:
        await tx.execute(SQL["end_process"], process)

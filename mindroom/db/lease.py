"""Leases: who serves a principal, proven by a fence on every write and a trust deadline before every external effect.

A lease is taken by locking fence, then beat, and reading the expiry again after the lock (architecture section 6).
Doubt pauses effects; only a changed fence steps down.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
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


@dataclass(frozen=True, slots=True)
class Standing:
    """Who holds a lease, as last read."""

    owner: ProcessId | None
    fence: Fence
    is_free: bool
    """Anyone may take it: nobody holds it, it has expired, or it is this process's own."""
    age_seconds: float | None
    """Since the last renewal; None when nobody holds it."""


@dataclass(eq=False)
class Lease:
    """The right to act for one principal under one fence, and the mutex of its write transactions (A5)."""

    principal: PrincipalId
    name: PrincipalName
    fence: Fence
    after_crash: bool
    """True when the holder before did not resign (D4)."""
    timeline: str
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
                    if tx.timeline != self.timeline:
                        raise FenceLost(f"principal {self.principal}: the server was replaced; its rows are read again")
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

    async def effect(self, effect: Coroutine[Any, Any, T]) -> T:
        """An external effect that may outlast the trust there is now; ended when ownership comes into doubt (H2).

        Raises DependencyError then, and what `effect` raises.
        """
        task = asyncio.ensure_future(effect)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=self.effect_seconds())
            return task.result()
        finally:
            task.cancel()

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

        async def once() -> Lease | None:
            async with self._database.transaction("lease.take") as tx:
                await tx.fetchrow(SQL["lock_fence"], principal)
                await tx.fetchrow(SQL["lock_beat"], principal)
                row = await tx.fetchrow(SQL["take"], principal, self._process, self.times.ttl_seconds)
                if row is None:
                    return None
                return Lease(
                    principal,
                    name,
                    Fence(row["fence"]),
                    after_crash=not row["resigned"],
                    timeline=tx.timeline,
                    database=self._database,
                    clock=self._clock,
                    trusted_until=self._deadline(started),
                )

        lease = await self._database.rerun("lease.take", once)
        if lease is None:
            return None
        if (former := self._leases.get(principal)) is not None:
            former.end()
            former.lost.set()
        self._leases[principal] = lease
        self._database.metrics.lease_held.labels(name).set(1)
        log.info("lease_taken", principal=name, fence=lease.fence)
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

    async def standings(self, principals: Sequence[PrincipalId]) -> tuple[dict[PrincipalId, Standing], int]:
        """How these leases stand, and how many processes live (this one is one). Raises DatabaseUnavailable."""
        rows = await self._database.fetch(SQL["standing"], self._process, principals, self.times.ttl_seconds)
        found = {
            PrincipalId(row["principal"]): Standing(
                None if row["owner"] is None else ProcessId(row["owner"]),
                Fence(row["fence"]),
                row["is_free"],
                row["age_seconds"],
            )
            for row in rows
        }
        return found, max((row["live"] for row in rows), default=1)

    async def leave(self) -> None:
        """Note that this process ends, so that the others need not leave room for it."""
        try:
            async with self._database.transaction("end_process") as tx:
                await tx.execute(SQL["end_process"], self._process)
        except DependencyError:
            log.warning("end_not_noted", process=self._process)

    async def beat(self) -> None:
        """Renew for ever. A principal that is no longer ours is marked lost."""
        pause_seconds = self.times.renewal_seconds
        while True:
            await self._clock.sleep(pause_seconds)
            pause_seconds = self.times.renewal_seconds
            try:
                await self._renew()
            except DependencyError as error:
                log.warning("lease_renewal_failed", code=error.code)
                pause_seconds /= 5  # some of the lease's time is spent already

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
    """A row for this process. Holding the folder's file lock proves that earlier processes of the folder and host are
    dead, so their leases are freed in the same commit."""

    async def once() -> ProcessId:
        async with database.transaction("register_process") as tx:
            row: Any = await tx.fetchrow(SQL["register_process"], host, pid, boot_id, data_folder, version)
            await tx.execute(SQL["free_dead"], row["process_id"], boot_id, data_folder, host)
            return ProcessId(row["process_id"])

    return await database.rerun("register_process", once)

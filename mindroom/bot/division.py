"""Division: which principals this process may take and which it gives up, so that each process has its share (H1).

A process keeps at most ceil(principals / live processes). One read a second serves all that stand by. What every
process leaves free for a whole TTL is taken beyond the share, and then kept until the number of processes changes.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from mindroom.core.clock import Clock
from mindroom.core.errors import DependencyError
from mindroom.core.ids import PrincipalId
from mindroom.db.lease import LeaseKeeper, Standing

log = structlog.get_logger(__name__)

STANDBY_SECONDS = 1.0
"""How often leases that others hold are looked at (architecture section 6)."""


def share_of(principals: int, *, live: int) -> int:
    """How many principals one of `live` processes keeps."""
    return -(-principals // live)


def to_take(free: Iterable[PrincipalId], *, room: int, orphans: Collection[PrincipalId]) -> list[PrincipalId]:
    """Which free principals this process takes now: what it has room for, and every orphan."""
    return [principal for number, principal in enumerate(free) if number < room or principal in orphans]


@dataclass(eq=False)
class Division:
    """Decides for one process; `run` is a task of the supervisor."""

    keeper: LeaseKeeper
    clock: Clock
    principals: int
    """How many this process is configured to serve."""
    noted: Callable[[], None]
    """Called after each reading."""
    standings: Mapping[PrincipalId, Standing] = field(default_factory=dict)
    _waiting: dict[PrincipalId, asyncio.Future[asyncio.Event]] = field(default_factory=dict)
    _held: dict[PrincipalId, asyncio.Event] = field(default_factory=dict)
    _extra: set[PrincipalId] = field(default_factory=set)
    _free_since: dict[PrincipalId, float] = field(default_factory=dict)
    _live: int = 1
    _is_closed: bool = False
    _asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def turn(self, principal: PrincipalId) -> asyncio.Event:
        """Wait until this process may take the lease; the event is set once it shall give it up. Ends with `done`."""
        if not self._is_closed:
            self._waiting[principal] = asyncio.get_running_loop().create_future()
            self.look()
            try:
                return await self._waiting[principal]
            finally:
                self._waiting.pop(principal, None)
        leave = asyncio.Event()
        leave.set()
        return leave

    def look(self) -> None:
        """Read soon: something has changed."""
        self._asked.set()

    def done(self, principal: PrincipalId) -> None:
        """The principal is not served here any more."""
        self._held.pop(principal, None)
        self._extra.discard(principal)

    def is_waiting(self, principal: PrincipalId | None) -> bool:
        """Whether the principal is left to others."""
        return principal in self._waiting

    def close(self) -> None:
        """Give everything up, take nothing more."""
        self._is_closed = True
        for principal in list(self._waiting):
            self._grant(principal)
        for leave in self._held.values():
            leave.set()

    async def run(self) -> None:
        """Read and decide for ever: each second while anything waits, else with each renewal."""
        while True:
            self._asked.clear()
            if principals := [*self._waiting, *self._held]:
                try:
                    self.standings, live = await self.keeper.standings(principals)
                except DependencyError as error:
                    log.warning("leases_not_read", code=error.code)
                else:
                    self._divide(live)
                    self.noted()
            await self._pause(STANDBY_SECONDS if self._waiting else self.keeper.times.renewal_seconds)

    def _divide(self, live: int) -> None:
        if live != self._live:
            log.info("processes_changed", live=live, share=share_of(self.principals, live=live))
            self._live = live
            self._extra.clear()
        share, now = share_of(self.principals, live=live), self.clock.boottime()
        free = [p for p in self._waiting if (standing := self.standings.get(p)) is not None and standing.is_free]
        self._free_since = {p: self._free_since.get(p, now) for p in free}
        orphans = {p for p, since in self._free_since.items() if now - since >= self.keeper.times.ttl_seconds}
        kept = [p for p, leave in self._held.items() if not leave.is_set()]
        room = share - len(kept)
        for number, principal in enumerate(to_take(free, room=room, orphans=orphans)):
            self._grant(principal)
            if number >= room:
                self._extra.add(principal)
        for principal in [p for p in kept if p not in self._extra][share:]:
            log.info("principal_given_up", principal=principal, share=share)
            self._held[principal].set()

    def _grant(self, principal: PrincipalId) -> None:
        waiting = self._waiting.pop(principal)
        if not waiting.done():
            leave = self._held[principal] = asyncio.Event()
            waiting.set_result(leave)

    async def _pause(self, seconds: float) -> None:
        sleeper, asked = asyncio.ensure_future(self.clock.sleep(seconds)), asyncio.ensure_future(self._asked.wait())
        try:
            await asyncio.wait({sleeper, asked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeper.cancel()
            asked.cancel()

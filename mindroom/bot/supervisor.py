"""Supervisor: keeps every principal of this process served: take the lease, serve, and after any end do it again (R8).

One principal that cannot be served never stops the others; it is unhealthy with a reason (B5).
"""

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum

import structlog

from mindroom.bot.agent_bot import AgentBot
from mindroom.bot.division import Division
from mindroom.bot.edges import Connect
from mindroom.bot.sessions import Sessions
from mindroom.bot.wiring import BotNeeds
from mindroom.config import EffectiveAgent
from mindroom.core.backoff import Backoff
from mindroom.core.blame import blame
from mindroom.core.errors import DependencyError, FenceLost, MatrixFailure, MindRoomError, UserError
from mindroom.core.ids import PrincipalId, PrincipalName
from mindroom.db.lease import Lease, LeaseKeeper, Standing

log = structlog.get_logger(__name__)

HEALTHY_SECONDS = 120.0
"""Whoever was served this long begins with a short back-off after the next failure."""


class ServiceState(StrEnum):
    """Where one principal stands in this process; shown by /readyz."""

    STARTING = "starting"
    STANDBY = "standby"
    SERVING = "serving"
    FAILED = "failed"


@dataclass
class PrincipalStatus:
    """Live state of one principal."""

    state: ServiceState = ServiceState.STARTING
    reason: str = "starting"
    bot: AgentBot | None = None
    principal: PrincipalId | None = None
    standing: Standing | None = None
    """Who holds the lease, as last read."""

    @property
    def is_ready(self) -> bool:
        """Served here with its first response admitted, or safely standing by."""
        if self.state is ServiceState.STANDBY:
            return True
        return self.bot is not None and self.bot.has_synced


@dataclass(eq=False)
class Supervisor:
    """Runs one task per agent."""

    keeper: LeaseKeeper
    sessions: Sessions
    connect: Connect
    needs: BotNeeds
    ready: asyncio.Event
    """Set once every principal is served with its first response admitted, or safely standing by."""
    statuses: dict[PrincipalName, PrincipalStatus] = field(default_factory=dict)
    _division: Division = field(init=False)

    def __post_init__(self) -> None:
        agents = len(self.needs.config.agents)
        self._division = Division(self.keeper, self.needs.clock, agents, self._note_standings)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve all agents in this process's share until `stop`, then drain them."""
        for agent in self.needs.config.agents:
            self.statuses[agent.name] = PrincipalStatus()
        dividing = asyncio.ensure_future(self._division.run())
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._leave(stop))
                for agent in self.needs.config.agents:
                    tasks.create_task(self._keep(agent, stop))
        finally:
            dividing.cancel()

    async def _leave(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._division.close()
        await self.keeper.leave()

    async def _keep(self, agent: EffectiveAgent, stop: asyncio.Event) -> None:
        status, backoff = self.statuses[agent.name], Backoff(0.5, 60.0)
        while not stop.is_set():
            began, asked_seconds = self.needs.clock.boottime(), None
            try:
                await self._serve_once(agent, status)
                backoff.reset()
                continue
            except FenceLost:  # whoever serves it now tells its health
                status.state, status.reason = ServiceState.STANDBY, "another process took it over"
            except MatrixFailure as failure:
                asked_seconds = failure.retry_after_seconds
                await self._session_failed(agent, status, failure)
            except MindRoomError as error:
                reason = str(error) if isinstance(error, UserError) else error.code
                await self._note(agent, status, reason)
            except Exception as error:
                log.error("service_failed", principal=agent.name, error=blame(error))
                await self._note(agent, status, type(error).__name__)
            if self.needs.clock.boottime() - began > HEALTHY_SECONDS:
                backoff.reset()
            await self._pause(backoff.next_seconds(asked_seconds=asked_seconds), stop)

    async def _serve_once(self, agent: EffectiveAgent, status: PrincipalStatus) -> None:
        if status.principal is None:
            status.principal = (await self.sessions.provision(agent)).principal
        principal = status.principal
        leave = await self._division.turn(principal)
        try:
            if leave.is_set() or (lease := await self.keeper.take(principal, agent.name)) is None:
                return
            self._division.look()
            try:
                await self._serve(agent, lease, status, leave)
            finally:
                status.bot = None
                await self.keeper.resign(lease)
        finally:
            self._division.done(principal)

    async def _serve(self, agent: EffectiveAgent, lease: Lease, status: PrincipalStatus, leave: asyncio.Event) -> None:
        edges = self.connect.edges(await self.sessions.open(agent))
        try:
            status.bot = AgentBot(agent, lease, edges=edges, needs=self.needs, synced=self._check_ready)
            status.state, status.reason = ServiceState.SERVING, "waiting for the first sync response"
            await self.sessions.store.note_health(agent.name, reason=None)
            await status.bot.serve(leave)
        finally:
            await edges.close()

    def _note_standings(self) -> None:
        for status in self.statuses.values():
            standing = status.standing = self._division.standings.get(status.principal) if status.principal else None
            if standing is not None and self._division.is_waiting(status.principal):
                reason = "left to a process with room" if standing.is_free else "another process serves this principal"
                status.state, status.reason = ServiceState.STANDBY, reason
        self._check_ready()

    def _check_ready(self) -> None:
        for status in self.statuses.values():
            if status.bot is not None and status.bot.has_synced:
                status.reason = "serving"
        if all(status.is_ready for status in self.statuses.values()):
            self.ready.set()

    async def _session_failed(self, agent: EffectiveAgent, status: PrincipalStatus, failure: MatrixFailure) -> None:
        code = failure.errcode or failure.failure_class.value
        await self._note(agent, status, code)
        if failure.errcode == "M_UNKNOWN_TOKEN":
            try:
                await self.sessions.renew(agent, after=failure)
            except DependencyError as error:
                log.warning("session_not_renewed", principal=agent.name, code=error.code)

    async def _note(self, agent: EffectiveAgent, status: PrincipalStatus, reason: str) -> None:
        status.state, status.reason = ServiceState.FAILED, reason
        log.warning("principal_unhealthy", principal=agent.name, reason=reason)
        try:
            await self.sessions.store.note_health(agent.name, reason=reason)
        except DependencyError:
            log.warning("health_not_noted", principal=agent.name)

    async def _pause(self, seconds: float, stop: asyncio.Event) -> None:
        sleeper = asyncio.ensure_future(self.needs.clock.sleep(seconds))
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({sleeper, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeper.cancel()
            stopped.cancel()

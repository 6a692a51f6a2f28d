"""AgentBot: one principal served under one lease, from its first sync to its drain."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from mindroom.bot.edges import Edges
from mindroom.bot.wiring import BotNeeds, Ledgers, Services, wire
from mindroom.config import EffectiveAgent
from mindroom.core.blame import leaf
from mindroom.core.errors import FenceLost, MindRoomError
from mindroom.db.lease import Lease

log = structlog.get_logger(__name__)

OUTBOX_DRAIN_SECONDS = 5.0
"""After the last answer is handed off, its FINAL gets this long to leave."""


class ServiceEnded(MindRoomError):
    """A service that has to run for ever returned: the principal would look online and be deaf (R8)."""

    code = "service_ended"


CANCEL_AGAIN_SECONDS = 1.0


class AgentBot:
    """Serves one agent until it is told to stop, its lease is lost or a service ends."""

    def __init__(
        self, agent: EffectiveAgent, lease: Lease, *, edges: Edges, needs: BotNeeds, synced: Callable[[], None]
    ) -> None:
        self._agent = agent
        self._lease = lease
        self._edges = edges
        self._needs = needs
        self._synced = synced
        self._services: Services | None = None

    @property
    def has_synced(self) -> bool:
        """True once a response has been admitted under this lease (B7)."""
        return self._services is not None and self._services.gate.is_open

    async def serve(self, stop: asyncio.Event) -> None:
        """Run all services. Returns after a drain; raises FenceLost, or what ended a service (R8)."""
        ledgers = await Ledgers.load(self._lease)
        services = wire(self._agent, self._lease, ledgers=ledgers, edges=self._edges, needs=self._needs)
        self._services = services
        await services.gaps.hold_known()
        await services.parking.retry_older()
        services.gate.when_opened(self._synced)
        intake = _started(
            services.sync.run(),
            services.feeder.run(),
            services.gaps.run(),
            services.restorer.run(),
            services.joins.run(),
            services.upgrades.run(),
        )
        work = _started(
            services.lanes.run(services.controller.decide), services.controller.run(), services.worker.run()
        )
        rooms = _started(services.rooms.run())
        signals = _started(stop.wait(), self._lease.lost.wait())
        try:
            done, _ = await asyncio.wait([*signals, *intake, *work], return_when=asyncio.FIRST_COMPLETED)
            if signals[0] in done:
                await self._drain(services, [*intake, *rooms])
                return
            if signals[1] in done:
                raise FenceLost(f"lease of {self._agent.name} was lost")
            for task in done:
                if (error := task.exception()) is not None:
                    raise leaf(error)
            raise ServiceEnded(f"a service of {self._agent.name} returned")
        finally:
            await _ended([*signals, *rooms, *intake, *work])
            await services.signs.close()
            self._services = None

    async def _drain(self, services: Services, intake: list[asyncio.Task[Any]]) -> None:
        """Take nothing new, let running answers finish and leave; what is left stays owed."""
        log.info("draining", principal=self._agent.name)
        await _ended(intake)
        await services.controller.drain(seconds=self._needs.drain_seconds)
        await services.worker.drain(seconds=OUTBOX_DRAIN_SECONDS)


def _started(*services: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    return [asyncio.ensure_future(service) for service in services]


async def _ended(tasks: list[asyncio.Task[Any]]) -> None:
    """A task that lost its cancellation to an error of the same moment is cancelled again: no drain hangs on one."""
    while unfinished := [task for task in tasks if not task.done()]:
        for task in unfinished:
            task.cancel()
        await asyncio.wait(unfinished, timeout=CANCEL_AGAIN_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)

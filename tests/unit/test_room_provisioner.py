"""RoomProvisioner: whatever goes wrong, the rooms are tried again."""

import asyncio
import math
from typing import cast

from mindroom.bot.edges import Edges
from mindroom.bot.gate import StartGate
from mindroom.bot.rooms import RoomProvisioner
from mindroom.core.clock import TestClock
from mindroom.core.errors import MatrixFailure, MatrixFailureClass
from mindroom.core.ids import Fence, PrincipalId, PrincipalName
from mindroom.db.engine import Database
from mindroom.db.lease import Lease
from mindroom.journal.rooms import RoomBook
from tests.support.spine import spine_config


def trusted(clock: TestClock) -> Lease:
    """A lease without a database that is never in doubt."""
    return Lease(
        PrincipalId(1),
        PrincipalName("agent"),
        Fence(1),
        False,
        "",
        cast("Database", None),
        clock,
        trusted_until=math.inf,
    )


class SurprisingEdges:
    """Fails once as nobody foresaw."""

    named: str | None = None
    surprised = False

    async def set_display_name(self, name: str) -> None:
        if not self.surprised:
            self.surprised = True
            raise KeyError(name)
        self.named = name


class LimitedEdges:
    """Is told twice to wait two minutes."""

    asked = 0

    async def set_display_name(self, name: str) -> None:
        self.asked += 1
        if self.asked < 3:
            raise MatrixFailure("profile_set", MatrixFailureClass.RATE_LIMITED, status=429, retry_after_seconds=120.0)


async def test_r27_e5_a_start_waits_as_long_as_the_homeserver_asks() -> None:
    """R27: names and rooms at a start obey 429 as well."""
    config, clock, gate, edges = spine_config(), TestClock(), StartGate(RoomBook()), LimitedEdges()
    gate.open()
    agent = config.agents[0]
    rooms = RoomProvisioner(agent, config.agents, (), cast("Edges", edges), gate, set(), trusted(clock), clock)
    task = asyncio.ensure_future(rooms.run())
    for asked in (1, 2):
        for _ in range(20):
            await asyncio.sleep(0)
        await clock.advance(118)
        assert edges.asked == asked
        await clock.advance(2)
    await asyncio.wait_for(task, 5)
    assert edges.asked == 3


async def test_an_unforeseen_error_is_tried_again() -> None:
    """E12: nobody waits for this service, so it must not end in silence."""
    config, clock, gate, edges = spine_config(), TestClock(), StartGate(RoomBook()), SurprisingEdges()
    gate.open()
    agent = config.agents[0]
    rooms = RoomProvisioner(agent, config.agents, (), cast("Edges", edges), gate, set(), trusted(clock), clock)
    task = asyncio.ensure_future(rooms.run())
    for _ in range(20):
        await asyncio.sleep(0)
    await clock.advance(1)
    await asyncio.wait_for(task, 5)
    assert edges.named == agent.display_name


async def test_h2_nothing_is_provisioned_while_the_lease_is_in_doubt() -> None:
    """H2: a process that was stopped may hold an older configuration than the one that serves now."""
    config, clock, gate, edges = spine_config(), TestClock(), StartGate(RoomBook()), SurprisingEdges()
    gate.open()
    edges.surprised = True
    agent, lease = config.agents[0], trusted(clock)
    lease.end()
    rooms = RoomProvisioner(agent, config.agents, (), cast("Edges", edges), gate, set(), lease, clock)
    task = asyncio.ensure_future(rooms.run())
    for _ in range(20):
        await asyncio.sleep(0)
    assert edges.named is None
    lease.trusted_until = math.inf
    await clock.advance(1)
    await asyncio.wait_for(task, 5)
    assert edges.named == agent.display_name

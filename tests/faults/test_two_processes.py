"""H1, H2: two real processes on one database; one is killed, or stopped inside a transaction, and comes back."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest

from mindroom.core.faults import Fault
from tests.faults.births import Executing
from tests.faults.cases import Case, Scenario
from tests.faults.chaos import AGENTS, Town, open_town, user_of
from tests.faults.oracle import Source
from tests.faults.process import LEASE_TTL_SECONDS, RuntimeProcess, patience_seconds, until
from tests.faults.world import open_world

LOOK_SECONDS = 1.0
"""How long after its expiry a lease may wait for a standby's next look."""
_LEASES = """SELECT p.name, b.owner, f.fence, b.expires_at - make_interval(secs => $1) AS renewed_at, w.beat_at,
                    w.data_folder, b.owner IS NOT NULL AND b.expires_at >= mindroom_now() AS served
             FROM principals p JOIN principal_beat b USING (principal) JOIN principal_fence f USING (principal)
             LEFT JOIN processes w ON w.process_id = b.owner ORDER BY p.name"""


@pytest.fixture
async def town() -> AsyncIterator[Town]:
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(open_world(Executing()))
        yield await open_town(world, stack, 1)


async def leases(town: Town) -> dict[str, Any]:
    connection = await asyncpg.connect(town.dsn)
    try:
        return {row["name"]: row for row in await connection.fetch(_LEASES, LEASE_TTL_SECONDS)}
    finally:
        await connection.close()


async def divided(town: Town) -> dict[str, Any]:
    """Who holds what, once each process serves one agent."""

    async def holds() -> bool:
        found = await leases(town)
        return all(row["served"] for row in found.values()) and len({row["owner"] for row in found.values()}) == 2

    await until(holds, failure=lambda: AssertionError("the agents were not divided"))
    return await leases(town)


def process_of(town: Town, lease: Any) -> RuntimeProcess:
    return next(runtime for runtime in town.runtimes if f"/{runtime.log.parent.name}/" in lease["data_folder"])


async def placeholder(town: Town, source: Source, agent: str) -> None:
    def begun() -> bool:
        return any(
            event["sender"] == user_of(agent)
            and event["content"].get("m.relates_to", {}).get("event_id") == source.event_id
            for event in town.human.seen(source.room)
        )

    async def probe() -> bool:
        return begun()

    await until(probe, failure=lambda: AssertionError("no placeholder came"))


async def taken_over(town: Town, former: Any) -> None:
    """Return once another process holds the lease, and assert in the database's own time that it did not take long."""

    async def taken() -> bool:
        now = (await leases(town))[former["name"]]
        return now["served"] and now["owner"] != former["owner"]

    await until(taken, failure=lambda: AssertionError("nobody took the lease"))
    now = (await leases(town))[former["name"]]
    assert now["fence"] > former["fence"]
    waited = (now["renewed_at"] - former["last_beat"]).total_seconds()
    assert waited < LEASE_TTL_SECONDS + patience_seconds(LOOK_SECONDS) + 0.5, f"{waited} s after the last renewal"


async def last_lease(town: Town, agent: str) -> dict[str, Any]:
    """The lease as its owner, now still, left it."""
    row = (await leases(town))[agent]
    return dict(row) | {"last_beat": max(row["beat_at"], row["renewed_at"])}


async def judged(town: Town) -> None:
    watching = asyncio.create_task(town.watch())
    try:
        for sources in town.sources.values():
            await town.answered(sources[-1])
        assert await town.judge() == []
    finally:
        watching.cancel()


@pytest.mark.kill
@pytest.mark.timeout(300)
async def test_h1_h2_a_dead_or_stopped_process_is_replaced_and_gets_its_share_when_it_comes_back(town: Town) -> None:
    """H1, H2: nothing is lost or doubled; who wakes up in its transaction writes nothing and steps down."""
    agent = AGENTS[0]
    owner = process_of(town, (await divided(town))[agent])

    # ---- killed, while its answer grows
    await placeholder(town, await town.ask(agent), agent)
    await owner.kill()
    await taken_over(town, await last_lease(town, agent))
    await judged(town)
    await owner.start()
    await owner.wait_ready()

    # ---- stopped in its transaction, with the fence row locked
    owner = process_of(town, (await divided(town))[agent])
    owner.arm(Case(Scenario.ANSWER, "tx.hand_off", "before", 1, Fault.STOP))
    await town.ask(agent)

    async def stopped() -> bool:
        return owner.has_fired

    await until(stopped, failure=lambda: AssertionError("the answer was never handed off"))
    await taken_over(town, await last_lease(town, agent))
    await judged(town)
    said = {room: len(town.human.seen(room)) for room in town.rooms.values()}
    owner.disarm()
    owner.strike(signal.SIGCONT)
    await divided(town)
    assert owner.exits == []
    assert await owner.metric_sum("mindroom_fence_rejected_total") + await owner.metric_sum("mindroom_lease_lost_total")
    assert {room: len(town.human.seen(room)) for room in town.rooms.values()} == said
    connection = await asyncpg.connect(town.dsn)
    assert await connection.fetchval("SELECT count(*) FROM principals WHERE unhealthy_reason IS NOT NULL") == 0
    await connection.close()

    # ---- the database server itself goes away and comes back (H3, R40)
    for name in AGENTS:
        await town.ask(name)
    await town.world.postgres.stop()
    await town.world.postgres.start()
    await judged(town)
    assert all(runtime.exits == [] for runtime in town.runtimes if runtime is owner)

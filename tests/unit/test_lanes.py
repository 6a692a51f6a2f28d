"""Lanes by themselves: one at a time per (room, sender), side by side otherwise (C1)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from mindroom.bot.lanes import Lanes
from mindroom.core.errors import FenceLost
from mindroom.core.ids import Epoch, EventId, PrincipalId, Receipt, RoomId, UserId
from mindroom.core.metrics import Metrics
from mindroom.core.values import EventClass, EventKind, OrderKey
from mindroom.journal.records import PendingSource


def source(number: int, *, room: str = "!r", sender: str = "@a:x") -> PendingSource:
    return PendingSource(
        receipt=Receipt(number),
        order_key=OrderKey(number),
        event_id=EventId(f"${number}"),
        room=RoomId(room),
        thread=EventId(""),
        sender=UserId(sender),
        kind=EventKind.MESSAGE,
        event_class=EventClass.LIVE,
        epoch=Epoch(1),
        origin_ts=0,
        source={},
        attempts=0,
        open_turn=None,
    )


@asynccontextmanager
async def running(decide: Callable[[PendingSource], Awaitable[None]]) -> AsyncIterator[tuple[Lanes, Metrics]]:
    metrics = Metrics()
    lanes = Lanes(PrincipalId(1), metrics=metrics, name="agent")
    task = asyncio.ensure_future(lanes.run(decide))
    await asyncio.sleep(0)
    try:
        yield lanes, metrics
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def calm() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Gate:
    """Decides a source when it is told to."""

    def __init__(self) -> None:
        self.entered: list[int] = []
        self._open: dict[int, asyncio.Event] = {}

    async def __call__(self, pending: PendingSource) -> None:
        self.entered.append(pending.receipt)
        await self._open.setdefault(pending.receipt, asyncio.Event()).wait()

    def open(self, number: int) -> None:
        self._open.setdefault(number, asyncio.Event()).set()


async def test_c1_a_lane_decides_one_source_at_a_time_in_order() -> None:
    gate = Gate()
    async with running(gate) as (lanes, _):
        for number in (1, 2, 3):
            lanes.put(source(number))
        await calm()
        assert gate.entered == [1]
        gate.open(2)
        await calm()
        assert gate.entered == [1]
        gate.open(1)
        await calm()
        assert gate.entered == [1, 2, 3]


@pytest.mark.parametrize("other", [{"room": "!s"}, {"sender": "@b:x"}])
async def test_c1_another_room_or_sender_does_not_wait(other: dict[str, str]) -> None:
    gate = Gate()
    async with running(gate) as (lanes, _):
        lanes.put(source(1))
        lanes.put(source(2, **other))
        await calm()
        assert gate.entered == [1, 2]


async def test_the_depth_counts_what_waits() -> None:
    gate = Gate()
    async with running(gate) as (lanes, metrics):
        for number in (1, 2, 3):
            lanes.put(source(number))
        await calm()
        depth = metrics.registry.get_sample_value("mindroom_lane_depth", {"principal": "agent"})
        assert depth == 2


async def test_a_lost_fence_ends_its_lane_and_no_other() -> None:
    decided: list[int] = []

    async def decide(pending: PendingSource) -> None:
        if pending.receipt == 1:
            raise FenceLost("gone")
        decided.append(pending.receipt)

    async with running(decide) as (lanes, _):
        lanes.put(source(1))
        lanes.put(source(2, room="!s"))
        await calm()
        lanes.put(source(3))
        await calm()
        assert decided == [2, 3]


async def test_a_service_that_ends_leaves_no_depth_behind() -> None:
    """Sources that still waited are counted anew by the next service."""
    gate = Gate()
    async with running(gate) as (lanes, metrics):
        for number in (1, 2, 3):
            lanes.put(source(number))
        await calm()
        assert metrics.registry.get_sample_value("mindroom_lane_depth", {"principal": "agent"}) == 2
    assert metrics.registry.get_sample_value("mindroom_lane_depth", {"principal": "agent"}) == 0

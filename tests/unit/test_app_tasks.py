"""Works of the composition root that belong together: none outlives the call that started it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mindroom.app.tasks import stoppable, together, until_first

Start = Callable[..., Coroutine[Any, Any, None]]


async def for_ever(ended: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        ended.append("ended")


async def nothing() -> None:
    await asyncio.sleep(0)


async def failing() -> None:
    await asyncio.sleep(0)
    raise ValueError("first")


async def test_until_first_ends_the_others_and_waits_for_their_ends() -> None:
    ended: list[str] = []
    await until_first(for_ever(ended), nothing())
    assert ended == ["ended"]


@pytest.mark.parametrize("start", [until_first, together])
async def test_a_failure_ends_the_others_and_is_raised(start: Start) -> None:
    ended: list[str] = []
    with pytest.raises(ValueError, match="first"):
        await start(for_ever(ended), failing())
    assert ended == ["ended"]


@pytest.mark.parametrize("start", [until_first, together])
async def test_cancelling_reaches_all(start: Start) -> None:
    ended: list[str] = []
    task = asyncio.ensure_future(start(for_ever(ended), for_ever(ended)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["ended", "ended"]


async def test_until_first_raises_what_another_raised_while_it_ended() -> None:
    async def fails_at_its_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("drain")

    with pytest.raises(ValueError, match="drain"):
        await until_first(fails_at_its_end(), nothing())


async def test_a_stoppable_work_drains_at_the_end_of_the_block_however_it_ends() -> None:
    drained: list[str] = []

    async def work(stop: asyncio.Event) -> None:
        await stop.wait()
        await asyncio.sleep(0)
        drained.append("drained")

    async def block() -> None:
        async with stoppable(work) as end:
            await until_first(end, nothing())
            raise KeyError

    with pytest.raises(KeyError):
        await block()
    assert drained == ["drained"]


async def test_a_stoppable_work_that_fails_is_noticed_inside_the_block() -> None:
    async def work(stop: asyncio.Event) -> None:
        await asyncio.sleep(0)
        raise ValueError("early")

    async def block() -> None:
        async with stoppable(work) as end:
            await end

    with pytest.raises(ValueError, match="early"):
        await block()

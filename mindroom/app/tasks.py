"""Works that belong together: none outlives the call that started it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any


async def until_first(*works: Awaitable[Any]) -> None:
    """Run all until one ends; cancel and await the others. Raises what one of them raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _cancel(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()


async def together(*works: Coroutine[Any, Any, None]) -> None:
    """Run all to their ends; the first failure cancels the others and is raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        await _cancel(tasks)


@asynccontextmanager
async def stoppable(work: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> AsyncIterator[Awaitable[None]]:
    """A work that ends when its event is set, as it is at the end of the block; then its end is awaited.

    Yields the end of the work; cancelling that does not reach the work.
    """
    stop = asyncio.Event()
    task = asyncio.create_task(work(stop))
    try:
        yield asyncio.shield(task)
    finally:
        stop.set()
        await task


async def _cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

"""A cancellation is never lost: a drain that waits for a task which did not hear of it would never end."""

import asyncio

import pytest

from mindroom.bot import agent_bot
from tests.conftest import REPOSITORY


def test_nothing_waits_in_a_way_that_may_swallow_a_cancellation() -> None:
    """`asyncio.wait_for` of Python 3.11 returns the result when both come at once; `asyncio.timeout` does not."""
    sources = (REPOSITORY / "mindroom").rglob("*.py")
    assert [str(path) for path in sources if "wait_for(" in path.read_text()] == []


async def test_a_task_that_lost_its_cancellation_is_ended_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_bot, "CANCEL_AGAIN_SECONDS", 0.01)
    lost: list[None] = []

    async def deaf_once() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if lost:
                    raise
                lost.append(None)

    task = asyncio.ensure_future(deaf_once())
    await asyncio.sleep(0)
    await asyncio.wait_for(agent_bot._ended([task]), 5)
    assert task.cancelled()
    assert len(lost) == 1

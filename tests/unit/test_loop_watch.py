"""R10: a blocked event loop is told once, with the code that blocks it; nothing is cancelled for it."""

import asyncio
import time

import pytest
from structlog.testing import capture_logs

from mindroom.core.metrics import Metrics
from mindroom.ops import loop_watch


def hold_the_loop() -> None:
    """What a slow regular expression or a blocking driver does."""
    time.sleep(0.4)


async def test_r10_one_block_is_one_diagnosis_with_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """R10: the others go on afterwards, and the next block is told again."""
    monkeypatch.setattr(loop_watch, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(loop_watch, "BLOCKED_SECONDS", 0.1)
    metrics, told = Metrics(), []
    watch = asyncio.ensure_future(loop_watch.LoopWatch(metrics).run())
    other = asyncio.ensure_future(asyncio.Event().wait())
    with capture_logs() as logs:
        for blocks in (1, 2):
            await asyncio.sleep(0.05)
            hold_the_loop()
            await asyncio.sleep(0.05)
            told = [entry for entry in logs if entry["event"] == "event_loop_blocked"]
            assert len(told) == blocks
    assert any("hold_the_loop" in frame for frame in told[0]["stack"])
    assert not other.done()
    assert not watch.done()
    for task in (watch, other):
        task.cancel()
    await asyncio.gather(watch, other, return_exceptions=True)

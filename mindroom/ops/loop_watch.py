"""Watches the event loop: how late its timers fire, and which code blocked it for more than a second (R10)."""

import asyncio
import sys
import threading
import time
import traceback

import structlog

from mindroom.core.metrics import Metrics

log = structlog.get_logger(__name__)

TICK_SECONDS = 0.5
BLOCKED_SECONDS = 1.0


class LoopWatch:
    """A timer in the loop and a thread that looks at it."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._last_tick = time.monotonic()
        self._stopped = threading.Event()

    async def run(self) -> None:
        """Tick until cancelled."""
        loop_thread = threading.get_ident()
        watcher = threading.Thread(target=self._watch, args=(loop_thread,), daemon=True, name="loop-watch")
        self._last_tick = time.monotonic()
        watcher.start()
        try:
            while True:
                asked = time.monotonic()
                await asyncio.sleep(TICK_SECONDS)
                self._last_tick = time.monotonic()
                self._metrics.event_loop_lag_seconds.set(max(0.0, self._last_tick - asked - TICK_SECONDS))
        finally:
            self._stopped.set()

    def _watch(self, loop_thread: int) -> None:
        told_at = 0.0
        while not self._stopped.wait(TICK_SECONDS):
            late = time.monotonic() - self._last_tick - TICK_SECONDS
            if late < BLOCKED_SECONDS or told_at == self._last_tick:
                continue
            told_at = self._last_tick
            frame = sys._current_frames().get(loop_thread)
            stack = [
                f"{f.filename.rpartition('/')[2]}:{f.lineno} {f.name}" for f in traceback.extract_stack(frame)[-12:]
            ]
            log.warning("event_loop_blocked", seconds=round(late, 1), stack=stack)

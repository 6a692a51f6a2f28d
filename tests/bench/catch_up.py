"""Catching up: 500 messages in 20 threads over 3 rooms were written while the process was down (B2)."""

import asyncio
import time
from pathlib import Path
from typing import Any

from mindroom.matrix.local_homeserver import LocalHomeserver
from tests.support.runtime import eventually, open_house

MESSAGES, THREADS, ROOMS = 500, 20, 3
TIMELINE_LIMIT = 10


async def measure(homeserver: LocalHomeserver, dsn: str, folder: Path) -> dict[str, Any]:
    """Seconds from the start of the process until everything is heard, and until it is answered, each once."""
    async with open_house(homeserver, dsn, folder) as house:
        house.timeline_limit = TIMELINE_LIMIT
        running = await house.start()
        rooms = [await house.room("assistant") for _ in range(ROOMS)]
        threads = [(rooms[n % ROOMS], await house.human.send(rooms[n % ROOMS], f"topic {n}")) for n in range(THREADS)]
        await asyncio.gather(*(house.answer(room, "assistant", root) for room, root in threads))
        await house.quiet()
        await house.end(running)
        wanted = set()
        for number in range(MESSAGES):
            room, root = threads[number % THREADS]
            wanted.add(await house.human.send(room, f"while you were away {number}", thread=root))
        started = time.monotonic()
        running = await house.start()
        await eventually(_all("journal_receipts", house, wanted), timeout_seconds=120)
        heard = time.monotonic() - started
        await eventually(_all("answered_marks", house, wanted), timeout_seconds=300)
        answered = time.monotonic() - started
        finals = await house.rows(
            "SELECT count(*) AS sources, count(DISTINCT turn_id) AS answers FROM turn_sources WHERE event_id = ANY($1)",
            list(wanted),
        )
        return {
            "missed": MESSAGES,
            "all_heard_s": round(heard, 1),
            "all_answered_s": round(answered, 1),
            "answers": finals[0]["answers"],
            "each_source_in_one_turn": finals[0]["sources"] == MESSAGES,
            "gaps_walked": running.metric("sync_limited_total", outcome="repaired"),
        }


def _all(table: str, house: Any, wanted: set[str]) -> Any:
    async def probe() -> bool:
        rows = await house.rows(f"SELECT count(*) AS found FROM {table} WHERE event_id = ANY($1)", list(wanted))
        return bool(rows[0]["found"] >= len(wanted))

    return probe

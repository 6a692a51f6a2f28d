"""Catching up with a long absence: what nobody heard while the process was down is answered once, in order (B2)."""

import asyncio
from pathlib import Path

import pytest

from mindroom.core.content import DELIVERY_KEY
from mindroom.matrix.local_homeserver import LocalHomeserver
from tests.support.runtime import House, eventually, open_house

THREADS = 20
ROOMS = 3


@pytest.mark.parametrize("messages", [60, pytest.param(500, marks=pytest.mark.long)])
async def test_b2_everything_said_while_down_is_answered_once_and_in_order(
    synapse: LocalHomeserver, database_dsn: str, short_path: Path, messages: int
) -> None:
    """B2, B7, C1: in 20 threads over 3 rooms, of which sync shows the newest ten each."""
    async with open_house(synapse, database_dsn, short_path) as house:
        house.timeline_limit = 10
        running = await house.start()
        rooms = [await house.room("assistant") for _ in range(ROOMS)]
        threads = [(rooms[n % ROOMS], await house.human.send(rooms[n % ROOMS], f"topic {n}")) for n in range(THREADS)]
        await asyncio.gather(*(house.answer(room, "assistant", root) for room, root in threads))
        await house.quiet()
        await house.end(running)
        sent: dict[str, list[str]] = {root: [] for _, root in threads}
        for number in range(messages):
            room, root = threads[number % THREADS]
            sent[root].append(await house.human.send(room, f"while you were away {number}", thread=root))
        running = await house.start()
        await _answered(house, sent, timeout_seconds=30.0 + messages / 2)
        await house.quiet()
        assert running.metric("sync_limited_total", outcome="repaired") >= ROOMS
        answered: dict[str, list[str]] = {root: [] for root in sent}
        for room in rooms:
            for message in await house.said(room, "assistant"):
                for source in message.content[DELIVERY_KEY]["sources"]:
                    thread = message.content.get("m.relates_to", {}).get("event_id")
                    if source not in sent:
                        answered[thread].append(source)
        assert answered == sent
        order = await house.rows(
            "SELECT event_id FROM journal_receipts WHERE class = 'recovered' ORDER BY base, page, idx"
        )
        recovered = [row["event_id"] for row in order]
        for events in sent.values():
            assert [e for e in recovered if e in events] == events[: len([e for e in events if e in recovered])]


async def _answered(house: House, sent: dict[str, list[str]], *, timeout_seconds: float) -> None:
    wanted = {event for events in sent.values() for event in events}

    async def all_marked() -> bool:
        rows = await house.rows("SELECT event_id FROM answered_marks")
        return wanted <= {row["event_id"] for row in rows}

    await eventually(all_marked, timeout_seconds=timeout_seconds, what="everything is answered")

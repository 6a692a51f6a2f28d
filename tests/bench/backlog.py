"""Start with 10,000 pending sources: from the opening of the gate until the first source has its verdict (C3)."""

import asyncio
import json
import time
from datetime import datetime
from typing import Any

from mindroom.core.clock import SystemClock
from mindroom.core.ids import PrincipalName
from mindroom.core.metrics import Metrics
from mindroom.db.engine import connect
from mindroom.db.lease import LeaseKeeper, LeaseTimes
from mindroom.journal.records import Checkpoint
from tests.bench.admission import Listener, admitter_for
from tests.bench.stage import Stage
from tests.support.ledgers import add_process

PENDING = 10_000
PAGE = 500


async def measure(stage: Stage) -> dict[str, Any]:
    """Pending notices (policy ignores them, so nothing is sent), then a start."""
    stage.stop_runtime()
    await _fill(stage)
    stage.start_runtime()
    await stage.wait_ready()
    decided = await _first(stage, "source_ignored", "turn_closed")
    opened = await _first(stage, "gate_opened")
    started = await _first(stage, "lease_taken")
    return {
        "pending": PENDING,
        "gate_to_first_verdict_s": round((decided - opened).total_seconds(), 3),
        "lease_to_first_verdict_s": round((decided - started).total_seconds(), 3),
    }


async def _fill(stage: Stage) -> None:
    database = await connect(stage.dsn, metrics=Metrics())
    try:
        row = await database.fetchrow("SELECT principal, name FROM principals")
        assert row is not None
        clock = SystemClock()
        process = await add_process(database)
        keeper = LeaseKeeper(database, process=process, clock=clock, times=LeaseTimes(60), beat_database=database)
        lease = await keeper.take(row["principal"], PrincipalName(row["name"]))
        assert lease is not None
        listener = Listener(lease, await admitter_for(lease, clock), 1, sender="@human:localhost", msgtype="m.notice")
        token = await database.fetchrow("SELECT token FROM sync_checkpoints WHERE principal = $1", row["principal"])
        assert token is not None
        for _ in range(PENDING // PAGE):
            batch = listener.response(PAGE)
            admission = listener.admitter.classify(batch.raw, since=token["token"], certified_ms=0)
            await listener.admitter.admit(admission, Checkpoint(token["token"], listener.trust))
        await keeper.resign(lease)
    finally:
        await database.close()


async def _first(stage: Stage, *events: str) -> datetime:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for line in stage.log.read_text().splitlines():
            if line.startswith("{") and line.endswith("}") and (entry := json.loads(line)).get("event") in events:
                return datetime.fromisoformat(entry["timestamp"])
        await asyncio.sleep(0.1)
    raise RuntimeError(f"the runtime logged none of {events}:\n{stage.log.read_text()[-2000:]}")

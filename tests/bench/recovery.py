"""Recovery: a killed process and what waits for it, until work begins again (C3, H1).

`restart` is the same owner on its data folder: the folder's lock proves its predecessor dead. `take-over` is another
process with a folder of its own that stood by: it waits for the lease to expire.
"""

import json
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg

from mindroom.app.compose import LEASE_VARIABLE
from tests.bench.stage import Stage
from tests.support.runtime import eventually

PENDING = (0, 1_000, 10_000, 100_000)
LEASE_SECONDS = 3
# Notices of an authorized person: each gets its verdict, nothing is sent.
_FILL = """
WITH heard AS (
    INSERT INTO journal_receipts (principal, epoch, origin_ts, base, page, idx, event_id, room_id, thread_id, sender,
                                  kind, class)
    SELECT p.principal, m.epoch, (extract(epoch FROM now()) * 1000)::bigint, nextval('journal_receipt_number'), 0, 0,
           '$fill-' || gen_random_uuid(), m.room_id, '', '@human:localhost', 'message', 'live'
    FROM principals p JOIN room_membership m USING (principal), generate_series(1, $1) n
    WHERE m.membership = 'join' RETURNING *
)
INSERT INTO journal_pending (receipt, principal, epoch, origin_ts, base, page, idx, event_id, room_id, thread_id,
                             sender, kind, class, source)
SELECT receipt, principal, epoch, origin_ts, base, page, idx, event_id, room_id, thread_id, sender, kind, class,
       '{"type": "m.room.message", "content": {"msgtype": "m.notice", "body": "a notice of the bench"}}'
FROM heard
"""


async def measure(stage: Stage) -> list[dict[str, Any]]:
    """A row for each number of pending sources; milliseconds from the kill, or from the start of the process."""
    rows = []
    for pending in PENDING:
        started = await _restart(stage, pending)
        taken = await _take_over(stage, pending)
        rows.append({"pending": pending, **started, **taken})
    return rows


async def _restart(stage: Stage, pending: int) -> dict[str, Any]:
    _kill(stage.runtime)
    await _fill(stage, pending)
    began = time.time()
    stage.start_runtime()
    await stage.wait_ready()
    opened = await _seen(stage.log, "gate_opened")
    verdict = await _seen(stage.log, "source_ignored") if pending else opened
    await _drained(stage)
    return {
        "restart_to_gate_ms": round(1000 * (opened - began)),
        "restart_gate_to_first_verdict_ms": round(1000 * (verdict - opened)),
        "restart_all_verdicts_s": round(await _last_verdict(stage.log) - began, 2) if pending else None,
    }


async def _take_over(stage: Stage, pending: int) -> dict[str, Any]:
    async with _standby(stage) as log:
        await _fill(stage, pending)
        killed = time.time()
        _kill(stage.runtime)
        taken = await _seen(log, "lease_taken")
        opened = await _seen(log, "gate_opened")
        verdict = await _seen(log, "source_ignored") if pending else opened
        await _drained(stage)
    stage.start_runtime()
    await stage.wait_ready()
    return {
        "take_over_to_lease_ms": round(1000 * (taken - killed)),
        "take_over_lease_to_first_verdict_ms": round(1000 * (verdict - taken)),
        "lease_ttl_s": LEASE_SECONDS,
    }


@asynccontextmanager
async def _standby(stage: Stage) -> AsyncIterator[Path]:
    """Both processes with a short lease, the stage's own serving; yields the log of the other."""
    stage.stop_runtime()
    stage.start_runtime(environ={LEASE_VARIABLE: str(LEASE_SECONDS)})
    await stage.wait_ready()
    other = stage.beside()
    other.start_runtime(environ={LEASE_VARIABLE: str(LEASE_SECONDS)})
    try:
        await other.wait_ready()
        yield other.log
    finally:
        other.stop_runtime()


def _kill(process: "subprocess.Popen[bytes] | None") -> None:
    if process is not None:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)


async def _fill(stage: Stage, pending: int) -> None:
    connection = await asyncpg.connect(stage.dsn)
    try:
        if pending:
            await connection.execute(_FILL, pending)
        await connection.execute("ANALYZE journal_pending")
    finally:
        await connection.close()


async def _drained(stage: Stage) -> None:
    connection = await asyncpg.connect(stage.dsn)

    async def is_empty() -> bool:
        return not await connection.fetchval("SELECT count(*) FROM journal_pending")

    try:
        await eventually(is_empty, timeout_seconds=120)
    finally:
        await connection.close()


async def _seen(log: Path, event: str) -> float:
    """When the process first logged the event, in seconds of the clock."""

    async def logged() -> list[float]:
        return _times(log, event)

    return (await eventually(logged, timeout_seconds=60, what=f"{event} in {log}"))[0]


async def _last_verdict(log: Path) -> float:
    return _times(log, "source_ignored")[-1]


def _times(log: Path, event: str) -> list[float]:
    entries = [json.loads(line) for line in log.read_text().splitlines() if f'"{event}"' in line and line.endswith("}")]
    return [datetime.fromisoformat(entry["timestamp"]).astimezone(UTC).timestamp() for entry in entries]

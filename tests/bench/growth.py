"""What events cost in space, and what an idle transaction that holds back vacuum does to admission."""

import asyncio
import time
from typing import Any

import asyncpg

from mindroom.db.engine import Database, Tx
from tests.bench.admission import ROOM, Listener, listeners

EVENTS = 50_000
_RESPONSE = 50
_TABLES = ("journal_receipts", "journal_settlements", "visible_messages")
_WARM_SECONDS = 5.0


async def measure(database: Database, dsn: str, *, xmin_seconds: float) -> dict[str, Any]:
    """Bytes an event with indexes; then events/s of a full life (heard, settled) without and with a held xmin."""
    (listener,) = await listeners(database, 1)
    before = await _sizes(database)
    for _ in range(EVENTS // _RESPONSE):
        await _live(listener)
    after = await _sizes(database)
    free = await _rate(listener, _WARM_SECONDS)
    holder = await asyncpg.connect(dsn)
    try:
        await holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM journal_pending")
        held = await _rate(listener, xmin_seconds)
        dead = await _dead(database)
    finally:
        await holder.close()
    return {
        "events": EVENTS,
        **{f"{table}_bytes_per_event": round((after[table] - before[table]) / EVENTS) for table in _TABLES},
        "life_events_per_s": round(free),
        "xmin_held_s": xmin_seconds,
        "life_events_per_s_with_xmin_held": round(held),
        "dead_pending_rows": dead,
    }


async def _live(listener: Listener) -> None:
    """A response is heard, and all of it settled in one commit."""
    response = listener.response(_RESPONSE)
    await listener.admit(response)
    heard = [event["event_id"] for event in response.raw["rooms"]["join"][ROOM]["timeline"]["events"]]

    async def body(tx: Tx) -> None:
        # The runtime has the receipts in memory; the bench reads them from what is never updated.
        rows = await tx.fetch(
            "SELECT receipt FROM journal_receipts WHERE principal = $1 AND event_id = ANY($2)",
            listener.lease.principal,
            heard,
        )
        await listener.admitter.journal.settle_ignored(tx, [(row["receipt"], "ignored.notice") for row in rows])

    await listener.lease.run("settle", body)


async def _rate(listener: Listener, seconds: float) -> float:
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        await _live(listener)
        count += _RESPONSE
    return count / (time.perf_counter() - started)


async def _sizes(database: Database) -> dict[str, int]:
    rows = await database.fetch(
        "SELECT t AS name, pg_total_relation_size(t::regclass) AS bytes FROM unnest($1::text[]) t", list(_TABLES)
    )
    return {row["name"]: row["bytes"] for row in rows}


async def _dead(database: Database) -> int:
    await asyncio.sleep(1.0)  # the counters are flushed once a second
    row = await database.fetchrow("SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'journal_pending'")
    return int(row["n_dead_tup"]) if row else 0

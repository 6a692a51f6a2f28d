"""Messages through a real homeserver and a real model server over HTTP, measured from outside by the rig."""

import asyncio
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from tests.bench.stage import AGENT, ALIAS, PASSWORD, RIG, Stage

# Written by the answering principal for its answers; beats, renewals and token-only saves are apart (architecture).
_APART = ("lease.", "beat", "save_token", "register_process", "provision", "end_process", "init_instance")


@dataclass(frozen=True)
class Load:
    """One closed loop of the rig."""

    name: str
    concurrency: int
    count: int
    delay_seconds: float
    chunks: int
    chunk_interval_seconds: float


LOADS = (
    Load("no delay, 1 at a time", 1, 40, 0.0, 1, 0.0),
    Load("no delay, 20 at a time", 20, 200, 0.0, 1, 0.0),
    Load("200 ms in 10 chunks, 1 at a time", 1, 30, 0.2, 10, 0.02),
    Load("200 ms in 10 chunks, 20 at a time", 20, 200, 0.2, 10, 0.02),
)


async def measure(stage: Stage, load: Load) -> dict[str, Any]:
    """Run one load; the figures of a row."""
    before, called = stage.metric("mindroom_db_transaction_seconds_count"), await _calls(stage)
    raw = await _rig(
        stage,
        "load",
        "--concurrency", str(load.concurrency),
        "--count", str(load.count),
        "--delay", str(load.delay_seconds),
        "--chunks", str(load.chunks),
        "--chunk-interval", str(load.chunk_interval_seconds),
        "--pid", f"runtime={stage.pid_file}",
        "--pg", stage.dsn,
        "--hslog", str(stage.homeserver.access_log),
    )  # fmt: skip
    after, calls = stage.metric("mindroom_db_transaction_seconds_count"), await _calls(stage)
    commits = {name: after[name] - before.get(name, 0.0) for name in after}
    named = sum(count for label, count in commits.items() if not _is_apart(label))
    probe = raw["probe"]
    ours = probe["hs_requests"].get(AGENT, {})
    return {
        "load": load.name,
        "messages": load.count,
        "answered_once": raw["classify"]["once"],
        "per_second": raw["per_s"],
        "first_visible_ms": _ms(raw["first_visible"]),
        "final_ms": _ms(raw["final"]),
        "cpu_ms_per_message": probe["cpu_ms_per_msg"]["runtime"],
        "commits_per_message": round(named / load.count, 2),
        "xact_commit_per_message": probe["db"]["per_msg"]["xact_commit"],
        "requests_per_message": ours.get("per_msg"),
        "requests": ours.get("by"),
        "edits_per_answer": raw["edits_per_answer"],
        "rss_max_mib": probe["rss_max"]["runtime"],
        "foreign_cpu_s": probe["foreign_cpu_s"],
        "calls": {k: round((n - called.get(k, 0)) / load.count, 2) for k, n in calls.items() if n > called.get(k, 0)},
        "transactions": {k: round(v / load.count, 2) for k, v in commits.items() if v},
    }


async def _calls(stage: Stage) -> dict[str, int]:
    """How often each tagged statement ran, by its name."""
    connection = await asyncpg.connect(stage.dsn)
    try:
        rows = await connection.fetch(
            "SELECT substring(query FROM 'mindroom:([a-z_]+)') AS name, sum(calls)::bigint AS calls "
            "FROM pg_stat_statements WHERE query LIKE '%mindroom:%' GROUP BY 1"
        )
        return {row["name"]: row["calls"] for row in rows}
    finally:
        await connection.close()


async def cold_starts(stage: Stage, *, count: int = 3) -> dict[str, Any]:
    """From starting `mindroom run` until a message sent right after it is answered."""
    start, stop = stage.folder / "start.sh", stage.folder / "stop.sh"
    stage.stop_runtime()
    environment = f"DATABASE_URL={stage.dsn} MINDROOM_REGISTRATION_SECRET={stage.homeserver.registration_shared_secret}"
    run = f"{sys.executable} -m mindroom run -c {stage.folder}/config.yaml --data {stage.folder}/data"
    pid = f"{stage.folder}/cold.pid"
    start.write_text(f"cd {Path.cwd()}; {environment} {run} >>{stage.folder}/cold.log 2>&1 & echo $! >{pid}\n")
    # Not our child: wait until the process is gone, as an init system would.
    stop.write_text(
        f'[ -f {pid} ] && kill -TERM "$(cat {pid})" 2>/dev/null; '
        f'while [ -f {pid} ] && kill -0 "$(cat {pid})" 2>/dev/null; do sleep 0.05; done; true\n'
    )
    raw = await _rig(
        stage, "cold", "--count", str(count), "--delay", "0", "--chunks", "1",
        "--start-cmd", f"sh {start}", "--stop-cmd", f"sh {stop}",
    )  # fmt: skip
    await asyncio.to_thread(subprocess.run, ["sh", str(stop)], check=True)
    return {"runs": raw["runs"], "final_s": raw["fin"]}


def _is_apart(label: str) -> bool:
    name = re.search(r'name="([^"]*)"', label)
    return name is not None and name[1].startswith(_APART)


def _ms(distribution: dict[str, float]) -> dict[str, int]:
    return {key: round(distribution[key] * 1000) for key in ("min", "p50", "p95", "max") if key in distribution}


async def _rig(stage: Stage, command: str, *arguments: str) -> dict[str, Any]:
    out = stage.folder / "rig.json"
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(RIG / "measure.py"), command,
        "--hs", stage.homeserver.url, "--user", "human", "--password", PASSWORD,
        "--room", ALIAS, "--agent", AGENT, "--llm", f"http://127.0.0.1:{stage.model_port}",
        "--settle", "1", "--out", str(out), *arguments,
        stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    if await process.wait() != 0:
        raise RuntimeError(f"the rig failed: {command} {arguments}")
    answer: dict[str, Any] = json.loads(out.read_text())
    return answer

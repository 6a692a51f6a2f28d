"""`python -m tests.faults.chaos`: a town talks to two agents while everything they stand on is killed at random.

Two processes of the program share one database. Twenty people's threads are open at a time; every few seconds one
server or process is killed, stopped or cut off, and a probe is written: the time until its answer is the recovery time.
At the end everything must come to rest, and every message ever written is judged (K1, K4, H1, H2, H3).
"""

import argparse
import asyncio
import base64
import os
import random
import secrets
import signal
import statistics
import sys
import time
from collections import defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from uuid import uuid4

import aiohttp
import asyncpg

from mindroom.db.embedded import EmbeddedPostgres
from mindroom.db.sealing import KEY_VARIABLE
from mindroom.matrix.local_homeserver import LocalHomeserver
from tests.faults.births import Executing
from tests.faults.oracle import Breach, Finding, Source, audit, is_answered, judge, unfinished
from tests.faults.process import LEASE_TTL_SECONDS, RuntimeProcess
from tests.faults.report import say
from tests.faults.world import ANSWER_CHARACTERS, World, open_world
from tests.support.matrix_human import MatrixHuman
from tests.support.openai_server import FILLER

THREADS = 20
AGENTS = ("chaos-a", "chaos-b")
_SECRET = "MINDROOM_REGISTRATION_SECRET"
_CALM_SECONDS = (8.0, 20.0)
"""Between two strikes."""
_OUTAGE_SECONDS = (0.2, 4.0)
"""A killed server is away so long."""
_REST_SECONDS = 300.0
"""After the last strike all must be answered within this time."""
_CONFIG = """
matrix:
  homeserver: {homeserver}
  server_name: localhost
  registration: {{shared_secret_env: {secret}}}
models:
  default: {{provider: openai_like, id: scripted, base_url: "{model}"}}
agents:
  chaos-a: {{display_name: Ada, role: answers, rooms: [chaos-a], answers: mentioned}}
  chaos-b: {{display_name: Bob, role: answers, rooms: [chaos-b], answers: mentioned}}
rooms:
  chaos-a: {{display_name: Hall}}
  chaos-b: {{display_name: Yard}}
authorization:
  users: ["{human}"]
http: {{port: 0}}
"""


class Strike(StrEnum):
    """What may happen to the installation."""

    KILL_PROCESS = "process killed"
    STOP_PROCESS = "process stopped past its lease, then continued"
    END_PROCESS = "process told to end"
    KILL_POSTGRES = "PostgreSQL killed"
    END_SESSIONS = "all database sessions ended"
    KILL_HOMESERVER = "homeserver killed"


@dataclass
class Town:
    """The installation, the person, and what was written where."""

    world: World
    human: MatrixHuman
    runtimes: list[RuntimeProcess]
    dsn: str
    random: random.Random
    sources: dict[str, list[Source]] = field(default_factory=lambda: defaultdict(list))
    rooms: dict[str, str] = field(default_factory=dict)
    """Room of each agent."""
    recoveries: dict[Strike, list[float]] = field(default_factory=lambda: defaultdict(list))
    _finals: dict[str, asyncio.Event] = field(default_factory=dict)

    @property
    def written(self) -> int:
        """How many messages were written so far."""
        return sum(map(len, self.sources.values()))

    # ---- people -----------------------------------------------------------------------------------------------------
    async def ask(self, agent: str) -> Source:
        """Write a message until the homeserver has it."""
        word, txn_id, user = f"tok-{self.world.new_name()}", uuid4().hex, user_of(agent)
        room = self.rooms[agent]
        while True:
            try:
                event = await self.human.send(room, f"please repeat {word}", mentions=[user], txn_id=txn_id)
                break
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(0.2)
        line = f"echo: {user} please repeat {word}"
        source = Source(room, event, (line + " " + FILLER * ANSWER_CHARACTERS)[:ANSWER_CHARACTERS])
        self.sources[agent].append(source)
        return source

    async def answered(self, source: Source) -> None:
        """Return once a final answer that names the message stands in the room. Raises TimeoutError."""
        event = self._finals.setdefault(source.event_id, asyncio.Event())
        await asyncio.wait_for(event.wait(), _REST_SECONDS)

    async def watch(self) -> None:
        """Look at each event of the rooms once, for ever."""
        looked = dict.fromkeys(self.rooms.values(), 0)
        while True:
            for room in looked:
                events = self.human.seen(room)
                for event in events[looked[room] :]:
                    marker = event["content"].get("io.mindroom.delivery", {})
                    for source in marker.get("sources", []):
                        self._finals.setdefault(source, asyncio.Event()).set()
                looked[room] = len(events)
            await asyncio.sleep(0.05)

    async def converse(self, agent: str, stop: asyncio.Event) -> None:
        """One thread after the other, for as long as the town talks."""
        while not stop.is_set():
            await self.answered(await self.ask(agent))
            await asyncio.sleep(self.random.uniform(0.2, 3.0))

    # ---- strikes ----------------------------------------------------------------------------------------------------
    async def strike(self, kind: Strike) -> None:
        """Do it, and measure how long until somebody is answered again."""
        runtime = self.random.choice(self.runtimes)
        outage = self.random.uniform(*_OUTAGE_SECONDS)
        started = time.monotonic()
        probes = [asyncio.create_task(self._probe(agent)) for agent in AGENTS]
        if kind is Strike.KILL_PROCESS:
            runtime.strike(signal.SIGKILL)
        elif kind is Strike.END_PROCESS:
            runtime.strike(signal.SIGTERM)
        elif kind is Strike.STOP_PROCESS:
            runtime.strike(signal.SIGSTOP)
            await asyncio.sleep(LEASE_TTL_SECONDS + 2 * outage)
            runtime.strike(signal.SIGCONT)
        elif kind is Strike.KILL_POSTGRES:
            await _killed(self.world.postgres, outage_seconds=outage)
        elif kind is Strike.KILL_HOMESERVER:
            await _killed(self.world.homeserver, outage_seconds=outage)
        else:
            await _execute(self.world.postgres.dsn, _END_SESSIONS)
        await asyncio.gather(*probes)
        self.recoveries[kind].append(time.monotonic() - started)

    async def _probe(self, agent: str) -> None:
        await self.answered(await self.ask(agent))

    # ---- judgement --------------------------------------------------------------------------------------------------
    async def judge(self) -> list[Finding]:
        """Wait until nothing is owed, then judge every message ever written."""
        deadline = time.monotonic() + _REST_SECONDS
        connection = await asyncpg.connect(self.dsn)
        try:
            while (owed := await unfinished(connection)) or not self._all_answered():
                if time.monotonic() > deadline:
                    break
                await asyncio.sleep(0.5)
            await asyncio.sleep(2.0)
            findings = await audit(connection)
        finally:
            await connection.close()
        if owed:
            findings.append(Finding(Breach.LOST, f"still owed: {owed}"))
        for agent, sources in self.sources.items():
            events = await self.human.messages(self.rooms[agent])
            findings += judge(sources, events, agent=user_of(agent))
        return findings

    def _all_answered(self) -> bool:
        return all(
            is_answered(source, self.human.seen(source.room), agent=user_of(agent))
            for agent, sources in self.sources.items()
            for source in sources[-THREADS:]
        )


_END_SESSIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'mindroom%'"


def user_of(agent: str) -> str:
    """The agent's Matrix id."""
    return f"@mindroom_{agent}:localhost"


async def _killed(server: EmbeddedPostgres | LocalHomeserver, *, outage_seconds: float) -> None:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    await asyncio.sleep(outage_seconds)
    await server.start()


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def open_town(world: World, stack: AsyncExitStack, seed: int) -> Town:
    """Two processes that serve, ended by the stack; the person is in the rooms."""
    secret = world.homeserver.registration_shared_secret
    dsn = await world.create_database("chaos")
    human = await stack.enter_async_context(await MatrixHuman.register(world.homeserver.url, shared_secret=secret))
    await human.start_sync()
    session = await stack.enter_async_context(aiohttp.ClientSession())
    environ = {"DATABASE_URL": dsn, _SECRET: secret, KEY_VARIABLE: base64.b64encode(secrets.token_bytes(32)).decode()}
    runtimes = []
    for number in range(2):
        folder = world.folder / f"chaos{number}"
        folder.mkdir()
        config = _CONFIG.format(
            homeserver=world.homeserver.url, secret=_SECRET, model=world.model.base_url, human=human.user_id
        )
        (folder / "config.yaml").write_text(config)
        runtime = RuntimeProcess(folder, midwife=Executing(), environ=environ, session=session)
        runtime.arm(None)
        stack.push_async_callback(runtime.kill)
        runtimes.append(runtime)
    town = Town(world, human, runtimes, dsn, random.Random(seed))
    for runtime in runtimes:
        await runtime.start()
        await runtime.wait_ready()
    await _enter_rooms(town)
    return town


async def _enter_rooms(town: Town) -> None:
    deadline = time.monotonic() + 60
    while len(town.human.rooms_invited) < len(AGENTS):
        assert time.monotonic() < deadline, "no invite to the rooms came"
        await asyncio.sleep(0.1)
    for room in list(town.human.rooms_invited):
        await town.human.join(room)
        members = await town.human.members(room)
        for agent in AGENTS:
            if user_of(agent) in members:
                town.rooms[agent] = room


async def _run(arguments: argparse.Namespace) -> int:
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(open_world(Executing()))
        town = await open_town(world, stack, arguments.seed)
        say(f"seed {arguments.seed}: {THREADS} threads, {arguments.minutes:g} minutes")
        stop, started = asyncio.Event(), time.monotonic()
        watcher = asyncio.create_task(town.watch())
        people = [asyncio.create_task(town.converse(AGENTS[n % len(AGENTS)], stop)) for n in range(THREADS)]
        kinds = list(Strike)
        while time.monotonic() - started < arguments.minutes * 60:
            await asyncio.sleep(town.random.uniform(*_CALM_SECONDS))
            kind = town.random.choice(kinds)
            await town.strike(kind)
            say(f"{time.monotonic() - started:6.0f} s  {town.recoveries[kind][-1]:5.1f} s until answers  {kind}")
        stop.set()
        results = await asyncio.gather(*people, return_exceptions=True)
        findings = [Finding(Breach.LOST, str(error)) for error in results if isinstance(error, BaseException)]
        findings += await town.judge()
        watcher.cancel()
        _keep_logs(town, findings)
        return _report(town, findings)


def _keep_logs(town: Town, findings: list[Finding]) -> None:
    if findings:
        folder = Path("build/chaos")
        folder.mkdir(parents=True, exist_ok=True)
        for number, runtime in enumerate(town.runtimes):
            (folder / f"runtime{number}.log").write_bytes(runtime.log.read_bytes())


def _report(town: Town, findings: list[Finding]) -> int:
    say("\nstrike                                            times   median      max")
    for kind in Strike:
        if times := town.recoveries.get(kind):
            say(f"{kind:<48} {len(times):>6} {statistics.median(times):>7.1f}s {max(times):>7.1f}s")
    for finding in findings:
        say(f"{finding.breach}: {finding.text}")
    count = {breach: sum(finding.breach is breach for finding in findings) for breach in Breach}
    strikes = sum(map(len, town.recoveries.values()))
    say(
        f"strikes {strikes} messages {town.written} lost {count[Breach.LOST]} doubled {count[Breach.DOUBLED]} "
        f"stray {count[Breach.STRAY]} audit {count[Breach.AUDIT]}"
    )
    return int(bool(findings) or not strikes)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="how long to strike (default: 20)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="repeats the order of strikes")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(asyncio.run(_run(_arguments())))

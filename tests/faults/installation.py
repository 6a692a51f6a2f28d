"""One installation under test: a database, a data folder, one agent, one person and the room they share."""

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
import asyncpg

from tests.faults.cases import Kind
from tests.faults.oracle import Breach, Finding, Source, audit, is_answered, judge, unfinished
from tests.faults.process import RuntimeProcess, patience_seconds, until
from tests.faults.world import ANSWER_CHARACTERS, World
from tests.support.matrix_human import MatrixHuman
from tests.support.openai_server import FILLER

QUIET_SECONDS = 2.0
_SECRET = "MINDROOM_REGISTRATION_SECRET"

_CONFIG = """
matrix:
  homeserver: {homeserver}
  server_name: localhost
  registration: {{shared_secret_env: {secret}}}
models:
  default: {{provider: openai_like, id: scripted, base_url: "{model}"}}
agents:
  {name}: {{display_name: Agent {name}, role: answers, rooms: [{name}], answers: mentioned}}
{helper}rooms:
  {name}: {{display_name: Room {name}}}
authorization:
  users: ["{human}"]
http: {{port: 0}}
"""
_HELPER = "  {name}-b: {{display_name: Helper of {name}, role: listens, rooms: [{name}], answers: mentioned}}\n"


@dataclass(eq=False)
class Installation:
    """Made by `create`, ended by `close`."""

    world: World
    kind: Kind
    name: str
    human: MatrixHuman
    runtime: RuntimeProcess
    database: Any
    session: aiohttp.ClientSession
    room: str = ""
    sources: dict[str, list[Source]] = field(default_factory=lambda: defaultdict(list))
    """What was asked, by room; each stays under judgement to the end."""

    @classmethod
    async def create(cls, world: World, kind: Kind) -> Self:
        """A person's account, an empty database and a configuration; nothing runs yet."""
        name = world.new_name()
        folder = world.folder / name
        folder.mkdir()
        dsn = await world.create_database(name)
        human = await MatrixHuman.register(
            world.homeserver.url, shared_secret=world.homeserver.registration_shared_secret, username=f"human-{name}"
        )
        await human.start_sync()
        (folder / "config.yaml").write_text(
            _CONFIG.format(
                homeserver=world.homeserver.url,
                secret=_SECRET,
                model=(world.slow_model if kind is Kind.SLOW else world.model).base_url,
                name=name,
                helper=_HELPER.format(name=name) if kind is Kind.FRESH else "",
                human=human.user_id,
            )
        )
        environ = {"DATABASE_URL": dsn, _SECRET: world.homeserver.registration_shared_secret}
        session = aiohttp.ClientSession()
        runtime = RuntimeProcess(folder, midwife=world.midwife, environ=environ, session=session)
        return cls(world, kind, name, human, runtime, await asyncpg.connect(dsn), session)

    @property
    def agent(self) -> str:
        """The agent's user id."""
        return f"@mindroom_{self.name}:localhost"

    async def close(self) -> None:
        """Kill the process and drop the database."""
        await self.runtime.kill()
        await self.database.close()
        await self.session.close()
        await self.human.close()
        await self.world.drop_database(self.name)

    # ---- what a person does ---------------------------------------------------------------------------------------
    async def enter_room(self) -> None:
        """Wait for the invite to the configured room and join. Raises AssertionError when it does not come."""
        if self.room:
            return

        async def invited() -> bool:
            return bool(self.human.rooms_invited)

        await until(invited, failure=lambda: AssertionError("no invite to the room came"))
        (room,) = self.human.rooms_invited
        await self.human.join(room)
        self.room = room

    async def ask(self, *, room: str | None = None, thread: str | None = None, answered: bool = True) -> Source:
        """Write a message to the agent; its answer is known by the thread it stands in."""
        room = room or self.room
        word = f"tok-{self.world.new_name()}"
        event = await self.human.send(room, f"please repeat {word}", thread=thread, mentions=[self.agent])
        line = f"echo: {self.agent} please repeat {word}"
        answer = (line + " " + FILLER * ANSWER_CHARACTERS)[:ANSWER_CHARACTERS]
        source = Source(room, thread or event, answer if answered else None)
        self.sources[room].append(source)
        return source

    async def see_placeholder(self, source: Source) -> None:
        """Return once the room shows a beginning of the answer."""
        await self.human.wait_for(
            source.room,
            lambda e: (
                e["sender"] == self.agent and e["content"].get("m.relates_to", {}).get("event_id") == source.event_id
            ),
        )

    async def new_person(self) -> MatrixHuman:
        """Somebody whom the configuration does not know."""
        secret = self.world.homeserver.registration_shared_secret
        return await MatrixHuman.register(self.world.homeserver.url, shared_secret=secret)

    async def see_member(self, room: str, *, joined: bool) -> None:
        """Return once the agent is, or is not, in the room. Raises AssertionError."""

        async def is_so() -> bool:
            return (self.agent in await self.human.members(room)) is joined

        await until(is_so, failure=lambda: AssertionError(f"the agent's membership did not become joined={joined}"))

    async def see_declined(self, person: MatrixHuman, room: str) -> None:
        """Return once the agent has declined the person's invite. Raises AssertionError when it does not."""

        async def declined() -> bool:
            members = [e for e in await person.state(room) if e.get("state_key") == self.agent]
            return bool(members) and members[0]["content"]["membership"] == "leave"

        await until(declined, failure=lambda: AssertionError("the invite was not declined"))

    # ---- judgement ------------------------------------------------------------------------------------------------
    async def settle(self) -> list[Finding]:
        """Wait until everything asked is answered, the room is quiet and nothing is owed, then judge all of it.

        Everything ever asked here is judged again, so that a late second answer is found too.
        """
        loop = asyncio.get_running_loop()
        started, quiet_from, said, owed = loop.time(), 0.0, -1, dict[str, int]()
        while is_patient := (now := loop.time()) - started < patience_seconds():
            ready_since = await self.runtime.ready_since()
            if (count := self._said()) != said or ready_since is None or not self._all_answered():
                said, quiet_from = count, now
            elif now - max(quiet_from, ready_since) >= QUIET_SECONDS:
                owed = await unfinished(self.database)
                if not owed:
                    break
            await asyncio.sleep(0.1)
        findings = self.judge() + await audit(self.database)
        if not findings and owed:
            findings.append(Finding(Breach.LOST, f"answered, but still owed: {owed}"))
        if not findings and not is_patient:
            findings.append(Finding(Breach.LOST, "the process did not become ready, or the room not quiet"))
        return findings

    def judge(self) -> list[Finding]:
        """What is wrong in the rooms as the person's client has them."""
        return [
            finding
            for room, sources in self.sources.items()
            for finding in judge(sources, self.human.seen(room), agent=self.agent)
        ]

    def _all_answered(self) -> bool:
        return all(
            is_answered(source, self.human.seen(room), agent=self.agent)
            for room, sources in self.sources.items()
            for source in sources[-2:]
        )

    def _said(self) -> int:
        return sum(event["sender"] == self.agent for room in self.sources for event in self.human.seen(room))

    def transcript(self) -> str:
        """Everything that happened in the rooms, one event a line."""
        lines = []
        for room in self.sources:
            lines.append(f"== {room}")
            lines += [f"{e['event_id']} {e['sender']} {e['type']} {e['content']}" for e in self.human.seen(room)]
        return "\n".join(lines) + "\n"

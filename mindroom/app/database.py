"""Which PostgreSQL a process uses: DATABASE_URL, else the embedded server of its data folder."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from mindroom.core.errors import UserError
from mindroom.db.embedded import EmbeddedPostgres, running_dsn
from mindroom.db.folder import DataFolder
from mindroom.db.schema import Progress, check_schema, upgrade_if_needed

LOCK_PATIENCE_SECONDS = 10.0
"""`run` waits this long for the data folder, since a read command holds it briefly."""
URL_VARIABLE = "DATABASE_URL"


@dataclass(frozen=True, slots=True)
class DatabasePlace:
    """Where the database of a data folder is. `url` None means embedded."""

    folder: DataFolder
    url: str | None


def find_database(folder: DataFolder, environ: Mapping[str, str] = os.environ) -> DatabasePlace:
    """The place as the environment says. Raises UserError for a URL of another kind."""
    url = environ.get(URL_VARIABLE)
    if url is not None and not url.startswith(("postgresql://", "postgres://")):
        raise UserError(f"{URL_VARIABLE} must be a postgresql:// URL; unset it to use the embedded server")
    return DatabasePlace(folder, url)


@asynccontextmanager
async def owned(place: DatabasePlace, *, progress: Progress) -> AsyncIterator[str]:
    """The database of a running process: its folder is locked, its schema is current. Yields the DSN.

    The embedded server is upgraded here; a server of somebody's own is refused when its schema differs.
    """
    async with place.folder.lock(timeout_seconds=LOCK_PATIENCE_SECONDS):
        if place.url is not None:
            await check_schema(place.url)
            yield place.url
            return
        progress("starting PostgreSQL")
        async with EmbeddedPostgres(place.folder) as server:
            await upgrade_if_needed(server.dsn, progress=progress)
            yield server.dsn


@asynccontextmanager
async def visited(place: DatabasePlace) -> AsyncIterator[str]:
    """The database for one command: attaches to a running embedded server, else starts it for as long as this takes."""
    if place.url is not None:
        yield place.url
        return
    dsn = running_dsn(place.folder)
    if dsn is not None:
        yield dsn
        return
    async with (
        place.folder.lock(timeout_seconds=LOCK_PATIENCE_SECONDS),
        EmbeddedPostgres(place.folder) as server,
    ):
        yield server.dsn

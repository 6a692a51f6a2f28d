"""Sessions of operator commands: the schema is checked first, and a reading one can write nothing."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mindroom.db.address import open_session
from mindroom.db.engine import database_errors
from mindroom.db.schema import check_schema


@asynccontextmanager
async def reading(dsn: str) -> AsyncIterator[Any]:
    """A connection that stands in one snapshot and may only read.

    Raises UserError when the schema is not the expected one, DatabaseUnavailable when the database cannot be read.
    """
    async with writing(dsn) as connection, connection.transaction(isolation="repeatable_read", readonly=True):
        yield connection


@asynccontextmanager
async def writing(dsn: str) -> AsyncIterator[Any]:
    """A connection for one conditional statement; raises as `reading`."""
    await check_schema(dsn)
    async with database_errors():
        connection = await open_session(dsn)
        try:
            yield connection
        finally:
            await connection.close()

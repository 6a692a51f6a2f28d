"""What an operator changes on resting rows: conditional statements that need no lease, since nobody works on them."""

import asyncpg

from mindroom.db.engine import database_errors
from mindroom.db.schema import check_schema
from mindroom.db.sql import load

SQL = load("mindroom.ops", "verbs.sql")
_CONNECT_TIMEOUT_SECONDS = 10.0


async def retry_parked(dsn: str, event_id: str) -> int:
    """Have a parked event tried again, by every principal that parked it; returns by how many (C2).

    Its process notices within the ten seconds of a sweep. Raises UserError when the schema is not the expected one,
    DatabaseUnavailable when the database cannot be reached.
    """
    await check_schema(dsn)
    async with database_errors():
        connection = await asyncpg.connect(
            dsn,
            timeout=_CONNECT_TIMEOUT_SECONDS,
            statement_cache_size=0,
            server_settings={"application_name": "mindroom-verb"},
        )
        try:
            return len(await connection.fetch(SQL["retry_event"], event_id))
        finally:
            await connection.close()

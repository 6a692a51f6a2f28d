"""What an operator changes on resting rows: conditional statements that need no lease, since nobody works on them."""

from mindroom.db.sql import load
from mindroom.ops.session import writing

SQL = load("mindroom.ops", "verbs.sql")


async def retry_parked(dsn: str, event_id: str) -> int:
    """Have a parked event tried again, by every principal that parked it; returns by how many (C2).

    Its process notices within the ten seconds of a sweep. Raises UserError when the schema is not the expected one,
    DatabaseUnavailable when the database cannot be reached.
    """
    async with writing(dsn) as connection:
        return len(await connection.fetch(SQL["retry_event"], event_id))

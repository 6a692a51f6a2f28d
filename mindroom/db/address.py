"""What a database URL says beyond what the driver understands: `pgbouncer=true`, a pooler in transaction mode.

Owns how a single session is opened from a URL; `engine.connect` opens the pool.
"""

from typing import Any

import asyncpg

POOLER_PARAMETER = "pgbouncer=true"


def read_address(url: str) -> tuple[str, bool]:
    """The URL for the driver, and whether a pooler stands before the server that gives each transaction any backend."""
    base, _, query = url.partition("?")
    parameters = [part for part in query.split("&") if part]
    known = [part for part in parameters if part != POOLER_PARAMETER]
    return (f"{base}?{'&'.join(known)}" if known else base), len(known) < len(parameters)


async def open_session(url: str, *, timeout_seconds: float = 10.0) -> Any:
    """One connection that keeps nothing in its session, so that it may lead through a pooler. Raises as the driver."""
    return await asyncpg.connect(read_address(url)[0], timeout=timeout_seconds, statement_cache_size=0)

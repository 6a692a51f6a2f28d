"""One upgrade: one connection, one transaction, one advisory lock, every missing revision.

Owns how Alembic is configured (in code, there is no alembic.ini). Must never leave a half-upgraded schema: PostgreSQL
rolls back DDL, so a killed upgrade changed nothing.
"""

from pathlib import Path
from uuid import uuid4

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

OLDEST_SERVER = 15
"""PostgreSQL major version below which nothing is tested."""
LOCK_KEY = 0x6D696E64726F6F6D
"""Advisory lock that upgrades of one database queue for; the bytes spell `mindroom`."""


class Unsuitable(Exception):
    """The server cannot carry the schema."""


def alembic_config(connection: Connection | None = None) -> Config:
    """Alembic's configuration for this folder; `env.py` migrates over `connection`."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


async def upgrade(dsn: str) -> None:
    """Apply every missing revision or none; two at once are safe, the second finds nothing to do.

    Raises Unsuitable when the server is too old or its encoding is not UTF8.
    """
    engine = create_async_engine(
        "postgresql+asyncpg://",
        poolclass=NullPool,
        connect_args={
            "dsn": dsn,
            "server_settings": {"application_name": "mindroom db upgrade"},
            # A pooler hands our statements to backends that may remember another client's statement names.
            "statement_cache_size": 0,
            "prepared_statement_cache_size": 0,
            "prepared_statement_name_func": lambda: f"mindroom_{uuid4().hex}",
        },
    )
    try:
        async with engine.begin() as connection:
            await connection.run_sync(_check_server)
            await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})
            await connection.run_sync(_upgrade)
    finally:
        await engine.dispose()


def _check_server(connection: Connection) -> None:
    version = int(connection.scalar(text("SHOW server_version_num")) or 0) // 10_000
    encoding = connection.scalar(text("SHOW server_encoding"))
    if version < OLDEST_SERVER:
        raise Unsuitable(f"the server is PostgreSQL {version}; MindRoom needs {OLDEST_SERVER} or newer")
    if encoding != "UTF8":
        raise Unsuitable(f"the database's encoding is {encoding}; create it with ENCODING 'UTF8'")


def _upgrade(connection: Connection) -> None:
    command.upgrade(alembic_config(connection), "head")

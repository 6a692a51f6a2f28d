"""Databases of a test's own, made from the session's migrated template."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import asyncpg

TEMPLATE_DATABASE = "mindroom_template"


def dsn_of(server_dsn: str, database: str) -> str:
    """The address of another database of the same server."""
    return server_dsn.replace("/mindroom?", f"/{database}?")


async def execute(dsn: str, statement: str) -> None:
    """One statement in a session of its own."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@asynccontextmanager
async def fresh_database(server_dsn: str) -> AsyncIterator[str]:
    """A fresh database with the newest schema, dropped afterwards even with sessions open."""
    name = f"test_{uuid4().hex[:12]}"
    await execute(server_dsn, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE_DATABASE}")
    try:
        yield dsn_of(server_dsn, name)
    finally:
        await execute(server_dsn, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


async def dumped(dsn: str, text: str) -> list[str]:
    """The rows of all tables that hold `text`, each as `table: row` (I2)."""
    connection = await asyncpg.connect(dsn)
    try:
        tables = await connection.fetch(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'"
        )
        return [
            f"{table['relname']}: {row['row']}"
            for table in tables
            for row in await connection.fetch(f"SELECT t::text AS row FROM public.{table['relname']} t")
            if text in row["row"] or text.encode().hex() in row["row"]
        ]
    finally:
        await connection.close()

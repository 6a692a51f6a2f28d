"""Audit: every rule of the contracts that SQL can see, asked of one snapshot of the database (K4).

Each statement of `audit.sql` is one rule: its name, the sentence it must keep, and a query for what breaks it. All hold
at any moment, also while principals are served, because every transaction keeps them. Reads only.
"""

from dataclasses import dataclass

import asyncpg

from mindroom.db.sql import load
from mindroom.ops.session import reading

RULES = load("mindroom.ops", "audit.sql")
SHOWN = 20
"""Of each broken rule at most so many subjects are told."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that does not hold: how often, and the first subjects (ids only, never a text), as `principal: id`."""

    rule: str
    sentence: str
    times: int
    subjects: tuple[str, ...]


async def audit(dsn: str) -> list[Broken]:
    """Every broken rule; empty when all hold.

    Raises UserError when the schema is not the expected one, DatabaseUnavailable when the database cannot be read.
    """
    async with reading(dsn) as connection:
        return await audit_snapshot(connection)


async def audit_snapshot(connection: asyncpg.Connection) -> list[Broken]:
    """The same over a connection that stands in one snapshot."""
    names = {row["principal"]: row["name"] for row in await connection.fetch("SELECT principal, name FROM principals")}
    broken = []
    for rule in RULES.all():
        rows = await connection.fetch(f"SELECT *, count(*) OVER () AS times FROM ({rule.text}) broken LIMIT {SHOWN}")
        if rows:
            subjects = tuple(f"{names.get(row['principal'], 'all')}: {row['subject']}" for row in rows)
            broken.append(Broken(rule.name, rule.purpose, rows[0]["times"], subjects))
    return broken

"""Writes docs/reference/schema.md from the comments and the catalog of an upgraded database.

DATABASE_URL=… python -m migrations.reference > docs/reference/schema.md
"""

import asyncio
import os
import re
from typing import Any

import asyncpg

HEAD = """# Schema

<!-- Generated from the database's comments: edit migrations/versions/*.sql, then
     DATABASE_URL=… python -m migrations.reference > docs/reference/schema.md -->

Three ledgers are the only truth: what was *heard* (journal), *done* (turns) and *said* (outbox). Text ids compare by
bytes. Times of Matrix are milliseconds in `bigint`, ours `timestamptz` of the database's clock, `mindroom_now()`.
"""

_RELATIONS = """
SELECT c.oid, c.relname AS name, c.relkind = 'v' AS is_view, obj_description(c.oid, 'pg_class') AS comment
FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'v')
ORDER BY c.relkind, c.relname"""
_COLUMNS = """
SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull AS required,
       CASE WHEN a.attidentity <> '' THEN 'identity' ELSE pg_get_expr(d.adbin, d.adrelid) END AS filled_by,
       col_description(a.attrelid, a.attnum) AS comment
FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
_CONSTRAINTS = """
SELECT conname AS name, pg_get_constraintdef(oid) AS definition FROM pg_constraint
WHERE conrelid = $1 AND contype IN ('c', 'f') ORDER BY contype, conname"""
_INDEXES = """
SELECT i.relname AS name, pg_get_indexdef(x.indexrelid) AS definition, x.indisunique AS is_unique,
       obj_description(x.indexrelid, 'pg_class') AS comment
FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
WHERE x.indrelid = $1 ORDER BY NOT x.indisprimary, i.relname"""
_FUNCTIONS = """
SELECT proname AS name, pg_get_function_result(oid) AS result, obj_description(oid, 'pg_proc') AS comment
FROM pg_proc WHERE pronamespace = current_schema()::regnamespace ORDER BY proname"""


async def render(connection: asyncpg.Connection) -> str:
    """The whole page for the schema behind `connection`."""
    parts = [HEAD]
    for relation in await connection.fetch(_RELATIONS):
        kind = "View" if relation["is_view"] else "Table"
        parts.append(f"## {relation['name']}\n\n{kind}. {relation['comment']}\n")
        parts.append(_columns(await connection.fetch(_COLUMNS, relation["oid"]), nullable=not relation["is_view"]))
        rules = [
            *(_index(row) for row in await connection.fetch(_INDEXES, relation["oid"])),
            *(f"* `{row['name']}`: `{_plain(row['definition'])}`" for row in await _rules(connection, relation["oid"])),
        ]
        if rules:
            parts.append("\n".join(rules) + "\n")
    parts.append("## Functions\n")
    for row in await connection.fetch(_FUNCTIONS):
        parts.append(f"* `{row['name']}()` → {row['result']}: {row['comment']}")
    return "\n".join(parts) + "\n"


async def _rules(connection: asyncpg.Connection, relation: int) -> list[Any]:
    rows: list[Any] = await connection.fetch(_CONSTRAINTS, relation)
    return rows


def _columns(rows: list[Any], *, nullable: bool) -> str:
    lines = ["| column | type | filled by | meaning |", "|---|---|---|---|"]
    for row in rows:
        optional = ", may be NULL" if nullable and not row["required"] else ""
        filled_by = f"`{_plain(row['filled_by'])}`" if row["filled_by"] else ""
        meaning = (row["comment"] or "").replace("|", "\\|")
        lines.append(f"| {row['name']} | {row['type']}{optional} | {filled_by} | {meaning} |")
    return "\n".join(lines) + "\n"


def _index(row: Any) -> str:
    columns = row["definition"].partition(" USING btree ")[2]
    return f"* `{row['name']}` {'unique ' if row['is_unique'] else ''}`{_plain(columns)}`: {row['comment']}"


def _plain(expression: str) -> str:
    """PostgreSQL's spelling of an expression, closer to how it was written."""
    shorter = re.sub(r"::(text|timestamp with time zone|interval|regclass)\b(\[\])?", "", expression)
    return re.sub(r"= ANY \(ARRAY\[(.*?)\]\)", r"IN (\1)", shorter)


async def _print(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        print(await render(connection), end="")
    finally:
        await connection.close()


if __name__ == "__main__":
    asyncio.run(_print(os.environ["DATABASE_URL"]))

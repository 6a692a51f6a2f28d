"""What operators read from the database: the state of every principal and the events heard.

Reads only, in transactions that PostgreSQL itself keeps from writing; never a message body (I2).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from mindroom.db.schema import EXPECTED_REVISION
from mindroom.db.sql import load
from mindroom.ops.session import reading

SQL = load("mindroom.ops", "status.sql")

Row = Mapping[str, object]


class JournalState(StrEnum):
    """The states of a journal event."""

    PENDING = "pending"
    PARKED = "parked"
    SETTLED = "settled"


_JOURNAL = {
    None: "journal",
    JournalState.PENDING: "journal_pending",
    JournalState.PARKED: "journal_parked",
    JournalState.SETTLED: "journal_settled",
}


@dataclass(frozen=True, slots=True)
class Status:
    """The installation at one moment; one row of `principals` each, in the order of their names."""

    schema: str
    instance: UUID | None
    principals: tuple[Row, ...]


async def read_status(dsn: str) -> Status:
    """Who serves each principal, how far its sync is trusted, and what is owed.

    Raises UserError when the schema is not the expected one, DatabaseUnavailable when the database cannot be read.
    """
    instances = await _read(dsn, "instance")
    principals = await _read(dsn, "principals")
    known = UUID(str(instances[0]["instance_id"])) if instances else None
    return Status(EXPECTED_REVISION, known, principals)


async def read_journal(
    dsn: str, *, limit: int, state: JournalState | None = None, principal: str | None = None
) -> tuple[Row, ...]:
    """The newest `limit` events heard, newest first; raises as `read_status`."""
    return await _read(dsn, _JOURNAL[state], principal, limit)


async def read_outbox(dsn: str, *, state: str | None, principal: str | None) -> tuple[Row, ...]:
    """The newest deliveries in a state, or without one those owed and failed; raises as `read_status`."""
    return await _read(dsn, "outbox", state, principal)


async def _read(dsn: str, name: str, *args: object) -> tuple[Row, ...]:
    async with reading(dsn) as connection:
        return tuple(dict(record) for record in await connection.fetch(SQL[name], *args))

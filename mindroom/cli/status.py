"""`mindroom status`: who serves each principal, how far its sync is trusted, and what is owed. Changes nothing."""

import argparse
import asyncio
from typing import TYPE_CHECKING

from mindroom.cli.db import database_of
from mindroom.cli.frame import Commands, Exit, add_json_option
from mindroom.cli.output import Row, say, show_record, show_rows
from mindroom.cli.run import add_data_option

if TYPE_CHECKING:
    from mindroom.ops.status import Status

_COLUMNS = (
    "principal",
    "served_by",
    "lease_until",
    "beat",
    "fence",
    "trust",
    "open_gaps",
    "truncated_gaps",
    "pending",
    "oldest",
    "owed",
    "unhealthy",
)


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add("status", summary="Show who serves each agent and what is owed", handler=_status)
    add_data_option(parser)
    add_json_option(parser)


def _status(arguments: argparse.Namespace) -> int:
    status = asyncio.run(_read(arguments))
    if arguments.json:
        record = {"schema": status.schema, "instance": status.instance, "principals": list(status.principals)}
        show_record(record, as_json=True)
        return Exit.OK
    say(f"Schema {status.schema}, instance {status.instance or 'not made yet'}.")
    rows = [_for_people(row) for row in status.principals]
    show_rows(rows, columns=_COLUMNS, as_json=False, when_empty="No principals yet.")
    return Exit.OK


async def _read(arguments: argparse.Namespace) -> "Status":
    from mindroom.ops.status import read_status

    async with database_of(arguments.data) as dsn:
        return await read_status(dsn)


def _for_people(row: Row) -> Row:
    oldest = row["oldest_seconds"]
    owner = f"{row['host']}:{row['pid']}" if row["served"] else None
    beat = row["beat_seconds"]
    return {
        "principal": row["principal"],
        "served_by": owner or "nobody",
        "lease_until": row["lease_expires_at"],
        "beat": f"{beat:.0f} s ago" if isinstance(beat, float) else None,
        "fence": row["fence"],
        "trust": f"{row['trust']} ({row['trust_reason']})" if row["trust_reason"] else row["trust"],
        "open_gaps": row["open_gaps"],
        "truncated_gaps": row["truncated_gaps"],
        "pending": row["pending"],
        "oldest": f"{oldest:.0f} s" if isinstance(oldest, float) else None,
        "owed": row["outbox_owed"],
        "unhealthy": row["unhealthy_reason"],
    }

"""`mindroom outbox`: what is owed to rooms, and what can never be said, with the reason. Shows no message."""

import argparse
import asyncio
from collections.abc import Sequence

from mindroom.cli.db import database_of
from mindroom.cli.frame import Commands, Exit, add_json_option
from mindroom.cli.output import Row, show_rows
from mindroom.cli.run import add_data_option

_STATES = ("queued", "claimed", "failed", "acked", "retired")
_COLUMNS = ("principal", "state", "stage", "last_error", "attempts", "queued_at", "room_id", "delivery_id")


def register(commands: Commands) -> None:
    """Add the noun and its verbs."""
    verbs = commands.group("outbox", summary="Look at what is owed to rooms and what cannot be said")
    listing = verbs.add("ls", summary="List deliveries that are owed or failed, and why", handler=_list)
    add_data_option(listing)
    listing.add_argument("--state", choices=_STATES, help="only deliveries in this state")
    listing.add_argument("--principal", metavar="NAME", help="only deliveries of this agent")
    add_json_option(listing)


def _list(arguments: argparse.Namespace) -> int:
    rows = asyncio.run(_read(arguments))
    show_rows(rows, columns=_COLUMNS, as_json=arguments.json, when_empty="No such deliveries.")
    return Exit.OK


async def _read(arguments: argparse.Namespace) -> Sequence[Row]:
    from mindroom.ops.status import read_outbox

    async with database_of(arguments.data) as dsn:
        return await read_outbox(dsn, state=arguments.state, principal=arguments.principal)

"""`mindroom journal`: the events that were heard and what became of each. Never shows a message."""

import argparse
import asyncio
from collections.abc import Sequence

from mindroom.cli.db import database_of
from mindroom.cli.frame import Commands, Exit, add_json_option
from mindroom.cli.output import Row, say, show_rows
from mindroom.cli.run import add_data_option
from mindroom.core.errors import UserError

_STATES = ("pending", "parked", "settled")
_DEFAULT_LIMIT = 50
_COLUMNS = ("receipt", "principal", "state", "outcome", "kind", "class", "sender", "event_id", "attempts", "last_error")


def register(commands: Commands) -> None:
    """Add the noun and its verbs."""
    verbs = commands.group("journal", summary="Look at the events that were heard, and have parked ones tried again")
    listing = verbs.add("ls", summary="List the newest events and what became of them", handler=_list)
    add_data_option(listing)
    listing.add_argument("--state", choices=_STATES, help="only events in this state")
    listing.add_argument("--principal", metavar="NAME", help="only events heard by this agent")
    listing.add_argument(
        "--limit", type=_count, default=_DEFAULT_LIMIT, metavar="N", help="at most so many (default: 50)"
    )
    add_json_option(listing)
    retry = verbs.add("retry", summary="Have a parked event tried again", handler=_retry)
    retry.add_argument("event", metavar="EVENT", help="the event id, from `mindroom journal ls --state parked`")
    add_data_option(retry)


def _list(arguments: argparse.Namespace) -> int:
    rows = asyncio.run(_read(arguments))
    show_rows(rows, columns=_COLUMNS, as_json=arguments.json, when_empty="No such events.")
    return Exit.OK


def _retry(arguments: argparse.Namespace) -> int:
    count = asyncio.run(_retry_parked(arguments))
    if not count:
        raise UserError(f"{arguments.event} is not parked; `mindroom explain {arguments.event}` tells how it stands.")
    say(f"{arguments.event} is owed again; the process that serves the agent takes it up within ten seconds.")
    return Exit.OK


async def _retry_parked(arguments: argparse.Namespace) -> int:
    from mindroom.ops.verbs import retry_parked

    async with database_of(arguments.data) as dsn:
        return await retry_parked(dsn, arguments.event)


async def _read(arguments: argparse.Namespace) -> Sequence[Row]:
    from mindroom.ops.status import JournalState, read_journal

    state = JournalState(arguments.state) if arguments.state else None
    async with database_of(arguments.data) as dsn:
        return await read_journal(dsn, limit=arguments.limit, state=state, principal=arguments.principal)


def _count(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if not 1 <= number <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 1000000")
    return number

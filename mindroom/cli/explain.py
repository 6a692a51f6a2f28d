"""`mindroom explain EVENT`: why an agent did or did not answer, in words. Shows no message, changes nothing."""

import argparse
import asyncio
from typing import TYPE_CHECKING

from mindroom.cli.db import database_of
from mindroom.cli.frame import Commands, Exit, add_json_option
from mindroom.cli.output import Row, say, show_record
from mindroom.cli.run import add_data_option

if TYPE_CHECKING:
    from mindroom.ops.explain import Story


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add("explain", summary="Tell the story of one event: why it was answered or not", handler=_tell)
    parser.add_argument("subject", metavar="EVENT", help="an event id, a turn id, or the reference of a notice")
    add_data_option(parser)
    add_json_option(parser)


def _tell(arguments: argparse.Namespace) -> int:
    story = asyncio.run(_read(arguments))
    if arguments.json:
        facts: Row = {"heard": story.heard, "turns": story.turns, "deliveries": story.deliveries}
        show_record({"subject": story.subject, "story": story.sentences, **facts}, as_json=True)
    else:
        say("\n".join(story.sentences))
    return Exit.OK


async def _read(arguments: argparse.Namespace) -> "Story":
    from mindroom.ops.explain import explain

    async with database_of(arguments.data) as dsn:
        return await explain(dsn, arguments.subject)

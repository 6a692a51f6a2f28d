"""`mindroom audit`: checks in the database every rule of the contracts that SQL can see (K4). Changes nothing."""

import argparse
import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING

from mindroom.cli.db import database_of
from mindroom.cli.frame import Commands, Exit, add_json_option
from mindroom.cli.output import say, show_rows
from mindroom.cli.run import add_data_option

if TYPE_CHECKING:
    from mindroom.ops.audit import Broken


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add("audit", summary="Check every rule that the ledgers must keep together", handler=_audit)
    add_data_option(parser)
    add_json_option(parser)


def _audit(arguments: argparse.Namespace) -> int:
    from mindroom.ops.audit import RULES

    broken = asyncio.run(_read(arguments))
    if arguments.json or broken:
        rows = [asdict(rule) for rule in broken]
        show_rows(rows, columns=("rule", "times", "sentence", "subjects"), as_json=arguments.json, when_empty="")
    else:
        say(f"All {len(RULES.all())} rules hold.")
    return Exit.PROBLEM if broken else Exit.OK


async def _read(arguments: argparse.Namespace) -> "list[Broken]":
    from mindroom.ops.audit import audit

    async with database_of(arguments.data) as dsn:
        return await audit(dsn)

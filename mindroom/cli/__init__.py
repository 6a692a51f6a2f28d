"""The `mindroom` command: finds the nouns, runs one handler, turns errors into sentences and exit codes.

Owns no command itself. A noun is a module with `register(commands)`; nothing heavy is imported before its handler runs.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from mindroom.cli.frame import Commands, Exit
from mindroom.cli.output import complain
from mindroom.core.errors import MindRoomError

NOUNS: Final = ("demo", "init", "run", "status", "audit", "explain", "journal", "outbox", "db", "config", "version")
"""The modules of this package that register commands, in the order of `mindroom --help`."""

_INTERRUPTED: Final = 130
"""What shells report for a command ended by Ctrl-C."""


def build_parser() -> argparse.ArgumentParser:
    """The whole command line, without importing what the commands need."""
    parser = argparse.ArgumentParser(
        prog="mindroom",
        description="Teams of AI agents as ordinary users of Matrix rooms.",
        epilog="Exit codes: 0 fine, 1 problem found, 2 usage. `mindroom COMMAND --help` tells more.",
        allow_abbrev=False,
    )
    commands = Commands(parser)
    for noun in NOUNS:
        import_module(f"mindroom.cli.{noun}").register(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 fine, 1 problem found, 2 usage."""
    try:
        arguments = build_parser().parse_args(argv)
    except SystemExit as ended:  # argparse has printed help or the usage error
        return int(ended.code or Exit.OK)
    try:
        code = int(arguments.handler(arguments))
        sys.stdout.flush()
    except MindRoomError as error:
        complain(f"mindroom: {error}")
        return Exit.PROBLEM
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader went away (`| head`); what is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.PROBLEM
    return code

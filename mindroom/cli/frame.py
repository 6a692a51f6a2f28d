"""What a noun registers its commands with, and the options that several nouns share.

Handlers take the parsed arguments and return an exit code; they import what is heavy inside themselves, so that
building the parser stays fast.
"""

import argparse
import sys
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Final

DEFAULT_CONFIG_FILE: Final = Path("config.yaml")


class Exit(IntEnum):
    """The exit codes of every command."""

    OK = 0
    PROBLEM = 1
    USAGE = 2


Handler = Callable[[argparse.Namespace], int]


class Commands:
    """The commands below one parser: the verbs of a noun, or the nouns of `mindroom` itself."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        parser.set_defaults(handler=partial(_show_usage, parser))
        self._choices = parser.add_subparsers(title="commands", metavar="COMMAND")

    def add(self, name: str, *, summary: str, handler: Handler) -> argparse.ArgumentParser:
        """A command; the caller adds its options. `summary` is one sentence."""
        parser = self._parser(name, summary=summary)
        parser.set_defaults(handler=handler)
        return parser

    def group(self, name: str, *, summary: str) -> "Commands":
        """A noun that only holds verbs; alone it prints its usage."""
        return Commands(self._parser(name, summary=summary))

    def _parser(self, name: str, *, summary: str) -> argparse.ArgumentParser:
        return self._choices.add_parser(name, help=summary, description=f"{summary}.", allow_abbrev=False)


def add_config_option(parser: argparse.ArgumentParser) -> None:
    """`-c/--config FILE`, read from `arguments.config` as a Path."""
    parser.add_argument(
        "-c",
        "--config",
        type=Path,
        default=DEFAULT_CONFIG_FILE,
        metavar="FILE",
        help="the configuration file (default: config.yaml)",
    )


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """`--json`, read from `arguments.json`; every command that reads has it."""
    parser.add_argument("--json", action="store_true", help="print JSON for machines")


def _show_usage(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    parser.print_help(sys.stderr)
    return Exit.USAGE

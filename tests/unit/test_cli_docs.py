"""docs/reference/cli.md names every command and every option of the parser, and no command beside them."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mindroom.cli import build_parser

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (mindroom [^\n]+)\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL))


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Every command below `parser`, groups included."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action.choices.values():
                yield choice
                yield from commands(choice)


COMMANDS = {command.prog: command for command in commands(build_parser())}


def words(command: argparse.ArgumentParser) -> set[str]:
    """What a page must name: option strings, and the metavars of positional arguments."""
    options = [action for action in command._actions if not isinstance(action, argparse._SubParsersAction)]
    named = {option for action in options for option in action.option_strings}
    placed = {str(action.metavar or action.dest) for action in options if not action.option_strings}
    return (named | placed) - {"-h", "--help"}


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    assert set(SECTIONS) == set(COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_of_a_command_is_documented(name: str) -> None:
    shown = set(re.findall(r"`([^` ]+)[^`]*`", SECTIONS.get(name, "")))
    assert words(COMMANDS[name]) - shown == set()


def test_every_command_says_what_it_does() -> None:
    assert [name for name, command in COMMANDS.items() if not command.description] == []


def test_the_exit_codes_are_documented() -> None:
    assert re.findall(r"^\| (\d) \|", PAGE, flags=re.MULTILINE) == ["0", "1", "2"]

"""`mindroom version`: which build this is. Imports neither configuration nor database code before it is asked."""

import argparse
import platform

import mindroom
from mindroom.cli.frame import Commands, Exit, add_json_option
from mindroom.cli.output import show_record


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add("version", summary="Show the version of MindRoom, its schema and Python", handler=_version)
    add_json_option(parser)


def _version(arguments: argparse.Namespace) -> int:
    record = {
        "version": mindroom.__version__,
        "schema": _schema_revision(),
        "python": platform.python_version(),
    }
    show_record(record, as_json=arguments.json)
    return Exit.OK


def _schema_revision() -> str | None:
    try:
        from mindroom.db.schema import EXPECTED_REVISION
    except ImportError:
        return None
    return str(EXPECTED_REVISION)

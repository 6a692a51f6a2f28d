"""What commands print: plain text for people, JSON for machines. Results go to stdout, complaints to stderr.

Whatever comes from a room is printed without its control characters, so it cannot act on the terminal (I5).
"""

import json
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

Row = Mapping[str, object]


def show_rows(rows: Sequence[Row], *, columns: Sequence[str], as_json: bool, when_empty: str) -> None:
    """A list of like things. JSON holds every key of each row; people see `columns`, or the sentence `when_empty`."""
    if as_json:
        _write_json(rows)
    elif rows:
        print("\n".join(_table(rows, columns)))
    else:
        print(when_empty)


def show_record(record: Row, *, as_json: bool) -> None:
    """One thing with its properties, one a line; a list of texts is joined by commas."""
    if as_json:
        _write_json(record)
        return
    width = max(len(name) for name in record)
    print("\n".join(f"{name:<{width}}  {_cell(value)}" for name, value in record.items()))


def say(sentence: str) -> None:
    """A sentence for people on stdout."""
    print(_printable(sentence))


def complain(sentence: str) -> None:
    """A sentence for people on stderr."""
    print(_printable(sentence), file=sys.stderr)


def _table(rows: Sequence[Row], columns: Sequence[str]) -> list[str]:
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    lines = [[column.upper().replace("_", " ") for column in columns], *cells]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    numeric = [all(isinstance(row.get(column), int | float | None) for row in rows) for column in columns]
    return ["  ".join(_pad(*place) for place in zip(line, widths, numeric, strict=True)).rstrip() for line in lines]


def _pad(text: str, width: int, numeric: bool) -> str:
    return text.rjust(width) if numeric else text.ljust(width)


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, list | tuple):
        return ", ".join(_cell(item) for item in value) or "-"
    return _printable(str(value)).replace("\n", " ")


def _printable(text: str) -> str:
    return "".join(c if c == "\n" or unicodedata.category(c) != "Cc" else "\ufffd" for c in text)


def _write_json(value: object) -> None:
    print(json.dumps(value, indent=2, default=_plain))


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form here")


def say_progress(text: str) -> None:
    """One plain line of progress on stderr, where it never mixes with an answer."""
    print(text, file=sys.stderr, flush=True)

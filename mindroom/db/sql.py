"""Loads named SQL files: `-- name: x`, then a purpose line, then the statement, tagged for pg_stat_statements."""

import re
from dataclasses import dataclass
from importlib.resources import files

_BLOCK = re.compile(r"^-- name: (\w+)\n-- (.+)\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Statement:
    """One tagged statement and what it is for."""

    name: str
    purpose: str
    text: str


class Statements:
    """The statements of one file by name; an unknown name is a KeyError at import time of the caller's constant."""

    def __init__(self, statements: dict[str, Statement]) -> None:
        self._statements = statements

    def __getitem__(self, name: str) -> str:
        return self._statements[name].text

    def all(self) -> list[Statement]:
        """Every statement, in file order, for plan guards and docs."""
        return list(self._statements.values())


def load(package: str, file: str) -> Statements:
    """Read `file` from `package`. Raises ValueError for a malformed or doubled block."""
    text = files(package).joinpath(file).read_text()
    found: dict[str, Statement] = {}
    marks = list(_BLOCK.finditer(text))
    if len(marks) != text.count("-- name:"):
        raise ValueError(f"{file}: a block has no purpose line")
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        name = mark.group(1)
        body = text[mark.end() : following.start() if following else len(text)].strip()
        if not body or name in found:
            raise ValueError(f"{file}: statement {name} is empty or stands twice")
        # Behind the first word: pg_stat_statements drops a comment that stands before the statement.
        verb, rest = body.split(None, 1)
        found[name] = Statement(name, mark.group(2), f"{verb} /* mindroom:{name} */ {rest}")
    return Statements(found)

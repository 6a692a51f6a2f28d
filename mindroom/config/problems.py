"""What is wrong with a configuration: one finding a place, one error for all of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rapidfuzz import fuzz, process

from mindroom.core.errors import UserError

KeyPath = tuple[str | int, ...]
"""Keys and list positions from the top of the file to a value."""

_NEAR_PERCENT = 65.0
"""Similarity from which a key is offered as what was meant; 'modle' to 'model' is 80, as is 'password' to its _env."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong at a place of the data; the line is looked up by `path` unless it is given."""

    path: KeyPath
    message: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong at a line of a file; `key` is '' when the text itself is wrong. Lines count from 1."""

    file: str
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}"
        return f"{place}: {self.key}: {self.message}" if self.key else f"{place}: {self.message}"


class ConfigInvalid(UserError):
    """The configuration cannot be used; its text lists every problem with file, line and key path."""

    code = "config"

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(sorted(problems, key=lambda p: (p.line, p.key, p.message)))
        lines = [str(problem) for problem in self.problems]
        text = lines[0] if len(lines) == 1 else "\n  ".join([f"{len(lines)} problems in the configuration:", *lines])
        super().__init__(text)


def key_text(path: KeyPath) -> str:
    """A key path as people write it: `agents.assistant.rooms[0]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text


def near_match(word: str, candidates: Sequence[str]) -> str:
    """` Did you mean '…'?` for the candidate most like `word`, or '' when none is near."""
    best = process.extractOne(word.lower(), candidates, scorer=fuzz.ratio, score_cutoff=_NEAR_PERCENT)
    return f" Did you mean {best[0]!r}?" if best else ""

"""docs/reference/vocabulary.md lists every word of the shared values, each with a meaning."""

import inspect
import re
from enum import StrEnum

import pytest

from mindroom.core import values
from tests.docs.pages import REPOSITORY

PAGE = (REPOSITORY / "docs" / "reference" / "vocabulary.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| ([^|]+) \| ([^\n]+) \|$", PAGE, flags=re.MULTILINE))
WORDS = {
    name: value
    for name, value in vars(values).items()
    if inspect.isclass(value) and value.__module__ == values.__name__ and not name.startswith("_")
}
ENUMS = {name: value for name, value in WORDS.items() if issubclass(value, StrEnum)}
PLAIN_WORDS = [
    "principal",
    "receipt",
    "source",
    "anchor",
    "turn",
    "generation",
    "delivery",
    "lease",
    "fence",
    "epoch",
    "gap",
    "checkpoint",
    "tombstone",
    "echo",
    "floor",
    "hydration",
]


def test_the_shared_values_are_found() -> None:
    assert {"Verdict", "Conversation", "Reason", "Stage"} <= set(WORDS)


@pytest.mark.parametrize("name", sorted(WORDS))
def test_every_shared_value_has_its_word(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("name", sorted(ENUMS))
def test_every_member_of_a_closed_set_is_explained(name: str) -> None:
    assert [member.value for member in ENUMS[name] if f"`{member.value}`" not in PAGE] == []


def test_no_reason_is_explained_that_the_code_does_not_know() -> None:
    section = PAGE.partition("`Action`, `Reason`")[2]
    documented = set(re.findall(r"^\| `([a-z_]+)` \|", section, flags=re.MULTILINE))
    assert documented == {member.value for member in (*values.Action, *values.Reason)}


@pytest.mark.parametrize("word", PLAIN_WORDS)
def test_the_words_of_the_ledgers_are_there(word: str) -> None:
    assert ROWS[word]

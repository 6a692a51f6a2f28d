"""docs/contracts.md knows every contract, and each proven one has tests that exist and carry its id."""

import ast
import re
from functools import cache

import pytest

from tests.docs.pages import REPOSITORY

COUNTS = {"A": 14, "B": 7, "C": 5, "D": 10, "E": 12, "F": 4, "G": 8, "H": 3, "I": 5, "J": 1, "K": 4, "L": 4}
IDS = [f"{letter}{number}" for letter, count in COUNTS.items() for number in range(1, count + 1)]

PAGE = (REPOSITORY / "docs" / "contracts.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([A-L]\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGE, flags=re.MULTILINE)
TESTS = {id_: re.findall(r"`([^`]+)`", tests) for id_, _, _, tests in ROWS}
STATES = {id_: state for id_, _, state, _ in ROWS}
STATE = re.compile(r"(proven|proven; rest with [a-z ]+|with [a-z ]+)")


@cache
def module(path: str) -> ast.Module:
    """A test module, parsed."""
    return ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))


def function(path: str, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The test `name` of a module; None when it has none."""
    for node in ast.walk(module(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return node
    return None


def carries(id_: str, path: str, test: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a test says whose proof it is: in its name, its docstring or its module's."""
    words = f"{ast.get_docstring(test) or ''} {ast.get_docstring(module(path)) or ''}"
    return id_.lower() in test.name.split("_") or re.search(rf"\b{id_}\b", words) is not None


def test_every_contract_has_one_row_in_order() -> None:
    assert [row[0] for row in ROWS] == IDS


@pytest.mark.parametrize("id_", IDS)
def test_the_state_of_a_contract_is_one_of_the_known(id_: str) -> None:
    assert STATE.fullmatch(STATES[id_])


@pytest.mark.parametrize("id_", IDS)
def test_a_contract_has_tests_exactly_when_it_is_proven(id_: str) -> None:
    assert bool(TESTS[id_]) is STATES[id_].startswith("proven")


@pytest.mark.parametrize("id_", IDS)
def test_a_proof_exists_and_carries_the_id_of_its_contract(id_: str) -> None:
    for path, _, name in (test.partition("::") for test in TESTS[id_]):
        assert (REPOSITORY / path).is_file(), path
        test = function(path, name)
        assert test is not None, f"{path} has no {name}"
        assert carries(id_, path, test), f"{path}::{name} does not carry {id_}"


def test_a_name_holds_an_id_only_as_a_word() -> None:
    """`test_a1_…` is about A1, `test_a10_…` is not."""
    (test,) = ast.parse("def test_a10_edits(): ...").body
    assert isinstance(test, ast.FunctionDef)
    assert "a1" not in test.name.split("_")

"""ARCHITECTURE.md names modules that exist, the layers that are enforced, and every named transaction of the code."""

import re
import tomllib

from tests.docs.pages import REPOSITORY

PAGE = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
SOURCES = {path: path.read_text(encoding="utf-8") for path in (REPOSITORY / "mindroom").rglob("*.py")}


def section(number: int) -> str:
    """The text of one numbered section."""
    return re.split(r"^## \d\. ", PAGE, flags=re.MULTILINE)[number]


def test_it_is_told_in_150_lines() -> None:
    assert len(PAGE.splitlines()) <= 150


def test_every_module_it_names_exists() -> None:
    named = set(re.findall(r"\b([a-z]+/[a-z_/]+\.(?:py|sql))\b", PAGE))
    assert len(named) > 20
    assert [
        name for name in sorted(named) if not any((REPOSITORY / root / name).exists() for root in ("", "mindroom"))
    ] == []


def test_its_layers_are_the_enforced_ones() -> None:
    (contract,) = [c for c in PROJECT["tool"]["importlinter"]["contracts"] if c["type"] == "layers"]
    shown = [re.split(r"\s{2,}", line.strip())[0] for line in section(3).splitlines() if line.startswith("    ")]
    assert [names(layer) for layer in shown] == [names(layer) for layer in contract["layers"]]


def names(layer: str) -> list[str]:
    return re.findall(r"[a-z]+", layer)


def test_every_named_transaction_is_listed() -> None:
    call = re.compile(r"\.(?:run|transaction|rerun)\(\s*\"([a-z_.]+)\"")
    in_code = {name for text in SOURCES.values() for name in call.findall(text)}
    assert {"admit", "hand_off", "lease.take"} <= in_code
    assert in_code - set(re.findall(r"[a-z]+(?:[_.][a-z]+)*", section(5))) == set()

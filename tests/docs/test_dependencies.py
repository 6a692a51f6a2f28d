"""Each dependency has its reason in docs/decisions/dependencies.md and its pin with hashes in requirements.lock."""

import re
import tomllib

from tests.docs.pages import REPOSITORY

PAGE = (REPOSITORY / "docs" / "decisions" / "dependencies.md").read_text(encoding="utf-8")
LOCK = (REPOSITORY / "requirements.lock").read_text(encoding="utf-8")
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXPLAINED = set(re.findall(r"^\| ([a-z][a-z0-9-]+) \|", PAGE, flags=re.MULTILINE)) - {"package"}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=~! ]", requirement)[0].lower() for requirement in requirements}


DECLARED = names(PROJECT["dependencies"]).union(*map(names, PROJECT["optional-dependencies"].values()))


def test_every_dependency_is_explained_and_no_other() -> None:
    assert EXPLAINED == DECLARED


def test_every_dependency_is_locked() -> None:
    assert DECLARED - set(re.findall(r"^([a-z0-9-]+)==", LOCK, flags=re.MULTILINE)) == set()


def test_the_lock_holds_nothing_but_pins_with_hashes() -> None:
    entries = re.split(r"\n(?=\S)", LOCK.strip())
    pin = re.compile(r"[a-z0-9-]+(\[[a-z0-9,-]+\])?==\S+( ; [^\\]+)? \\(\n +--hash=sha256:[0-9a-f]{64}( \\)?)+")
    assert [entry.splitlines()[0] for entry in entries if not pin.fullmatch(entry)] == []

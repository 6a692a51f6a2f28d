"""Links between pages lead somewhere, and no page leads to a place that only one machine has."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import REPOSITORY, pages

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
# Home folders and this kind of work folder; written in pieces so that this file does not name them.
MACHINE_PATH = re.compile(
    r"(?<![\w.])/(?:" + "|".join(("wo" + "rk", "ro" + "ot", "ho" + "me/[a-z]", "Us" + "ers")) + r")/"
)
PACKAGE_HOSTS = ("py" + "pi.org", "python" + "hosted", "npm" + "js", "docker" + ".io", "gh" + "cr.io", "qu" + "ay.io")
TEXTS = sorted(
    path
    for pattern in ("mindroom/**/*", "migrations/**/*", "tests/**/*", "docs/**/*", "deploy/**/*", ".ci/*", "*")
    for path in REPOSITORY.glob(pattern)
    if path.is_file() and path.suffix not in (".pyc", ".png") and "__pycache__" not in path.parts
    if path.name not in (".venv.lock", ".git")
)


def anchors(page: Path) -> set[str]:
    """Targets of `#…` in a page: each heading in lower case with dashes, as code hosts make them."""
    headings = HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_of_a_page_resolves(page: Path) -> None:
    assert broken_links(page) == []


def test_a_dead_link_would_be_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Here\n[a](#here) [b](nowhere.md) [c](#there) [d](page.md#here)\n", encoding="utf-8")
    assert broken_links(page) == ["nowhere.md", "#there"]


def test_no_file_names_a_path_of_one_machine() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in TEXTS}
    assert [str(path) for path, text in texts.items() if MACHINE_PATH.search(text)] == []


def test_no_file_names_a_package_host() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in TEXTS}
    assert [str(path) for path, text in texts.items() if any(host in text for host in PACKAGE_HOSTS)] == []


def test_every_page_below_docs_is_reached_from_another_page() -> None:
    reached = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in pages()
        for link in LINK.findall(page.read_text(encoding="utf-8"))
        if "://" not in link
    }
    assert [
        str(page.relative_to(REPOSITORY)) for page in pages() if page.parent != REPOSITORY and page not in reached
    ] == []

"""The pages of the repository, for the tests that compare them with the code."""

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def pages() -> list[Path]:
    """Every Markdown page a reader may open, the root's first."""
    return sorted(REPOSITORY.glob("*.md")) + sorted((REPOSITORY / "docs").rglob("*.md"))

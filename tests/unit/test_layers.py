"""The import contracts hold on the tree, and each of them notices the import it is there to forbid."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")

FORBIDDEN = {
    "core looks up to the database": ("core/text.py", "import mindroom.db.sql", "A package imports only"),
    "one ledger looks at its sibling": ("journal/trust.py", "import mindroom.outbox.records", "A package imports only"),
    "the answer calls the homeserver": ("responses/cadence.py", "import mindroom.matrix.paths", "only through ports"),
    "a second package imports nio": ("outbox/records.py", "import nio", "Only matrix imports nio"),
    "the runtime loads SQLAlchemy": ("db/engine.py", "import sqlalchemy", "SQLAlchemy and Alembic stay"),
    "a turn knows the model library": ("turns/policy.py", "import agno.models", "Only models imports agno"),
}


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """import-linter on the packages below `root`, with the project's own configuration."""
    command = [str(LINT_IMPORTS), "--config", str(root / "pyproject.toml"), "--no-cache"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package and its contracts, free to be spoiled."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "mindroom", tmp_path / "mindroom", ignore=ignored)
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_import_of_the_tree_points_down(copy: Path) -> None:
    done = lint_imports(copy)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("case", FORBIDDEN)
def test_a_forbidden_import_breaks_its_contract(copy: Path, case: str) -> None:
    module, line, contract = FORBIDDEN[case]
    path = copy / "mindroom" / module
    path.write_text(f"{path.read_text(encoding='utf-8')}\n{line}\n", encoding="utf-8")

    done = lint_imports(copy)

    assert done.returncode == 1, done.stdout + done.stderr
    (broken,) = [text for text in done.stdout.splitlines() if contract in text and "BROKEN" in text]
    assert "KEPT" not in broken


def test_a_package_without_a_layer_is_noticed(copy: Path) -> None:
    """The layer list is exhaustive: a new package has to be given its place."""
    (copy / "mindroom" / "helpers").mkdir()
    (copy / "mindroom" / "helpers" / "__init__.py").write_text('"""Anything."""\n', encoding="utf-8")

    done = lint_imports(copy)

    assert done.returncode == 1
    assert "helpers" in done.stdout

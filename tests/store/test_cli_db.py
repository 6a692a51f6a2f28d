"""`mindroom db`: schema and instance of a database, over a real server and over a data folder of its own."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from mindroom import cli
from mindroom.db.embedded import EmbeddedPostgres, running_dsn
from mindroom.db.folder import DataFolder
from mindroom.db.schema import EXPECTED_REVISION

Told = pytest.CaptureFixture[str]


@pytest.fixture
def empty_database(postgres_server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A database without a schema, selected by DATABASE_URL."""
    name = f"cli_{id(monkeypatch):x}"
    asyncio.run(_execute(postgres_server.dsn, f"CREATE DATABASE {name}"))
    monkeypatch.setenv("DATABASE_URL", postgres_server.dsn.replace("/mindroom?", f"/{name}?"))
    yield name
    asyncio.run(_execute(postgres_server.dsn, f"DROP DATABASE {name} WITH (FORCE)"))


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture
def folder(short_path: Path) -> DataFolder:
    """A data folder that never held a database."""
    return DataFolder(short_path / "data")


def run(*argv: str) -> int:
    return cli.main(["db", *argv])


def test_check_names_the_remedy_and_upgrade_is_it(empty_database: str, capsys: Told) -> None:
    assert run("check") == 1
    assert "Run `mindroom db upgrade`" in capsys.readouterr().err

    assert run("upgrade") == 0
    assert f"now has the schema {EXPECTED_REVISION}; it had none" in capsys.readouterr().out

    assert run("check") == 0
    assert run("upgrade") == 0
    assert "already" in capsys.readouterr().out


def test_current_and_check_speak_json(empty_database: str, capsys: Told) -> None:
    assert run("current", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"revision": None, "expected": EXPECTED_REVISION}

    assert run("check", "--json") == 1
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["ok"], verdict["revision"]) == (False, None)
    assert "mindroom db upgrade" in verdict["problem"]


def test_a_server_that_is_away_is_a_sentence(monkeypatch: pytest.MonkeyPatch, free_port: int, capsys: Told) -> None:
    monkeypatch.setenv("DATABASE_URL", f"postgresql://nobody@127.0.0.1:{free_port}/none")
    assert run("current") == 1
    assert capsys.readouterr().err.startswith("mindroom: The database cannot be reached")


def test_a_missing_folder_is_told_and_not_made(tmp_path: Path, capsys: Told) -> None:
    assert run("current", "--data", str(tmp_path / "nowhere")) == 1
    assert "There is no data folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_read_makes_no_database(folder: DataFolder, capsys: Told) -> None:
    assert run("current", "--data", str(folder.path)) == 1
    assert "holds no database yet" in capsys.readouterr().err
    assert not folder.postgres.exists()


def test_a_folder_s_server_is_started_for_one_command_or_attached_to(folder: DataFolder, capsys: Told) -> None:
    async def while_it_runs() -> int:
        async with EmbeddedPostgres(folder) as server:
            code = await asyncio.to_thread(run, "current", "--data", str(folder.path), "--json")
            assert running_dsn(folder) == server.dsn
            return code

    assert asyncio.run(while_it_runs()) == 0
    assert json.loads(capsys.readouterr().out)["revision"] is None

    assert run("upgrade", "--data", str(folder.path)) == 0
    assert running_dsn(folder) is None
    assert "now has the schema" in capsys.readouterr().out


def test_adopt_asks_and_then_binds_the_folder_to_the_database(
    empty_database: str, folder: DataFolder, capsys: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = folder.path / "instance.id"
    memory.write_text("00000000-0000-4000-8000-000000000001\n")
    assert run("upgrade") == 0
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)

    assert run("adopt", "--data", str(folder.path)) == 1
    assert "add --yes" in capsys.readouterr().err
    assert memory.read_text().startswith("00000000")

    assert run("adopt", "--data", str(folder.path), "--yes") == 0
    shown = capsys.readouterr().out
    assert "whatever it belonged to before" in shown
    assert memory.read_text().strip() in shown
    assert not memory.read_text().startswith("00000000")


def test_adopt_waits_for_nobody_who_holds_the_folder(
    empty_database: str, folder: DataFolder, capsys: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mindroom.app.database.LOCK_PATIENCE_SECONDS", 0.0)

    async def while_held() -> int:
        async with folder.lock(timeout_seconds=0):
            return await asyncio.to_thread(run, "adopt", "--data", str(folder.path), "--yes")

    assert asyncio.run(while_held()) == 1
    assert "is in use by process" in capsys.readouterr().err

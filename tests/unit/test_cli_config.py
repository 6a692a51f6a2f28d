"""`mindroom init` and `mindroom config check`."""

import io
import json
from pathlib import Path

import pytest

from mindroom.cli import main
from mindroom.config import load_config

FLAGS = ["--homeserver", "https://matrix.example.org", "--user", "@alice:example.org"]


class Terminal(io.StringIO):
    """Standard input at which a person has typed the given lines."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    return tmp_path


# ---- init ------------------------------------------------------------------------------------------------------------
def test_init_with_flags_asks_nothing_and_writes_a_valid_file(folder: Path) -> None:
    assert main(["init", *FLAGS]) == 0
    config = load_config(folder / "config.yaml")
    assert config.matrix.homeserver == "https://matrix.example.org"
    assert config.matrix.server_name == "example.org"
    assert config.authorization.users == ("@alice:example.org",)
    assert set(config.agents) == {"assistant"}


def test_init_makes_the_folder_it_is_given(folder: Path) -> None:
    assert main(["init", "new/place", *FLAGS]) == 0
    assert (folder / "new" / "place" / "config.yaml").is_file()


def test_init_refuses_to_overwrite(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "config.yaml").write_text("mine")
    assert main(["init", *FLAGS]) == 1
    assert (folder / "config.yaml").read_text() == "mine"
    assert "config.yaml is already there and stays as it is" in capsys.readouterr().err


def test_init_does_not_write_through_a_link(folder: Path) -> None:
    (folder / "config.yaml").symlink_to(folder / "elsewhere.yaml")
    assert main(["init", *FLAGS]) == 1
    assert not (folder / "elsewhere.yaml").exists()


def test_init_without_flags_asks_at_a_terminal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("\n@alice:example.org\n"))
    assert main(["init"]) == 0
    config = load_config(folder / "config.yaml")
    assert config.matrix.homeserver == "http://127.0.0.1:8008"
    assert config.authorization.users == ("@alice:example.org",)


def test_init_without_a_terminal_names_the_missing_flag(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", *FLAGS[:2]]) == 1
    assert "--user is not given and there is no terminal to ask at" in capsys.readouterr().err
    assert not (folder / "config.yaml").exists()


def test_init_stops_when_no_answer_comes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(""))
    assert main(["init"]) == 1
    assert "No answer was given; add --homeserver." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("homeserver", "user", "sentence"),
    [
        ("example.org", "@a:b", "--homeserver: must be an address"),
        ("https://h", "alice", "--user: 'alice' is not a Matrix user id"),
        ("https://h", "@*:b", "--user: '@*:b' holds a wildcard"),
    ],
)
def test_init_refuses_what_the_file_could_not_hold(
    homeserver: str, user: str, sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--homeserver", homeserver, "--user", user]) == 1
    assert sentence in capsys.readouterr().err
    assert not (folder / "config.yaml").exists()


def test_what_is_typed_never_becomes_yaml_structure_i5(folder: Path) -> None:
    strange = """@a'"]\\{}&$user,:b"""
    assert main(["init", "--homeserver", """http://h/'"${x}&!""", "--user", strange]) == 0
    config = load_config(folder / "config.yaml")
    assert config.authorization.users == (strange,)
    assert config.matrix.homeserver == """http://h/'"${x}&!"""


def test_init_says_where_it_cannot_write(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "file").write_text("")
    assert main(["init", "file/below", *FLAGS]) == 1
    assert "cannot be written" in capsys.readouterr().err


# ---- config check ----------------------------------------------------------------------------------------------------
def test_check_shows_what_a_good_file_comes_to(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MINDROOM_REGISTRATION_SECRET", raising=False)
    main(["init", *FLAGS])
    capsys.readouterr()
    assert main(["config", "check"]) == 0
    shown = capsys.readouterr().out
    assert "config.yaml is fine (generation " in shown
    assert "@mindroom_assistant:example.org" in shown
    assert "Answered: @alice:example.org." in shown
    assert "Not set in this environment: MINDROOM_REGISTRATION_SECRET." in shown


def test_check_says_when_nobody_would_be_answered_i1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["init", *FLAGS])
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace('users: ["@alice:example.org"]', "users: []"))
    assert main(["config", "check"]) == 0
    assert "Nobody is answered; list user ids under authorization.users." in capsys.readouterr().out


def test_check_never_shows_a_secret_i3(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINDROOM_REGISTRATION_SECRET", "hunter2")
    main(["init", *FLAGS])
    main(["config", "check"])
    main(["config", "check", "--json"])
    shown = capsys.readouterr().out
    assert "hunter2" not in shown
    assert "Not set" not in shown


def test_check_for_machines_holds_agents_rooms_and_generation(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["init", "there", *FLAGS])
    capsys.readouterr()
    assert main(["config", "check", "-c", "there/config.yaml", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["ok"], record["problems"]) == (True, [])
    assert record["agents"][0]["user_id"] == "@mindroom_assistant:example.org"
    assert record["rooms"][0]["alias"] == "#mindroom_lobby:example.org"
    assert len(record["generation"]) == 12


def test_check_tells_every_problem_with_its_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "config.yaml").write_text("matrx: {}\nagents: {}\n")
    assert main(["config", "check"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "config.yaml:1: matrx: is not a known key. Did you mean 'matrix'?" in captured.err
    assert "config.yaml:2: agents: holds no agent" in captured.err
    assert "Traceback" not in captured.err


def test_check_for_machines_lists_the_problems(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "config.yaml").write_text("a: [\n")
    assert main(["config", "check", "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert record["ok"] is False
    assert (record["problems"][0]["file"], record["problems"][0]["line"]) == ("config.yaml", 2)


def test_check_without_a_file_says_how_to_get_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check"]) == 1
    assert "write one with `mindroom init`" in capsys.readouterr().err

"""The frame of the command line: exit codes, sentences instead of tracebacks, and a fast start."""

import argparse
import json
import subprocess
import sys

import pytest

import mindroom
from mindroom import cli
from mindroom.cli.frame import Commands
from mindroom.core.errors import DatabaseUnavailable, UserError


def with_command(monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> None:
    """Make `mindroom fail` a command that raises `failure`."""

    def handler(arguments: argparse.Namespace) -> int:
        raise failure

    def build() -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(prog="mindroom")
        Commands(parser).add("fail", summary="Fail", handler=handler)
        return parser

    monkeypatch.setattr(cli, "build_parser", build)


def test_help_is_fine_and_lists_every_noun(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"    {noun}" in shown for noun in cli.NOUNS)
    assert "Exit codes: 0 fine, 1 problem found, 2 usage." in shown


@pytest.mark.parametrize("argv", [[], ["config"], ["nonsense"], ["config", "nonsense"], ["version", "--jso"]])
def test_a_wrong_command_line_is_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("usage: mindroom")


@pytest.mark.parametrize("failure", [UserError("Do this.\x1b[2J"), DatabaseUnavailable("Do this.\x1b[2J")])
def test_our_errors_are_one_sentence_without_a_traceback(
    failure: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_command(monkeypatch, failure)
    assert cli.main(["fail"]) == 1
    assert capsys.readouterr().err == "mindroom: Do this.\ufffd[2J\n"


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with_command(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        cli.main(["fail"])


def test_ctrl_c_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with_command(monkeypatch, KeyboardInterrupt())
    assert cli.main(["fail"]) == 130
    assert capsys.readouterr().err == ""


def test_a_reader_that_goes_away_makes_no_noise() -> None:
    ended = subprocess.run(
        f"{sys.executable} -m mindroom version --json | true; echo done", shell=True, capture_output=True, text=True
    )
    assert (ended.stdout, ended.stderr) == ("done\n", "")


def test_version_tells_the_build(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["version"] == mindroom.__version__
    assert record["python"] == ".".join(str(part) for part in sys.version_info[:3])
    assert set(record) == {"version", "schema", "python"}


def test_version_for_people_is_one_property_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["version", mindroom.__version__]


def test_the_command_line_starts_without_loading_what_commands_need() -> None:
    heavy = ["agno", "aiohttp", "nio", "openai", "pydantic", "sqlalchemy", "yaml"]
    program = (
        "import sys; from mindroom.cli import main; code = main(['version']); "
        f"print([name for name in {heavy} if name in sys.modules]); sys.exit(code)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"


def test_the_module_is_the_command() -> None:
    ended = subprocess.run([sys.executable, "-m", "mindroom", "config"], capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr.startswith("usage: mindroom config")

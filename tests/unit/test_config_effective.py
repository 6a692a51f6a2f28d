"""The effective view of a configuration, its digest, and secrets from the environment."""

import os
import re
import subprocess
import sys

import pytest

from mindroom.config import (
    Account,
    Answers,
    Registration,
    SecretReference,
    ThreadMode,
    config_generation,
    effective_config,
    parse_config,
    resolve_secret,
    secret_references,
)
from mindroom.core.errors import UserError

TWO = """\
matrix:
  homeserver: https://matrix.example.org
  server_name: example.org
  registration: {shared_secret_env: REGISTRATION}
  accounts:
    helper: {user_id: "@old-helper:elsewhere.org", token_env: HELPER_TOKEN}
models:
  default: {provider: openai_like, id: any, base_url: "http://127.0.0.1:9100/v1", api_key_env: API_KEY}
  local: {provider: offline}
agents:
  writer: {display_name: Writer, role: Writes, rooms: [study, lobby], answers: mentioned, thread_mode: room}
  helper: {model: local}
rooms:
  lobby: {display_name: Lobby}
  study: {}
authorization:
  users: ["@bob:example.org", "@alice:example.org"]
"""


def test_an_agent_is_registered_under_its_own_name_unless_it_has_an_account() -> None:
    writer, helper = effective_config(parse_config(TWO)).agents
    assert (writer.name, writer.user_id) == ("writer", "@mindroom_writer:example.org")
    assert writer.account == Registration(shared_secret_env="REGISTRATION")
    assert (helper.name, helper.user_id) == ("helper", "@old-helper:elsewhere.org")
    assert helper.account == Account(user_id="@old-helper:elsewhere.org", token_env="HELPER_TOKEN")


def test_an_agent_carries_its_model_rooms_and_manners() -> None:
    config = parse_config(TWO)
    writer, helper = effective_config(config).agents
    assert (writer.model, writer.model_settings) == ("default", config.models["default"])
    assert [room.alias for room in writer.rooms] == ["#mindroom_lobby:example.org", "#mindroom_study:example.org"]
    assert (writer.answers, writer.thread_mode, writer.role) == (Answers.MENTIONED, ThreadMode.ROOM, "Writes")
    assert (helper.rooms, helper.answers, helper.model) == ((), Answers.AUTO, "local")


def test_what_has_no_display_name_is_called_by_its_name() -> None:
    effective = effective_config(parse_config(TWO))
    assert [agent.display_name for agent in effective.agents] == ["Writer", "helper"]
    assert [room.display_name for room in effective.rooms] == ["Lobby", "study"]


def test_the_users_who_are_answered_are_exactly_those_listed_i1() -> None:
    assert effective_config(parse_config(TWO)).authorized_users == {"@alice:example.org", "@bob:example.org"}


def test_a_changed_model_changes_exactly_the_agents_that_use_it() -> None:
    before = effective_config(parse_config(TWO)).agents
    after = effective_config(parse_config(TWO.replace("id: any", "id: other"))).agents
    assert [old.name for old, new in zip(before, after, strict=True) if old != new] == ["writer"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("models:", "# a comment\nmodels:"),
        ("  lobby: {display_name: Lobby}\n  study: {}", "  study: {}\n  lobby: {display_name: Lobby}"),
        ("rooms: [study, lobby]", "rooms: [lobby, study, lobby]"),
        ('"@bob:example.org", "@alice:example.org"', '"@alice:example.org", "@bob:example.org"'),
        ("study: {}", "study: {display_name: study}"),
        ("helper: {model: local}", "helper: {model: local, answers: auto, display_name: helper}"),
        ("https://matrix.example.org", "https://matrix.example.org/"),
        ("api_key_env: API_KEY", "api_key_env: API_KEY, timeout_seconds: 120"),
    ],
)
def test_the_generation_stays_when_nothing_effective_changes(old: str, new: str) -> None:
    assert old in TWO
    assert config_generation(parse_config(TWO.replace(old, new))) == config_generation(parse_config(TWO))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("role: Writes", "role: Reads"),
        ("answers: mentioned", "answers: auto"),
        (', "@alice:example.org"', ""),
        ("id: any", "id: other"),
        ("authorization:", "http: {port: 0}\nauthorization:"),
    ],
)
def test_the_generation_moves_with_every_effective_change(old: str, new: str) -> None:
    assert old in TWO
    assert config_generation(parse_config(TWO.replace(old, new))) != config_generation(parse_config(TWO))


def test_the_generation_is_short_and_the_same_in_every_process() -> None:
    program = "import sys; from mindroom.config import *; print(config_generation(parse_config(sys.stdin.read())))"
    generations = {
        subprocess.run(
            [sys.executable, "-c", program],
            input=TWO,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert generations == {config_generation(parse_config(TWO))}
    assert all(re.fullmatch("[0-9a-f]{12}", generation) for generation in generations)


def test_a_secret_is_looked_up_only_when_it_is_needed_i3() -> None:
    parse_config(TWO)
    assert resolve_secret("API_KEY", environ={"API_KEY": "value"}) == "value"


@pytest.mark.parametrize("environ", [{}, {"API_KEY": ""}])
def test_a_missing_secret_is_told_by_the_name_of_its_variable(environ: dict[str, str]) -> None:
    with pytest.raises(UserError, match="The environment variable API_KEY is not set or empty"):
        resolve_secret("API_KEY", environ=environ)


def test_every_variable_the_file_names_is_listed_with_its_key() -> None:
    assert secret_references(parse_config(TWO)) == (
        SecretReference("matrix.registration.shared_secret_env", "REGISTRATION"),
        SecretReference("matrix.accounts.helper.token_env", "HELPER_TOKEN"),
        SecretReference("models.default.api_key_env", "API_KEY"),
    )

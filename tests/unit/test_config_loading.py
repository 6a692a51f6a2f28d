"""Loading config.yaml: what is accepted, and that every problem is told at once, at its line."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from mindroom.config import (
    Account,
    Answers,
    ConfigInvalid,
    OfflineModel,
    OpenAILikeModel,
    ThreadMode,
    load_config,
    parse_config,
)
from mindroom.core.errors import UserError

FULL = """\
matrix:
  homeserver: http://127.0.0.1:8008
  server_name: localhost
  registration: {shared_secret_env: MINDROOM_REGISTRATION_SECRET}
  accounts:
    assistant: {user_id: "@helper:example.org", password_env: HELPER_PASSWORD}
models:
  default: {provider: openai_like, id: any, base_url: "http://127.0.0.1:9100/v1", api_key_env: OPENAI_API_KEY}
  local:   {provider: offline}
agents:
  assistant: {display_name: Assistant, role: "Helps with anything", model: default, rooms: [lobby],
              answers: auto, thread_mode: thread}
rooms:
  lobby: {display_name: Lobby}
authorization:
  users: ["@alice:localhost"]
"""

SMALL = """\
matrix:
  homeserver: http://127.0.0.1:8008
  server_name: localhost
  registration: {shared_secret_env: SECRET}
models:
  default: {provider: offline}
agents:
  assistant: {}
"""


def problems(text: str) -> list[str]:
    """The problems of `text` as people read them, without the file's name."""
    with pytest.raises(ConfigInvalid) as caught:
        parse_config(text, file="f")
    return [str(problem).removeprefix("f:") for problem in caught.value.problems]


def small(old: str, new: str) -> str:
    assert old in SMALL
    return SMALL.replace(old, new)


# ---- accepted --------------------------------------------------------------------------------------------------------
def test_a_full_file_is_read_as_written() -> None:
    config = parse_config(FULL)
    assert config.matrix.homeserver == "http://127.0.0.1:8008"
    assert config.matrix.accounts["assistant"] == Account(user_id="@helper:example.org", password_env="HELPER_PASSWORD")
    assert config.models["default"] == OpenAILikeModel(
        provider="openai_like", id="any", base_url="http://127.0.0.1:9100/v1", api_key_env="OPENAI_API_KEY"
    )
    assert config.models["local"] == OfflineModel(provider="offline")
    assert config.agents["assistant"].rooms == ("lobby",)
    assert config.rooms["lobby"].display_name == "Lobby"
    assert config.authorization.users == ("@alice:localhost",)


def test_a_small_file_gets_the_documented_defaults() -> None:
    config = parse_config(SMALL)
    agent = config.agents["assistant"]
    assert (agent.model, agent.rooms, agent.role) == ("default", (), "")
    assert (agent.answers, agent.thread_mode) == (Answers.AUTO, ThreadMode.THREAD)
    assert (config.http.host, config.http.port) == ("127.0.0.1", 8765)


def test_nobody_is_answered_unless_listed_i1() -> None:
    assert parse_config(SMALL).authorization.users == ()


def test_a_model_attempt_has_120_seconds_unless_said_otherwise() -> None:
    model = parse_config(FULL).models["default"]
    assert isinstance(model, OpenAILikeModel)
    assert model.timeout_seconds == 120.0


def test_addresses_lose_their_trailing_slash() -> None:
    assert parse_config(small(":8008", ":8008/")).matrix.homeserver == "http://127.0.0.1:8008"


def test_names_that_yaml_reads_as_other_things_are_names() -> None:
    config = parse_config(SMALL + "  on: {}\n  'no': {}\n")
    assert set(config.agents) == {"assistant", "on", "no"}


def test_an_alias_stands_for_what_it_names() -> None:
    config = parse_config(small("assistant: {}", "one: &same {role: Helps}\n  two: *same"))
    assert config.agents["one"] == config.agents["two"]


def test_a_configuration_cannot_be_changed_after_loading() -> None:
    config = parse_config(FULL)
    with pytest.raises(ValidationError):
        config.http.port = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.agents["other"] = config.agents["assistant"]  # type: ignore[index]
    with pytest.raises(TypeError):
        parse_config(SMALL).rooms["new"] = config.rooms["lobby"]  # type: ignore[index]


# ---- shape -----------------------------------------------------------------------------------------------------------
def test_an_unknown_key_is_told_with_its_line_and_the_near_match() -> None:
    assert problems(small("assistant: {}", "assistant:\n    modle: default")) == [
        "9: agents.assistant.modle: is not a known key. Did you mean 'model'?"
    ]


def test_an_unknown_key_unlike_any_other_gets_no_guess() -> None:
    assert problems(SMALL + "zzz: 1\n") == ["9: zzz: is not a known key."]


def test_a_key_of_another_provider_is_not_offered_back() -> None:
    text = small("default: {provider: offline}", "default: {provider: offline, base_url: 'http://h'}")
    assert problems(text) == ["6: models.default.base_url: is not a known key."]


def test_a_key_of_a_model_gets_the_near_match_of_its_provider() -> None:
    model = "{provider: openai_like, id: x, base_url: 'http://h', timeout_second: 5}"
    assert problems(small("{provider: offline}", model)) == [
        "6: models.default.timeout_second: is not a known key. Did you mean 'timeout_seconds'?"
    ]


def test_a_key_without_a_value_is_told_once() -> None:
    assert problems(small("assistant: {}", "assistant:")) == [
        "8: agents.assistant: has no value; give it one or remove the key"
    ]


def test_all_problems_are_told_in_the_order_of_lines() -> None:
    text = """\
matrix: {homeserver: 'ftp://x', server_name: localhost, registration: {shared_secret_env: S}}
models:
  default: {provider: openai_like, id: x}
agents:
  a: {model: lokal, rooms: [loby], answers: sometimes}
rooms:
  lobby: {}
"""
    assert problems(text) == [
        "1: matrix.homeserver: must be an address such as 'https://matrix.example.org'",
        "3: models.default.base_url: is required",
        "5: agents.a.answers: must be 'auto' or 'mentioned', not \"sometimes\"",
        "5: agents.a.model: there is no 'lokal' under models.",
        "5: agents.a.rooms[0]: there is no 'loby' under rooms. Did you mean 'lobby'?",
    ]


def test_one_error_message_holds_every_problem_with_file_and_line() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        parse_config(SMALL + "zzz: 1\nyyy: 2\n", file="dir/config.yaml")
    assert str(caught.value).splitlines() == [
        "2 problems in the configuration:",
        "  dir/config.yaml:9: zzz: is not a known key.",
        "  dir/config.yaml:10: yyy: is not a known key.",
    ]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("server_name: localhost", "servername: localhost", "1: matrix.server_name: is required"),
        ("assistant: {}", "assistant: {rooms: lobby}", "8: agents.assistant.rooms: must be a list"),
        ("assistant: {}", "assistant: text", "8: agents.assistant: must hold keys of its own"),
        ("assistant: {}", "assistant:", "8: agents.assistant: has no value; give it one or remove the key"),
        ("{shared_secret_env: SECRET}", "", "4: matrix.registration: has no value; give it one or remove the key"),
        ("agents:\n  assistant: {}", "agents: []", "7: agents: must hold names with their entries"),
        ("assistant: {}", "assistant: {display_name: Yes}", "must be text; put it in quotes"),
        ("assistant: {}", "assistant: {display_name: ' '}", "8: agents.assistant.display_name: must not be empty"),
        ("assistant: {}", 'assistant: {display_name: "a\\nb"}', "must be one line without control characters"),
        ("assistant: {}", "Assistant: {}", "8: agents.Assistant: the name 'Assistant' must start with a lowercase"),
        ("assistant: {}", "a.b: {}", "the name 'a.b' must start with a lowercase letter"),
        ("assistant: {}", f"{'a' * 65}: {{}}", "at most 64 in all"),
        ("provider: offline", "provider: ofline", "6: models.default: has the provider 'ofline'; known are"),
        ("{provider: offline}", "{}", "6: models.default: needs the key 'provider'"),
        ("server_name: localhost", "server_name: 'a b'", "'a b' is not a Matrix server name"),
        ("http://127", "http://user:pass@127", "must not hold a user name or password"),
        ("agents:", "http: {port: 65536}\nagents:", "7: http.port: must be less than or equal to 65535"),
        ("agents:", "http: {port: true}\nagents:", "7: http.port: must be a valid integer"),
        ("agents:", "http: {port: '80'}\nagents:", "7: http.port: must be a valid integer"),
    ],
)
def test_a_wrong_shape_is_a_sentence(old: str, new: str, problem: str) -> None:
    assert any(problem in told for told in problems(small(old, new)))


@pytest.mark.parametrize("seconds", ["0", "-1", ".nan", ".inf", "true", "'5'"])
def test_a_timeout_is_a_positive_number_of_seconds(seconds: str) -> None:
    model = f"{{provider: openai_like, id: x, base_url: 'http://h/v1', timeout_seconds: {seconds}}}"
    (told,) = problems(small("{provider: offline}", model))
    assert told.startswith("6: models.default.timeout_seconds: must be")


@pytest.mark.parametrize(
    "user", ["alice", "@alice", "@:localhost", "@al ice:localhost", "@alice:", "@alice:a:b", "@alice:" + "x" * 300, ""]
)
def test_an_authorized_user_is_a_whole_user_id(user: str) -> None:
    (told,) = problems(SMALL + f"authorization:\n  users:\n    - '{user}'\n")
    assert told.startswith("11: authorization.users[0]: ")
    assert "is not a Matrix user id" in told


def test_wildcards_authorize_nobody_i1() -> None:
    (told,) = problems(SMALL + "authorization: {users: ['@*:localhost']}\n")
    assert "holds a wildcard" in told


# ---- accounts and secrets --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("credentials", "problem"),
    [
        ("", "needs either password_env or token_env"),
        (", password_env: A, token_env: B", "needs either password_env or token_env"),
        (", password_env: A, device_id: DEV", "device_id goes with token_env only"),
    ],
)
def test_an_account_has_exactly_one_way_in(credentials: str, problem: str) -> None:
    text = small("models:", f"  accounts:\n    assistant: {{user_id: '@a:b'{credentials}}}\nmodels:")
    assert problems(text) == [f"6: matrix.accounts.assistant: {problem}"]


def test_an_account_may_log_in_by_token_with_its_device() -> None:
    account = "{user_id: '@a:b', token_env: TOKEN, device_id: DEV}"
    config = parse_config(small("models:", f"  accounts: {{assistant: {account}}}\nmodels:"))
    assert config.matrix.accounts["assistant"].device_id == "DEV"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("shared_secret_env: SECRET", "shared_secret_env: hunter2"),
        ("shared_secret_env: SECRET", "shared_secret: hunter2"),
        ("provider: offline", "provider: openai_like, id: x, base_url: 'http://h', api_key: hunter2"),
        ("provider: offline", "provider: openai_like, id: x, base_url: 'http://u:hunter2@h'"),
        ("provider: offline", "provider: openai_like, id: x, base_url: 'http://h', api_key_env: sk-hunter2"),
    ],
)
def test_a_secret_written_into_the_file_is_refused_and_never_repeated_i3(old: str, new: str) -> None:
    told = problems(small(old, new))
    assert told
    assert "hunter2" not in "".join(told)


# ---- references ------------------------------------------------------------------------------------------------------
def test_at_least_one_agent_is_needed() -> None:
    assert problems(small("  assistant: {}", "  {}")) == ["7: agents: holds no agent; at least one is needed"]


def test_an_agent_without_a_model_needs_one_named_default() -> None:
    assert problems(small("default: {provider", "local: {provider")) == [
        "8: agents.assistant.model: there is no 'default' under models."
    ]


def test_an_account_belongs_to_an_agent() -> None:
    text = small("models:", "  accounts: {asistant: {user_id: '@a:b', token_env: T}}\nmodels:")
    assert problems(text) == [
        "5: matrix.accounts.asistant: there is no 'asistant' under agents. Did you mean 'assistant'?"
    ]


def test_without_registration_every_agent_needs_an_account() -> None:
    assert problems(small("  registration: {shared_secret_env: SECRET}\n", "")) == [
        "7: agents.assistant: has no Matrix account; add matrix.registration or matrix.accounts.assistant"
    ]


def test_two_agents_never_share_an_account() -> None:
    text = small("models:", "  accounts: {other: {user_id: '@mindroom_assistant:localhost', token_env: T}}\nmodels:")
    assert problems(text + "  other: {}\n") == [
        "10: agents.other: uses the account '@mindroom_assistant:localhost', which agent 'assistant' uses already"
    ]


# ---- YAML ------------------------------------------------------------------------------------------------------------
def test_a_key_given_twice_is_an_error_at_the_second_place() -> None:
    assert problems(SMALL + "  assistant: {role: other}\n") == ["9: agents.assistant: is given twice, first on line 8"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "1: is empty"),
        ("# only a comment\n", "1: is empty"),
        ("null\n", "1: is empty"),
        ("- a\n- b\n", "1: must hold keys"),
        ("just text\n", "1: must hold keys"),
        ("a: 1\nb: [1\n", "3: is not YAML: while parsing a flow sequence"),
        ("a:\n\tb: 1\n", "indent with spaces, not tabs"),
        ("a: 1\n---\nb: 2\n", "is not YAML: expected a single document"),
        ("a: 1\nb: \x01\n", "2: holds a character that YAML does not allow"),
        ("a: &x [*x]\n", "1: is not YAML: an alias stands inside itself"),
        ("a: !!python/object:os.system {}\n", "the tag 'tag:yaml.org,2002:python/object:os.system' is not supported"),
        ("a: !secret x\n", "1: a: the tag '!secret' is not supported"),
        ("a: !!int x\n", "1: a: 'x' is not a int value"),
        ("a: !!bool x\n", "1: a: 'x' is not a bool value"),
        ('a: "\\0"\n', "1: a: holds a NUL or half a character"),
        ('a: "\\ud800"\n', "1: a: holds a NUL or half a character"),
        ("a:\n  <<: {b: 1}\n", "2: a: uses the merge key '<<', which is not supported"),
        ("a:\n  {{x}}: 1\n", "2: a: has a list or a mapping as a key; put the key in quotes"),
        ("[" * 20_000, "1: is nested too deeply"),
    ],
)
def test_text_that_is_no_configuration_is_a_sentence(text: str, problem: str) -> None:
    assert any(problem in told for told in problems(text))


def test_aliases_of_aliases_end_before_memory_does() -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    assert any("too many values" in told for told in problems("\n".join(rows)))


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.sampled_from("matrixgens:{}[]-&*!|>\"'#\n\t 01<?,.\x00é"), max_size=60))
def test_any_text_ends_in_a_configuration_or_in_problems(text: str) -> None:
    with pytest.raises(ConfigInvalid):
        parse_config(text)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "rooms", "model"]), inner),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(["matrix", "models", "agents", "rooms", "http"], _JSON)))
def test_any_data_ends_in_problems_of_the_configuration(data: dict[str, object]) -> None:
    import yaml

    with pytest.raises(ConfigInvalid):
        parse_config(yaml.safe_dump(data))


# ---- files -----------------------------------------------------------------------------------------------------------
def test_a_file_is_loaded_with_or_without_a_byte_order_mark(tmp_path: Path) -> None:
    plain, marked = tmp_path / "plain.yaml", tmp_path / "marked.yaml"
    plain.write_text(FULL, encoding="utf-8")
    marked.write_text(FULL, encoding="utf-8-sig")
    assert load_config(plain) == load_config(marked) == parse_config(FULL)


def test_a_missing_file_names_the_command_that_writes_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no file .*config\.yaml; write one with `mindroom init`"):
        load_config(tmp_path / "config.yaml")


def test_a_folder_is_not_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        load_config(tmp_path)


def test_a_file_in_another_encoding_is_told_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(b"a: 1\nb: \xe9\n")
    with pytest.raises(ConfigInvalid, match=r"config\.yaml:2: is not UTF-8 text"):
        load_config(path)

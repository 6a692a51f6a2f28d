"""`mindroom init`: writes a commented config.yaml to start from. Never overwrites one, never writes a secret."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from string import Template

from mindroom.cli.frame import DEFAULT_CONFIG_FILE, Commands, Exit
from mindroom.cli.output import say
from mindroom.core.errors import UserError

_HOMESERVER = "http://127.0.0.1:8008"
_TEMPLATE = Template(
    """\
# MindRoom configuration. `mindroom config check` tells every problem of this file.
# Secrets never stand here; keys that end in _env name environment variables.

matrix:
  homeserver: $homeserver
  # The part after the colon in user ids.
  server_name: $server_name
  # Agents without an account below are registered as @mindroom_<agent>:<server_name> with this secret.
  registration:
    shared_secret_env: MINDROOM_REGISTRATION_SECRET
  # Existing accounts, by the name of the agent:
  # accounts:
  #   assistant:
  #     user_id: "@helper:example.org"
  #     password_env: HELPER_PASSWORD      # or token_env, then optionally device_id

models:
  # Answers without a network or a key, to see everything work.
  default:
    provider: offline
  # Any endpoint that speaks the OpenAI chat protocol:
  # default:
  #   provider: openai_like
  #   id: name-of-the-model
  #   base_url: "https://models.example.org/v1"
  #   api_key_env: MODEL_API_KEY
  #   timeout_seconds: 120

agents:
  assistant:
    display_name: Assistant
    role: Helps with anything
    model: default
    rooms: [lobby]
    answers: auto            # or mentioned: only when named
    thread_mode: thread      # or room: plainly in the main timeline

rooms:
  # Found or created as #mindroom_lobby:<server_name>.
  lobby:
    display_name: Lobby

authorization:
  # Exact user ids; nobody else is answered.
  users: [$user]

# Metrics and health; port 0 takes any free one.
http:
  host: 127.0.0.1
  port: 8765
"""
)


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add("init", summary="Write a commented config.yaml to start from", handler=_init)
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path(), metavar="FOLDER", help="where to write it (default: here)"
    )
    parser.add_argument("--homeserver", metavar="URL", help="address of the homeserver; asked for when not given")
    parser.add_argument("--user", metavar="USER_ID", help="the user whom agents answer; asked for when not given")


def _init(arguments: argparse.Namespace) -> int:
    from mindroom.config.formats import check_url, check_user_id

    path: Path = arguments.folder / DEFAULT_CONFIG_FILE
    if path.exists():
        raise _already_there(path)
    homeserver = _answer(arguments.homeserver, option="--homeserver", default=_HOMESERVER, check=check_url)
    user = _answer(arguments.user, option="--user", default=None, check=check_user_id)
    _write_new(path, _render(homeserver=homeserver, user=user))
    say(f"Wrote {path}.")
    say("Next: set MINDROOM_REGISTRATION_SECRET, then `mindroom config check` and `mindroom run`.")
    return Exit.OK


def _render(*, homeserver: str, user: str) -> str:
    # JSON strings are YAML strings, so nothing typed by a person can become YAML structure (I5).
    values = {"homeserver": homeserver, "server_name": user.partition(":")[2], "user": user}
    return _TEMPLATE.substitute({key: json.dumps(value) for key, value in values.items()})


def _answer(given: str | None, *, option: str, default: str | None, check: Callable[[str], str]) -> str:
    value = _ask(option, default=default) if given is None else given
    try:
        return check(value)
    except ValueError as error:
        raise UserError(f"{option}: {error}.") from error


def _ask(option: str, *, default: str | None) -> str:
    if not sys.stdin.isatty():
        raise UserError(f"{option} is not given and there is no terminal to ask at; add {option}.")
    question = "Homeserver address" if option == "--homeserver" else "Your Matrix user id"
    try:
        typed = input(f"{question} [{default}]: " if default else f"{question}: ").strip()
    except EOFError as error:
        raise UserError(f"No answer was given; add {option}.") from error
    return typed or default or ""


def _write_new(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise _already_there(path) from error
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.") from error


def _already_there(path: Path) -> UserError:
    return UserError(f"{path} is already there and stays as it is; name another folder or move it away first.")

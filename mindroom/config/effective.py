"""What the configuration comes to: each agent with its account, model and rooms filled in.

The runtime reads this view and compares two of them to see what a change of the file changes. Pure.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mindroom.config.schema import (
    Account,
    Answers,
    Config,
    Http,
    ModelSettings,
    Registration,
    ThreadMode,
)
from mindroom.core.ids import PrincipalName, UserId

_PREFIX: Final = "mindroom_"
_GENERATION_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class EffectiveRoom:
    """A room of ours: its configured name, its full alias and what people read."""

    name: str
    alias: str
    display_name: str


@dataclass(frozen=True, slots=True)
class EffectiveAgent:
    """All that decides how one agent lives; `model` is the name under models, `rooms` are sorted by name."""

    name: PrincipalName
    user_id: UserId
    account: Account | Registration
    display_name: str
    role: str
    model: str
    model_settings: ModelSettings
    rooms: tuple[EffectiveRoom, ...]
    answers: Answers
    thread_mode: ThreadMode


@dataclass(frozen=True, slots=True)
class EffectiveConfig:
    """The configuration as the runtime uses it; agents stand in the order of the file, rooms by name."""

    homeserver: str
    server_name: str
    agents: tuple[EffectiveAgent, ...]
    models: Mapping[str, ModelSettings]
    rooms: tuple[EffectiveRoom, ...]
    authorized_users: frozenset[UserId]
    http: Http


def default_user_id(name: str, server_name: str) -> UserId:
    """The account of an agent that names no existing one."""
    return UserId(f"@{_PREFIX}{name}:{server_name}")


def room_alias(name: str, server_name: str) -> str:
    """The alias under which a configured room is found or created."""
    return f"#{_PREFIX}{name}:{server_name}"


def effective_config(config: Config) -> EffectiveConfig:
    """Fill in accounts, aliases, names and models. `config` has passed `check_references`."""
    server_name = config.matrix.server_name
    rooms = {
        name: EffectiveRoom(name, room_alias(name, server_name), room.display_name or name)
        for name, room in sorted(config.rooms.items())
    }
    return EffectiveConfig(
        homeserver=config.matrix.homeserver,
        server_name=server_name,
        agents=tuple(_effective_agent(config, name, rooms) for name in config.agents),
        models=config.models,
        rooms=tuple(rooms.values()),
        authorized_users=frozenset(UserId(user) for user in config.authorization.users),
        http=config.http,
    )


def _effective_agent(config: Config, name: str, rooms: Mapping[str, EffectiveRoom]) -> EffectiveAgent:
    agent = config.agents[name]
    account = config.matrix.accounts.get(name) or config.matrix.registration
    assert account is not None, "check_references wants an account for every agent"
    existing = UserId(account.user_id) if isinstance(account, Account) else None
    return EffectiveAgent(
        name=PrincipalName(name),
        user_id=existing or default_user_id(name, config.matrix.server_name),
        account=account,
        display_name=agent.display_name or name,
        role=agent.role,
        model=agent.model,
        model_settings=config.models[agent.model],
        rooms=tuple(rooms[room] for room in agent.rooms),
        answers=agent.answers,
        thread_mode=agent.thread_mode,
    )


def config_generation(config: Config) -> str:
    """A short digest of the configuration with its defaults filled in.

    The same for files that differ in comments, key order, list order, or in spelling out a default.
    """
    data = config.model_dump(mode="json")
    for section in ("agents", "rooms"):
        for name, entry in data[section].items():
            entry["display_name"] = entry["display_name"] or name
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:_GENERATION_DIGITS]

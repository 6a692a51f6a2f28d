"""`mindroom config`: reading and judging the configuration file. Never changes it."""

import argparse
import os
from typing import TYPE_CHECKING

from mindroom.cli.frame import Commands, Exit, add_config_option, add_json_option
from mindroom.cli.output import say, show_record, show_rows

if TYPE_CHECKING:
    from mindroom.config import Config, ConfigInvalid, EffectiveConfig

_AGENT_COLUMNS = ("agent", "user_id", "model", "rooms", "answers", "thread_mode")


def register(commands: Commands) -> None:
    """Add the noun and its verbs."""
    verbs = commands.group("config", summary="Look at the configuration file")
    check = verbs.add("check", summary="Tell every problem of the configuration file", handler=_check)
    add_config_option(check)
    add_json_option(check)


def _check(arguments: argparse.Namespace) -> int:
    from mindroom.config import ConfigInvalid, load_config

    try:
        config = load_config(arguments.config)
    except ConfigInvalid as invalid:
        if not arguments.json:
            raise
        show_record(_verdict(invalid), as_json=True)
        return Exit.PROBLEM
    if arguments.json:
        show_record(_record(config), as_json=True)
    else:
        _tell(config, file=str(arguments.config))
    return Exit.OK


def _verdict(invalid: "ConfigInvalid") -> dict[str, object]:
    problems = [{"file": p.file, "line": p.line, "key": p.key, "message": p.message} for p in invalid.problems]
    return {"ok": False, "problems": problems}


def _record(config: "Config") -> dict[str, object]:
    from mindroom.config import config_generation, effective_config

    effective = effective_config(config)
    return {
        "ok": True,
        "problems": [],
        "generation": config_generation(config),
        "homeserver": effective.homeserver,
        "agents": _agent_rows(effective),
        "rooms": [{"room": r.name, "alias": r.alias, "display_name": r.display_name} for r in effective.rooms],
        "authorized_users": sorted(effective.authorized_users),
        "unset_variables": _unset_variables(config),
    }


def _tell(config: "Config", *, file: str) -> None:
    from mindroom.config import config_generation, effective_config

    effective = effective_config(config)
    say(f"{file} is fine (generation {config_generation(config)}).")
    show_rows(_agent_rows(effective), columns=_AGENT_COLUMNS, as_json=False, when_empty="No agents.")
    if effective.authorized_users:
        say(f"Answered: {', '.join(sorted(effective.authorized_users))}.")
    else:
        say("Nobody is answered; list user ids under authorization.users.")
    if unset := _unset_variables(config):
        say(f"Not set in this environment: {', '.join(unset)}.")


def _agent_rows(effective: "EffectiveConfig") -> list[dict[str, object]]:
    return [
        {
            "agent": agent.name,
            "user_id": agent.user_id,
            "model": agent.model,
            "rooms": [room.name for room in agent.rooms],
            "answers": agent.answers.value,
            "thread_mode": agent.thread_mode.value,
        }
        for agent in effective.agents
    ]


def _unset_variables(config: "Config") -> list[str]:
    from mindroom.config import secret_references

    return sorted({r.env_name for r in secret_references(config) if not os.environ.get(r.env_name)})

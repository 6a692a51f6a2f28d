"""What one section of the configuration says about another: models, rooms and accounts that agents need.

Works on the data before its shape is checked, so that a misspelt key and a missing model are told together; what has
the wrong shape is passed over here and told by the schema.
"""

from collections.abc import Iterator, Mapping

from mindroom.config.effective import default_user_id
from mindroom.config.problems import Finding, near_match
from mindroom.config.schema import DEFAULT_MODEL

_Data = Mapping[str, object]


def check_references(data: _Data) -> list[Finding]:
    """Every broken reference in the data of a config.yaml."""
    findings: list[Finding] = []
    agents = _mapping(data.get("agents"))
    if agents is None:
        return findings
    if not agents:
        findings.append(Finding(("agents",), "holds no agent; at least one is needed"))
    findings += _model_references(data, agents)
    findings += _room_references(data, agents)
    matrix = _mapping(data.get("matrix"))
    if matrix is not None:
        findings += _account_references(matrix, agents)
        findings += _shared_user_ids(matrix, agents)
    return findings


def _mapping(value: object) -> _Data | None:
    return value if isinstance(value, Mapping) else None


def _entries(section: _Data) -> Iterator[tuple[str, _Data]]:
    for name, value in section.items():
        if (entry := _mapping(value)) is not None:
            yield name, entry


def _model_references(data: _Data, agents: _Data) -> Iterator[Finding]:
    models = _mapping(data.get("models"))
    if models is None:
        return
    for name, agent in _entries(agents):
        model = agent.get("model", DEFAULT_MODEL)
        if isinstance(model, str) and model not in models:
            hint = near_match(model, tuple(models))
            yield Finding(("agents", name, "model"), f"there is no {model!r} under models.{hint}")


def _room_references(data: _Data, agents: _Data) -> Iterator[Finding]:
    known = _mapping(data.get("rooms", {}))
    if known is None:
        return
    for name, agent in _entries(agents):
        rooms = agent.get("rooms")
        for index, room in enumerate(rooms if isinstance(rooms, list) else ()):
            if isinstance(room, str) and room not in known:
                hint = near_match(room, tuple(known))
                yield Finding(("agents", name, "rooms", index), f"there is no {room!r} under rooms.{hint}")


def _account_references(matrix: _Data, agents: _Data) -> Iterator[Finding]:
    accounts = _mapping(matrix.get("accounts", {}))
    if accounts is None:
        return
    for name in accounts:
        if name not in agents:
            hint = near_match(name, tuple(agents))
            yield Finding(("matrix", "accounts", name), f"there is no {name!r} under agents.{hint}")
    if "registration" in matrix:
        return
    for name in agents:
        if name not in accounts:
            yield Finding(("agents", name), f"has no Matrix account; add matrix.registration or matrix.accounts.{name}")


def _shared_user_ids(matrix: _Data, agents: _Data) -> Iterator[Finding]:
    accounts = _mapping(matrix.get("accounts", {})) or {}
    owners: dict[str, str] = {}
    for name in agents:
        account = _mapping(accounts.get(name))
        default = default_user_id(name, str(matrix.get("server_name")))
        user_id = account.get("user_id") if account is not None else default
        if isinstance(user_id, str) and (owner := owners.setdefault(user_id, name)) != name:
            yield Finding(("agents", name), f"uses the account {user_id!r}, which agent {owner!r} uses already")

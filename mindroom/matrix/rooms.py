"""Making sure that a configured room exists and its people are invited (E12).

Every call is repeatable; nothing is taken over that this account does not already run, and nobody who left or
declined is asked again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from mindroom.core.content import JsonObject, identifier
from mindroom.core.errors import MatrixFailure, MatrixFailureClass, RetryClass, UserError
from mindroom.core.ids import RoomId, UserId
from mindroom.matrix.client import MatrixCall, MatrixClient
from mindroom.matrix.paths import client_path

_CREATE_TIMEOUT_SECONDS: Final = 120.0
_PRIVILEGED_CREATORS_VERSION: Final = 12
"""From this room version on creators stand above every power level and are named at creation only."""
_OWNER_LEVEL: Final = 100
_MAX_UPGRADES: Final = 20
"""So many upgrades of one room are followed at most, in case they form a ring."""


@dataclass(frozen=True, slots=True)
class RoomPlan:
    """A room as configured: `owners` are hosted accounts with the creator's powers, `invites` everybody to ask in."""

    alias: str
    name: str
    owners: tuple[UserId, ...] = ()
    invites: tuple[UserId, ...] = ()

    @property
    def alias_localpart(self) -> str:
        """The name between `#` and `:`."""
        return self.alias[1:].partition(":")[0]


async def ensure_room(client: MatrixClient, plan: RoomPlan) -> RoomId:
    """The room behind the plan's alias, created when there is none, with everybody asked once.

    Raises UserError when the alias belongs to somebody else's room or the homeserver refuses, else MatrixFailure.
    """
    room = await find_room(client, plan.alias)
    if room is None:
        try:
            return await _create(client, plan)
        except MatrixFailure as failure:
            if failure.retry_class is RetryClass.RETRY:
                raise
            # M_ROOM_IN_USE, or an invite that was refused after the room was made.
            room = await resolve_alias(client, plan.alias)
            if room is None:
                raise UserError(
                    f"room {plan.alias} could not be created (HTTP {failure.status} {failure.errcode}): "
                    "check the alias and the invited user ids"
                ) from failure
    await _require_control(client, room, plan.alias)
    for user in plan.invites:
        await invite_once(client, room, user)
    return room


async def resolve_alias(client: MatrixClient, alias: str) -> RoomId | None:
    """The room an alias points to, or None. Raises MatrixFailure."""
    path = client_path("directory", "room", alias)
    try:
        answer = await client.request(MatrixCall.RESOLVE_ALIAS, method="GET", path=path)
    except MatrixFailure as failure:
        if failure.failure_class is MatrixFailureClass.NOT_FOUND:
            return None
        raise
    return _room_id(answer, MatrixCall.RESOLVE_ALIAS)


async def find_room(client: MatrixClient, alias: str) -> RoomId | None:
    """The room an alias leads to, past the upgrades of rooms that we are or were in (F4). Raises MatrixFailure.

    An alias may stay behind when its room moves; a successor counts when we are in it and it names the room before it.
    """
    room = await resolve_alias(client, alias)
    for _ in range(_MAX_UPGRADES):
        if room is None or (successor := await _successor(client, room)) is None:
            break
        room = successor
    return room


async def invite_once(client: MatrixClient, room: RoomId, user: UserId) -> bool:
    """Invite `user` unless they are in, invited, banned, or left or declined before; True when an invite went out.

    Raises MatrixFailure when the question or the invite is not answered; a refused invite is False.
    """
    member = await _state(client, room, "m.room.member", user)
    if member is not None and member.get("membership") != "knock":
        return False
    try:
        await client.request(
            MatrixCall.INVITE, method="POST", path=client_path("rooms", room, "invite"), body={"user_id": user}
        )
    except MatrixFailure as failure:
        if failure.retry_class is RetryClass.RETRY:
            raise
        return False
    return True


async def _create(client: MatrixClient, plan: RoomPlan) -> RoomId:
    body: JsonObject = {
        "room_alias_name": plan.alias_localpart,
        "name": plan.name,
        "preset": "private_chat",
        "invite": [user for user in plan.invites if user != client.user_id],
    }
    others = [user for user in plan.owners if user != client.user_id]
    if others and await _default_version(client) >= _PRIVILEGED_CREATORS_VERSION:
        body["creation_content"] = {"additional_creators": others}
    elif others:
        levels = dict.fromkeys([client.user_id, *others], _OWNER_LEVEL)
        body["power_level_content_override"] = {"users": levels}
    answer = await client.request(
        MatrixCall.CREATE_ROOM,
        method="POST",
        path=client_path("createRoom"),
        body=body,
        timeout_seconds=_CREATE_TIMEOUT_SECONDS,
    )
    return _room_id(answer, MatrixCall.CREATE_ROOM)


async def _default_version(client: MatrixClient) -> int:
    answer = await client.request(MatrixCall.CAPABILITIES, method="GET", path=client_path("capabilities"))
    version = _mapping(_mapping(answer.get("capabilities")).get("m.room_versions")).get("default")
    return int(version) if isinstance(version, str) and version.isdecimal() else 1


async def _require_control(client: MatrixClient, room: RoomId, alias: str) -> None:
    """Refuse a room in which this account is neither creator nor moderator (E12, A13)."""
    try:
        create = await _state(client, room, "m.room.create", "", event_format=True)
        levels = await _state(client, room, "m.room.power_levels", "")
    except MatrixFailure as failure:
        if failure.failure_class is not MatrixFailureClass.FORBIDDEN:
            raise
        create = levels = None
    if create is None or not _controls(client.user_id, create, levels):
        raise UserError(
            f"{alias} is a room that {client.user_id} neither created nor moderates: "
            "choose another alias, or give the account the moderator level there"
        )


def _controls(user: UserId, create: JsonObject, levels: JsonObject | None) -> bool:
    additional = _mapping(create.get("content")).get("additional_creators")
    if create.get("sender") == user or (isinstance(additional, list) and user in additional):
        return True
    if levels is None:
        return False
    own = _mapping(levels.get("users")).get(user, levels.get("users_default", 0))
    needed = levels.get("redact", 50)
    return isinstance(own, int) and isinstance(needed, int) and own >= needed


async def _successor(client: MatrixClient, room: RoomId) -> RoomId | None:
    try:
        tombstone = await _state(client, room, "m.room.tombstone", "")
        named = identifier(_mapping(tombstone).get("replacement_room"))
        create = await _state(client, RoomId(named), "m.room.create", "") if named else None
    except MatrixFailure as failure:
        if failure.failure_class is not MatrixFailureClass.FORBIDDEN:
            raise
        return None
    return RoomId(named) if _mapping(_mapping(create).get("predecessor")).get("room_id") == room else None


async def _state(
    client: MatrixClient, room: RoomId, event_type: str, state_key: str, *, event_format: bool = False
) -> JsonObject | None:
    query: Sequence[tuple[str, str]] = [("format", "event")] if event_format else []
    path = client_path("rooms", room, "state", event_type, state_key, query=query)
    try:
        return await client.request(MatrixCall.GET_STATE, method="GET", path=path)
    except MatrixFailure as failure:
        if failure.failure_class is MatrixFailureClass.NOT_FOUND:
            return None
        raise


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _room_id(answer: JsonObject, call: MatrixCall) -> RoomId:
    value = answer.get("room_id")
    if not isinstance(value, str) or not value:
        raise MatrixFailure(call, MatrixFailureClass.NOT_JSON, status=200)
    return RoomId(value)

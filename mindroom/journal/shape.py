"""Pure: what one raw event or field is, judged from its shape alone. Never trusts, never raises (R41)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mindroom.core.content import DELIVERY_KEY, DeliveryMarker, JsonObject, identifier, read_marker, replaced_event
from mindroom.core.ids import EventId, SyncToken, UserId
from mindroom.core.values import EventKind

_TEXT_TYPES = frozenset({"m.text", "m.emote", "m.notice"})
_MAX_INT = 2**53 - 1
_REDACT_EVENTS = ("redact_events", "org.matrix.msc4293.redact_events")
_MAX_TOKEN_CHARS = 2000
MAX_DEPTH = 64
"""Deeper content is unreadable: no client writes it, and every later writer of JSON would have to survive it."""


def as_object(value: Any) -> Mapping[str, Any]:
    """An object, empty for anything else."""
    return value if isinstance(value, dict) else {}


def as_objects(value: Any) -> list[JsonObject]:
    """The objects of a list, empty for anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def as_token(value: Any) -> SyncToken | None:
    """A pagination token that fits an index; they may be longer than ids."""
    usable = isinstance(value, str) and 0 < len(value) <= _MAX_TOKEN_CHARS and value.isprintable() and value.isascii()
    return SyncToken(value) if usable else None


def as_count(value: Any) -> int | None:
    """A number that an integer column takes, and no negative one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def enters(event: JsonObject, me: UserId) -> bool:
    """True for our own invite or join; a join that only changes our profile is neither."""
    if event.get("type") != "m.room.member" or event.get("state_key") != me:
        return False
    now = as_object(event.get("content")).get("membership")
    return now == "invite" or (now == "join" and membership_before(event) != "join")


def joins_by(event: JsonObject, me: UserId) -> bool:
    """True for our own join, identifiable, that a stay begins with."""
    return enters(event, me) and event["content"]["membership"] == "join" and bool(identifier(event.get("event_id")))


def membership_before(event: JsonObject) -> Any:
    """The membership that a member event replaced, where the server says so."""
    return as_object(as_object(event.get("unsigned")).get("prev_content")).get("membership")


def begins(event: JsonObject, me: UserId) -> bool:
    """True when our membership begins here; a join after an invite only continues it (A3)."""
    return enters(event, me) and membership_before(event) != "invite"


def leaves(event: JsonObject, me: UserId) -> bool:
    """True when this is our own leave or ban."""
    ours = event.get("type") == "m.room.member" and event.get("state_key") == me
    return ours and as_object(event.get("content")).get("membership") in ("leave", "ban")


def silenced_user(event: Mapping[str, Any]) -> UserId | None:
    """Who is kicked or banned here together with all their events (MSC4293). Who may do so is the server's matter:
    withholding too much is the safe side."""
    content, user = as_object(event.get("content")), identifier(event.get("state_key"))
    is_removal = content.get("membership") in ("leave", "ban") and user and user != event.get("sender")
    flagged = any(content.get(key) is True for key in _REDACT_EVENTS)
    return UserId(user) if event.get("type") == "m.room.member" and is_removal and flagged else None


def event_kind(event: Mapping[str, Any]) -> EventKind:
    """What kind of event this is, from its shape alone."""
    if not isinstance(event.get("content"), dict) or not identifier(event.get("sender")):
        return EventKind.UNREADABLE
    if not is_shallow(event, MAX_DEPTH):
        return EventKind.UNREADABLE
    if origin_ts(event) is None or not identifier(event.get("type")):
        return EventKind.UNREADABLE
    event_type, content = event["type"], event["content"]
    if event_type == "m.room.redaction":
        return EventKind.REDACTION
    if isinstance(event.get("state_key"), str):
        return EventKind.ROOM_LIFECYCLE
    if event_type == "m.reaction":
        return EventKind.REACTION
    if event_type == "m.room.encrypted":
        return EventKind.ENCRYPTED
    if replaced_event(content) is not None:
        return EventKind.EDIT
    msgtype = content.get("msgtype")
    if event_type == "m.room.message" and isinstance(msgtype, str) and msgtype not in _TEXT_TYPES and "url" in content:
        return EventKind.MEDIA
    return EventKind.MESSAGE


def is_shallow(value: Any, depth: int) -> bool:
    """True when objects and lists are nested at most `depth` deep."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(depth):
        if not level:
            return True
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
    return not level


def origin_ts(event: Mapping[str, Any]) -> int | None:
    """The sender's server's time in ms, when it is an integer that Matrix allows."""
    ts = event.get("origin_server_ts")
    return ts if isinstance(ts, int) and not isinstance(ts, bool) and abs(ts) <= _MAX_INT else None


def is_redacted(event: Mapping[str, Any]) -> bool:
    """True for an event that arrives already stripped (A4)."""
    return "redacted_because" in as_object(event.get("unsigned"))


def storable_marker(content: Mapping[str, Any]) -> DeliveryMarker | None:
    """The marker when every part of it can be stored: no event may block its response (A7)."""
    if as_count(as_object(content.get(DELIVERY_KEY)).get("generation")) is None:
        return None
    marker = read_marker(content)
    return marker and replace(marker, sources=tuple(s for s in marker.sources if identifier(s)))


def redaction_target(event: Mapping[str, Any]) -> EventId | None:
    """content.redacts, else top-level redacts (A4)."""
    target = identifier(as_object(event.get("content")).get("redacts")) or identifier(event.get("redacts"))
    return EventId(target) if target else None

"""The shape of Matrix message content that we write and recognise: relations, mentions, the delivery marker.

Pure. Reading never trusts: every accessor survives any JSON value in any place (R41).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from mindroom.core.ids import DeliveryId, EventId, TurnId, UserId
from mindroom.core.values import MessageTarget, Stage

DELIVERY_KEY: Final = "io.mindroom.delivery"
RUN_KEY: Final = "io.mindroom.run"
LONG_TEXT_KEY: Final = "io.mindroom.long_text"
"""Content that carries it is only the preview of a longer text, which is attached (A14)."""
LONG_TEXT_ATTACHED: Final = "(A longer text was attached, which cannot be read here.)"
MAX_SOURCES: Final = 100
"""A FINAL names at most this many sources; the rest of a batch form the next turn (A6)."""

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DeliveryMarker:
    """The second copy of turn identity, carried at the top of everything we send."""

    delivery: DeliveryId
    turn: TurnId | None
    generation: int
    stage: Stage
    sources: tuple[EventId, ...] = ()

    def to_json(self) -> JsonObject:
        """As it stands in event content; only a FINAL names its sources."""
        marker: JsonObject = {
            "delivery": str(self.delivery),
            "generation": self.generation,
            "stage": self.stage.value,
        }
        if self.turn is not None:
            marker["turn"] = str(self.turn)
        if self.stage is Stage.FINAL and self.sources:
            marker["sources"] = list(self.sources)
        return marker


def without_preview(content: JsonObject) -> JsonObject:
    """The same content, without its body when that is only a preview of the text that is meant (A14)."""
    if LONG_TEXT_KEY not in content:
        return content
    return {key: value for key, value in content.items() if key not in ("body", "formatted_body")}


def read_marker(content: Mapping[str, Any]) -> DeliveryMarker | None:
    """The marker at the top of a content, or None when there is none or it is malformed."""
    raw = content.get(DELIVERY_KEY)
    if not isinstance(raw, dict):
        return None
    sources = raw.get("sources", [])
    if not isinstance(sources, list):
        return None
    try:
        return DeliveryMarker(
            delivery=DeliveryId(UUID(raw["delivery"])),
            turn=TurnId(UUID(raw["turn"])) if "turn" in raw else None,
            generation=int(raw["generation"]),
            stage=Stage(raw["stage"]),
            sources=tuple(EventId(source) for s in sources if (source := identifier(s)))[:MAX_SOURCES],
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def relation(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """`m.relates_to` when it is an object, else an empty one."""
    value = content.get("m.relates_to")
    return value if isinstance(value, dict) else {}


MAX_ID_BYTES: Final = 255
"""Longest id the Matrix specification allows; longer ones are nobody's id and would not fit an index."""


def identifier(value: object) -> str:
    """An untrusted id as storage takes it: '' for anything that cannot be one (R41)."""
    if not isinstance(value, str) or len(value) > MAX_ID_BYTES or not value.isprintable():
        return ""
    return value if value.isascii() or len(value.encode()) <= MAX_ID_BYTES else ""


def replaced_event(content: Mapping[str, Any]) -> EventId | None:
    """The event an `m.replace` edits."""
    rel = relation(content)
    target = identifier(rel.get("event_id"))
    return EventId(target) if rel.get("rel_type") == "m.replace" and target else None


def thread_root(content: Mapping[str, Any]) -> EventId | None:
    """The root of the thread this content says it belongs to."""
    rel = relation(content)
    target = identifier(rel.get("event_id"))
    return EventId(target) if rel.get("rel_type") == "m.thread" and target else None


def replied_event(content: Mapping[str, Any]) -> EventId | None:
    """The event this content replies to, fallback replies of thread messages included."""
    reply = relation(content).get("m.in_reply_to")
    target = identifier(reply.get("event_id")) if isinstance(reply, dict) else ""
    return EventId(target) if target else None


def is_fallback_reply(content: Mapping[str, Any]) -> bool:
    """True when the reply relation only serves clients without threads."""
    return relation(content).get("is_falling_back") is True


def mentioned_users(content: Mapping[str, Any]) -> frozenset[UserId] | None:
    """User ids of `m.mentions`; None when the field is absent (an empty field decides too)."""
    raw = content.get("m.mentions")
    if not isinstance(raw, dict):
        return None
    users = raw.get("user_ids")
    return frozenset(UserId(u) for u in users if isinstance(u, str)) if isinstance(users, list) else frozenset()


def relates_to(target: MessageTarget) -> JsonObject | None:
    """The relation of a new message at `target`: thread with a falling-back reply, or none in room mode."""
    if target.thread is None:
        return None
    return {
        "rel_type": "m.thread",
        "event_id": target.thread,
        "is_falling_back": True,
        "m.in_reply_to": {"event_id": target.reply_to or target.thread},
    }


def message_content(
    *,
    msgtype: str,
    body: str,
    html: str | None,
    mentions: Sequence[UserId],
    marker: DeliveryMarker,
    target: MessageTarget,
    run: JsonObject | None = None,
) -> JsonObject:
    """A new message of ours. INITIAL and progress mention nobody (E8)."""
    content: JsonObject = {"msgtype": msgtype, "body": body}
    if html is not None:
        content |= {"format": "org.matrix.custom.html", "formatted_body": html}
    content["m.mentions"] = {"user_ids": list(mentions)} if mentions else {}
    content[DELIVERY_KEY] = marker.to_json()
    if run:
        content[RUN_KEY] = run
    if (rel := relates_to(target)) is not None:
        content["m.relates_to"] = rel
    return content


def as_edit(content: JsonObject, of: EventId, *, newly_mentioned: Sequence[UserId]) -> JsonObject:
    """The same content as an edit of `of`; marker and mentions stand at the top and in the new content (E8)."""
    new_content = {key: value for key, value in content.items() if key != "m.relates_to"}
    edit: JsonObject = dict(new_content)
    edit["body"] = f"* {content['body']}"
    # The fallback for clients without edits stays plain: HTML twice would quarter what one event can hold (E7).
    for key in ("format", "formatted_body"):
        edit.pop(key, None)
    edit["m.mentions"] = {"user_ids": list(newly_mentioned)} if newly_mentioned else {}
    edit["m.new_content"] = new_content
    edit["m.relates_to"] = {"rel_type": "m.replace", "event_id": of}
    return edit

"""Which conversation a source belongs to, and where its answer goes.

Pure: what must be looked up comes in as a value. The content was written by strangers and is never trusted to relate to
itself (R41).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from mindroom.config import ThreadMode
from mindroom.core.content import relation, thread_root
from mindroom.core.ids import EventId, RoomId, UserId
from mindroom.core.values import Conversation, MessageTarget

MAX_EVENT_ID_CHARS: Final = 255
"""The specification's limit, in bytes of what is ASCII in practice."""


@dataclass(frozen=True, slots=True)
class RepliedMessage:
    """What was found about the message a source replies to."""

    sender: UserId
    thread: EventId | None
    """The thread it stands in; None for the main timeline."""


def _is_root(value: object, *, of: EventId) -> TypeGuard[EventId]:
    """A well-formed event id other than the source's own; anything longer could not even be indexed (R41)."""
    return isinstance(value, str) and value.startswith("$") and value != of and len(value) <= MAX_EVENT_ID_CHARS


def _root(content: Mapping[str, Any], *, event_id: EventId, replied: RepliedMessage | None) -> EventId:
    if _is_root(root := thread_root(content), of=event_id):
        return root
    if replied is not None and replied.thread:
        return replied.thread
    rel = relation(content)
    if isinstance(rel.get("rel_type"), str) and _is_root(target := rel.get("event_id"), of=event_id):
        return target
    return event_id


def conversation_of(
    content: Mapping[str, Any],
    *,
    room: RoomId,
    event_id: EventId,
    replied: RepliedMessage | None,
    mode: ThreadMode,
) -> Conversation:
    """The conversation of a source.

    In thread mode its root is the source's thread, else the thread of the message replied to, else the target of its
    relation (a root with a rel_type is refused by homeservers), else the source itself. In room mode the whole room is
    one conversation.
    """
    if mode is ThreadMode.ROOM:
        return Conversation(room, None)
    return Conversation(room, _root(content, event_id=event_id, replied=replied))


def answer_target(conversation: Conversation, *, anchor: EventId) -> MessageTarget:
    """Where the answer to a batch ending in `anchor` is put; in room mode without any relation (R23)."""
    return MessageTarget(conversation.room, conversation.thread, anchor if conversation.thread else None)

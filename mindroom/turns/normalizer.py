"""Raw event to PreparedIngress, once per source.

Pure and total: any JSON in any place gives an ingress or an ignoring verdict, never an exception (R41). Never does I/O
and never decides who answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mindroom.config import ThreadMode
from mindroom.core.content import (
    LONG_TEXT_ATTACHED,
    LONG_TEXT_KEY,
    JsonObject,
    is_fallback_reply,
    relation,
    replied_event,
)
from mindroom.core.ids import UserId
from mindroom.core.mentions import addressed
from mindroom.core.values import Action, EventKind, Reason, Verdict
from mindroom.journal.records import PendingSource
from mindroom.turns.ingress import PreparedIngress
from mindroom.turns.threads import RepliedMessage, conversation_of

_SPOKEN: Final = frozenset({"m.text", "m.emote"})
"""Message types whose body is what the sender says."""
_MEDIA: Final = frozenset({"m.image", "m.file", "m.audio", "m.video"})


def strip_reply_fallback(body: str) -> str:
    """A reply's body without the leading `> ` lines that quote the message replied to."""
    lines = body.split("\n")
    quoted = 0
    while quoted < len(lines) and (lines[quoted].startswith("> ") or lines[quoted] == ">"):
        quoted += 1
    return "\n".join(lines[quoted:])


def _spoken_body(content: Mapping[str, Any]) -> str:
    if LONG_TEXT_KEY in content:
        return LONG_TEXT_ATTACHED
    body: str = content["body"]
    filename = content.get("filename")
    has_caption = isinstance(filename, str) and filename != body
    return body if content["msgtype"] in _SPOKEN or has_caption else ""


def _prompt_content(event: JsonObject) -> Mapping[str, Any] | Reason:
    """The content of a message that may be a prompt, with msgtype and body as strings; else why it cannot be one."""
    content = event.get("content")
    if event.get("type") == "m.room.encrypted":
        return Reason.ENCRYPTED
    if event.get("type") != "m.room.message" or "state_key" in event or not isinstance(content, Mapping):
        return Reason.UNSUPPORTED
    if relation(content).get("rel_type") == "m.replace":
        return Reason.UNSUPPORTED
    msgtype = content.get("msgtype")
    if msgtype == "m.notice":
        return Reason.NOTICE
    if not isinstance(msgtype, str) or msgtype not in _SPOKEN | _MEDIA or not isinstance(content.get("body"), str):
        return Reason.UNSUPPORTED
    return content


def spoken_text(content: Mapping[str, Any], *, is_reply: bool) -> str:
    """What a revision of a prompt says, without reply fallback; '' when it is nothing that could be a prompt."""
    checked = _prompt_content({"type": "m.room.message", "content": content})
    return "" if isinstance(checked, Reason) else _text(checked, is_reply=is_reply)


def _text(content: Mapping[str, Any], *, is_reply: bool) -> str:
    body = _spoken_body(content)
    return (strip_reply_fallback(body) if is_reply else body).strip()


@dataclass(frozen=True, slots=True)
class InboundTurnNormalizer:
    """Prepares the sources of one principal."""

    hosted: Mapping[str, UserId]
    """Config name to user id of every hosted principal."""

    def prepare(
        self, source: PendingSource, *, mode: ThreadMode, replied: RepliedMessage | None
    ) -> PreparedIngress | Verdict:
        """The prompt in `source`, or the verdict that there is none.

        `replied` is what the caller found about `content.replied_event` of the source, None when nothing was found.
        """
        content = _prompt_content(source.source)
        if isinstance(content, Reason):
            return Verdict(Action.IGNORE, content)
        replied_to = None if is_fallback_reply(content) else replied_event(content)
        text = _text(content, is_reply=replied_to is not None)
        if not text:
            return Verdict(Action.IGNORE, Reason.EMPTY)
        return PreparedIngress(
            receipt=source.receipt,
            order_key=source.order_key,
            event_id=source.event_id,
            epoch=source.epoch,
            conversation=conversation_of(
                content, room=source.room, event_id=source.event_id, replied=replied, mode=mode
            ),
            sender=source.sender,
            requester=source.sender,
            kind=EventKind.MEDIA if content["msgtype"] in _MEDIA else EventKind.MESSAGE,
            event_class=source.event_class,
            origin_ts=source.origin_ts,
            text=text,
            addressed=addressed(content, text=text, hosted=self.hosted, replied_to=replied.sender if replied else None),
            replied_to=replied_to,
            failures=source.failures,
            attempts=source.attempts,
            open_turn=source.open_turn,
        )

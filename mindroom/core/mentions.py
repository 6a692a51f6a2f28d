"""Whom an incoming message addresses, and the one grammar of handles in text.

Pure. Owns rule 1 of "Who answers"; decides nothing about answering. Everything it reads was written by strangers: any
JSON value in any place, broken HTML and 64 kB of it are survived (I5, R41).
"""

import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from urllib.parse import unquote

import nh3

from mindroom.core.content import is_fallback_reply, mentioned_users
from mindroom.core.ids import UserId

_HANDLE: Final = re.compile(
    r"(?<![^\W_])(?<![@/.+=-])"  # not inside a word, an e-mail address or a path
    r"@([\w.=/+-]+)"
    r"(?::((?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(?::\d+)?))?"
)
_SENTENCE_END: Final = "._=/+-"
_PILL: Final = re.compile(r'<a href="([^"]*)">')
_MATRIX_TO: Final = re.compile(r"https?://matrix\.to/#/([^?/#]+)")
_MATRIX_URI: Final = re.compile(r"matrix:u/([^?/#]+)")
_QUOTING_TAGS: Final = frozenset({"mx-reply", "code", "pre", "script", "style"})


@dataclass(frozen=True, slots=True)
class Addressed:
    """Whom a message is for. At most one of the two is set, for a mention outranks a reply."""

    mentioned: frozenset[UserId] = frozenset()
    """Everybody named, hosted or not."""
    replied_author: UserId | None = None
    """The hosted author of the message replied to."""


class HandleKind(StrEnum):
    """How a handle is written: a full user id, or `@name` of a known principal."""

    USER_ID = "user_id"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Handle:
    """A handle at `text[start:end]` and whom it means."""

    start: int
    end: int
    user_id: UserId
    kind: HandleKind


def find_handles(text: str, *, names: Mapping[str, UserId]) -> Iterator[Handle]:
    """Handles in reading order: full user ids of anybody, and `@name` of a key of `names` as a word, in any case."""
    known = {name.casefold(): user_id for name, user_id in names.items()}
    for match in _HANDLE.finditer(text):
        start = match.start()
        if (server := (match[2] or "").rstrip(".-")) and match[1]:
            end = match.start(2) + len(server)
            yield Handle(start, end, UserId(text[start:end]), HandleKind.USER_ID)
            continue
        for name in (match[1], match[1].rstrip(_SENTENCE_END)):
            if user_id := known.get(name.casefold()):
                yield Handle(start, start + 1 + len(name), user_id, HandleKind.NAME)
                break


def pill_target(link: str) -> UserId | None:
    """The user a matrix.to or `matrix:` link points at; None for any other link."""
    if web := _MATRIX_TO.match(link):
        target = unquote(web[1])
    elif uri := _MATRIX_URI.match(link):
        target = "@" + unquote(uri[1])
    else:
        return None
    return UserId(target) if target.startswith("@") and ":" in target else None


def _pills(formatted_body: object) -> frozenset[UserId]:
    """Link targets outside of reply fallback and code.

    The HTML goes through the sanitizer first: its output is canonical, so one expression reads it in linear time.
    """
    if not isinstance(formatted_body, str):
        return frozenset()
    anchors = nh3.clean(
        formatted_body.encode("utf-8", "replace").decode(),
        tags={"a"},
        attributes={"a": {"href"}, "*": set()},
        clean_content_tags=set(_QUOTING_TAGS),
        url_schemes={"http", "https", "matrix"},
        link_rel=None,
    )
    targets = (pill_target(html.unescape(href)) for href in _PILL.findall(anchors))
    return frozenset(target for target in targets if target)


def _named_in_text(content: Mapping[str, Any], text: str, hosted: Mapping[str, UserId]) -> frozenset[UserId]:
    """The first of these that names anybody: pills, full user ids, names."""
    if pills := _pills(content.get("formatted_body")):
        return pills
    handles = list(find_handles(text, names=hosted))
    user_ids = frozenset(handle.user_id for handle in handles if handle.kind is HandleKind.USER_ID)
    return user_ids or frozenset(handle.user_id for handle in handles)


def addressed(
    content: Mapping[str, Any], *, text: str, hosted: Mapping[str, UserId], replied_to: UserId | None
) -> Addressed:
    """Whom `content` addresses; `room: true` addresses nobody.

    `text` is what the sender wrote, without reply fallback. `hosted` maps the config name of each hosted principal to
    its user id. `replied_to` is the sender of the message replied to, None when it is unknown or there is none.

    `m.mentions` decides when present, also when empty. Clients put the author of the message replied to in there by
    themselves, so of several agents that one counts only when the text names it too.
    """
    author = None if is_fallback_reply(content) else replied_to
    agents = frozenset(hosted.values())
    users = mentioned_users(content)
    if users is None:
        named = _named_in_text(content, text, hosted)
        return Addressed(named) if named else Addressed(replied_author=author if author in agents else None)
    if author in agents & users and len(agents & users) > 1 and author not in _named_in_text(content, text, hosted):
        return Addressed(users - {author})
    return Addressed(users)

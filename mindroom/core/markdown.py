"""Model Markdown to safe Matrix HTML, with pills for the principals it names.

Pure and bounded. Owns what formatting leaves the runtime: raw HTML is shown as text, images become links (a client
would fetch them by itself), links keep four schemes, and the sanitizer has the last word (I5). Never drops text: what
HTML cannot carry is sent as the plain body alone.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token

from mindroom.core.ids import UserId
from mindroom.core.mentions import HandleKind, find_handles, pill_target

MAX_CONTENT_BYTES: Final = 62_000
"""Body and HTML share one event content of at most this size (E7)."""
MAX_MARKDOWN_BYTES: Final = MAX_CONTENT_BYTES // 2
"""HTML is hardly ever shorter than its source: beyond this, both would not fit, so nothing is parsed."""
MAX_NESTING: Final = 20
"""The parser drops what is nested deeper; a text that comes near goes out without HTML."""

_SCHEMES: Final = frozenset({"http", "https", "mailto", "matrix"})
_TEXT_TAGS: Final = frozenset({"a", "b", "br", "code", "del", "em", "i", "s", "strong", "sub", "sup", "u"})
_BLOCK_TAGS: Final = frozenset({"blockquote", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "ul"})
_TABLE_TAGS: Final = frozenset({"table", "tbody", "td", "th", "thead", "tr"})
_PLAIN_BLOCKS: Final = frozenset({"paragraph_open", "paragraph_close", "inline"})
_PLAIN_INLINES: Final = frozenset({"text", "softbreak", "hardbreak"})


@dataclass(frozen=True, slots=True)
class Rendered:
    """A text as Matrix shows it. `html` None: it would add nothing, or cannot be sent."""

    body: str
    html: str | None
    mentions: tuple[UserId, ...] = ()
    """Whom the text names outside of code, quotes and links, in order, each once."""


class _Parser(MarkdownIt):
    """CommonMark with tables and strikethrough; a link with another scheme, or none, stays text."""

    def validateLink(self, url: str) -> bool:
        return url.partition(":")[0].lower() in _SCHEMES


@functools.cache
def _parser() -> _Parser:
    options = {"html": False, "breaks": True, "maxNesting": MAX_NESTING}
    parser = _Parser("commonmark", options)
    parser.enable(["table", "strikethrough"])
    return parser


class _Rewriter:
    """Replaces what Matrix shows differently in the tokens of one text, and notes whom it names."""

    def __init__(self, names: Mapping[str, UserId]) -> None:
        self._names = names
        self._known = frozenset(names.values())
        self._quote_depth = 0
        self._link_depth = 0
        self.mentions: dict[UserId, None] = {}

    def rewrite(self, blocks: Sequence[Token]) -> None:
        for block in blocks:
            if block.type in ("blockquote_open", "blockquote_close"):
                self._quote_depth += block.nesting
            elif block.children:
                block.children = [new for token in block.children for new in self._inline(token)]

    def _inline(self, token: Token) -> list[Token]:
        if token.type in ("link_open", "link_close"):
            self._link_depth += token.nesting
            self._note(pill_target(str(token.attrGet("href") or "")))
        elif token.type in ("s_open", "s_close"):
            token.tag = "del"
        elif token.type == "image":
            return self._image(token)
        elif token.type == "text" and not self._quote_depth and not self._link_depth:
            return self._text(token)
        return [token]

    def _note(self, user_id: UserId | None) -> None:
        if user_id in self._known and not self._quote_depth:
            self.mentions[user_id] = None

    def _image(self, token: Token) -> list[Token]:
        source = str(token.attrGet("src") or "")
        label = token.content or source
        return [Token("text", "", 0, content=label)] if self._link_depth else _link(source, label)

    def _text(self, token: Token) -> list[Token]:
        text, tokens, done = token.content, [], 0
        for handle in find_handles(text, names=self._names) if "@" in text else ():
            if handle.kind is HandleKind.USER_ID and handle.user_id not in self._known:
                continue
            self._note(handle.user_id)
            tokens.append(Token("text", "", 0, content=text[done : handle.start]))
            target = "https://matrix.to/#/" + quote(handle.user_id, safe="@:")
            tokens += _link(target, text[handle.start : handle.end])
            done = handle.end
        return [*tokens, Token("text", "", 0, content=text[done:])] if tokens else [token]


def _link(target: str, label: str) -> list[Token]:
    return [
        Token("link_open", "a", 1, attrs={"href": target}),
        Token("text", "", 0, content=label),
        Token("link_close", "a", -1),
    ]


def _is_plain(blocks: Sequence[Token], body: str) -> bool:
    """True when HTML would show exactly what the body says."""
    inlines = [child for block in blocks for child in block.children or ()]
    if not _PLAIN_BLOCKS.issuperset(block.type for block in blocks):
        return False
    if not _PLAIN_INLINES.issuperset(inline.type for inline in inlines):
        return False
    shown = [block.content for block in blocks if block.type == "inline"]
    rendered = "".join(inline.content or "\n" for inline in inlines)
    return "\n".join(shown).split() == body.split() and rendered.split() == "".join(shown).split()


def render(markdown: str, *, mentions: Mapping[str, UserId]) -> Rendered:
    """The plain body and Matrix HTML of a model's text.

    `mentions` maps each name that may be pinged to its user id: `@name` (in any case) or that full user id becomes a
    pill. A text over MAX_MARKDOWN_BYTES gets neither HTML nor pills.
    """
    body = markdown.encode("utf-8", "replace").decode().replace("\x00", "\N{REPLACEMENT CHARACTER}")
    size_bytes = len(body.encode())
    if size_bytes > MAX_MARKDOWN_BYTES:
        return Rendered(body, None)
    parser = _parser()
    blocks = parser.parse(body)
    rewriter = _Rewriter(mentions)
    rewriter.rewrite(blocks)
    named = tuple(rewriter.mentions)
    if _is_plain(blocks, body) or any(block.level >= MAX_NESTING - 1 for block in blocks):
        return Rendered(body, None, named)
    html = nh3.clean(
        parser.renderer.render(blocks, parser.options, {}).strip(),
        tags=set(_TEXT_TAGS | _BLOCK_TAGS | _TABLE_TAGS),
        attributes={"a": {"href"}, "code": {"class"}, "ol": {"start"}, "*": set()},
        url_schemes=set(_SCHEMES),
        link_rel=None,
    )
    return Rendered(body, html if size_bytes + len(html.encode()) <= MAX_CONTENT_BYTES else None, named)

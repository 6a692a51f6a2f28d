"""The demo's chat: one thread of one room at a terminal, or one exchange without one.

Owns what is typed and what is shown. Knows the room only as a client sees it: an answer is a message whose delivery
marker says so. Whatever comes from the room is shown without its control characters (I5).
"""

import asyncio
import os
import unicodedata
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TextIO

from mindroom.core.content import read_marker, replaced_event, thread_root
from mindroom.core.errors import ModelFailure
from mindroom.core.ids import DeliveryId, EventId, RoomId, UserId
from mindroom.core.values import Stage
from mindroom.ops.human import HeardMessage, HumanClient
from mindroom.responses.streaming import WORKING

NEW = "/new"
"""Typed alone, it begins another conversation."""


@dataclass(frozen=True, slots=True)
class Update:
    """An answer as far as the room shows it; `text` is empty while it has none."""

    delivery: DeliveryId
    sender: UserId
    text: str
    is_final: bool
    sources: tuple[EventId, ...]
    thread: EventId | None


def read_update(message: HeardMessage) -> Update | None:
    """What a message tells about an answer; None when it is none."""
    marker = read_marker(message.content)
    if marker is None:
        return None
    shown = message.content.get("m.new_content") if replaced_event(message.content) else message.content
    body = shown.get("body") if isinstance(shown, dict) else None
    text = body if isinstance(body, str) else ""
    is_final = marker.stage is Stage.FINAL
    return Update(
        marker.delivery,
        message.sender,
        printable(text if is_final else text.removesuffix(WORKING).rstrip()),
        is_final,
        marker.sources,
        thread_root(message.content),
    )


def printable(text: str) -> str:
    """`text` without what could act on a terminal: control characters but the line break."""
    return "".join(c if c == "\n" or unicodedata.category(c) != "Cc" else "\ufffd" for c in text)


@dataclass
class Conversation:
    """A thread of the room between the person and the agents; `keep_thread` remembers its root."""

    client: HumanClient
    room: RoomId
    agents: Mapping[UserId, str]
    keep_thread: Callable[[EventId | None], None]
    thread: EventId | None = None
    waiting_for: EventId | None = None
    """The message that is not answered yet."""
    running: set[DeliveryId] = field(default_factory=set)
    """Answers that were seen to grow since the last message and are not finished."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the last message is answered and nobody writes any more."""
    _known: set[DeliveryId] = field(default_factory=set)

    async def say(self, text: str) -> None:
        """Send; the first message of a conversation becomes its root. Raises MatrixFailure."""
        self.done.clear()
        self.running.clear()
        self.waiting_for = await self.client.say(self.room, text, thread=self.thread)
        if self.thread is None:
            self.thread = self.waiting_for
            self.keep_thread(self.thread)

    def begin_anew(self) -> None:
        """The next message opens another thread."""
        self.thread = None
        self.keep_thread(None)

    async def hear(self) -> list[Update]:
        """The next updates of this conversation's answers, possibly none. Raises MatrixFailure."""
        found = [
            update
            for message in await self.client.hear(self.room)
            if message.sender in self.agents and (update := read_update(message)) and self._is_ours(update)
        ]
        for update in found:
            self._follow(update)
        return found

    def _is_ours(self, update: Update) -> bool:
        # An edit names no thread; it belongs where its delivery began. In room mode only the sources tell.
        if update.delivery in self._known or self.waiting_for in update.sources:
            return True
        return self.thread is not None and update.thread == self.thread

    def _follow(self, update: Update) -> None:
        self._known.add(update.delivery)
        if not update.is_final:
            self.running.add(update.delivery)
            return
        self.running.discard(update.delivery)
        if self.waiting_for in update.sources:
            self.waiting_for = None
        if self.waiting_for is None and not self.running:
            self.done.set()


class Style(StrEnum):
    """LIVE rewrites a terminal as an answer grows; FINAL writes finished answers only."""

    LIVE = "live"
    FINAL = "final"


@dataclass
class Screen:
    """Where answers are shown; `names` are those of the agents."""

    out: TextIO
    style: Style
    names: Mapping[UserId, str]
    _shown: dict[DeliveryId, str] = field(default_factory=dict)
    _line_of: DeliveryId | None = None
    _prompt_shown: bool = False
    _prompt_wanted: bool = False

    def prompt(self) -> None:
        """Ask for the next line."""
        self._prompt_wanted = True
        if self.style is Style.LIVE:
            self._end_line()
            self._write("> ")
            self._prompt_shown = True

    def entered(self) -> None:
        """A line was typed: the terminal's cursor stands at the beginning of another."""
        self._prompt_wanted = self._prompt_shown = False

    def tell(self, sentence: str) -> None:
        """A sentence of the program's own."""
        self._end_line()
        self._write(f"{sentence}\n")

    def show(self, update: Update) -> None:
        """Add what is new of an answer; one that was rewritten is shown again from its beginning."""
        if self.style is Style.FINAL:
            if update.is_final:
                self._write(f"{update.text}\n")
            return
        if update.text:
            self._grow(update)
        if not update.is_final:
            self._shown[update.delivery] = update.text
            return
        self._shown.pop(update.delivery, None)
        self._end_line()
        if self._prompt_wanted:
            self.prompt()

    def _grow(self, update: Update) -> None:
        before = self._shown.get(update.delivery, "")
        if self._line_of != update.delivery or not update.text.startswith(before):
            self._end_line()
            before = ""
            self._write(f"{self.names.get(update.sender, update.sender)}: ")
        self._write(update.text[len(before) :])
        self._line_of = update.delivery

    def _end_line(self) -> None:
        if self._line_of is not None:
            self._write("\n")
        elif self._prompt_shown:
            self._write("\r\x1b[K")
        self._line_of, self._prompt_shown = None, False

    def _write(self, text: str) -> None:
        self.out.write(text)
        self.out.flush()


class Lines:
    """Lines typed at a terminal, or coming through a pipe or from a file, without a thread that could not be ended."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._buffer = b""
        self._ended = False

    async def next(self) -> str | None:
        """The next line without its end; None when there are no more."""
        while b"\n" not in self._buffer and not self._ended:
            await self._readable()
            try:
                chunk = os.read(self._handle, 65536)
            except OSError:  # the terminal is gone
                chunk = b""
            self._buffer += chunk
            self._ended = not chunk
        if not self._buffer:
            return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode(errors="replace").rstrip("\r")

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            loop.add_reader(self._handle, ready.set)
        except PermissionError:  # an ordinary file or /dev/null: always readable
            return
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._handle)


async def chat(conversation: Conversation, *, screen: Screen, lines: Lines, patience_seconds: float) -> bool:
    """Send each line and show what is answered, until the lines end. Returns whether there was any line.

    Raises MatrixFailure when the homeserver refuses.
    """
    listener = asyncio.create_task(_listen(conversation, screen))
    typist = asyncio.create_task(_type(conversation, screen, lines, patience_seconds))
    try:
        await asyncio.wait({listener, typist}, return_when=asyncio.FIRST_COMPLETED)
        if listener.done():
            listener.result()
        return typist.result()
    finally:
        listener.cancel()
        typist.cancel()
        await asyncio.gather(listener, typist, return_exceptions=True)


async def _listen(conversation: Conversation, screen: Screen) -> None:
    while True:
        for update in await conversation.hear():
            screen.show(update)


async def _type(conversation: Conversation, screen: Screen, lines: Lines, patience_seconds: float) -> bool:
    any_line = False
    while True:
        screen.prompt()
        line = await lines.next()
        screen.entered()
        if line is None:
            return any_line
        text = line.strip()
        if text == NEW:
            conversation.begin_anew()
            screen.tell("A new conversation begins with your next message.")
        elif text:
            any_line = True
            await conversation.say(text)
            await _wait_for_answer(conversation, screen, patience_seconds)


async def _wait_for_answer(conversation: Conversation, screen: Screen, patience_seconds: float) -> None:
    try:
        async with asyncio.timeout(patience_seconds):
            await conversation.done.wait()
    except TimeoutError:
        screen.tell(f"No answer within {patience_seconds:g} s; it is shown here when it comes.")


@dataclass(frozen=True, slots=True)
class Exchange:
    """One message and what came of it: finished answers, oldest first, or how far the newest unfinished one is."""

    said: EventId | None
    answers: tuple[str, ...]
    unfinished: str | None
    """None while nobody began to answer; may be empty."""


async def exchange(conversation: Conversation, text: str, *, timeout_seconds: float) -> Exchange:
    """Say `text` and wait until it is answered and nobody writes any more. Raises MatrixFailure."""
    answers: list[str] = []
    said, unfinished = None, None
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_seconds):
            await conversation.say(text)
            said = conversation.waiting_for
            while not conversation.done.is_set():
                for update in await conversation.hear():
                    if not update.is_final:
                        unfinished = update.text or unfinished or ""
                    elif said in update.sources:
                        answers.append(update.text)
    return Exchange(said, tuple(answers), unfinished)


def why_unanswered(result: Exchange, *, last_error: str | None, config_file: Path) -> str:
    """Why an exchange brought no answer, as part of a sentence; `last_error` is the code stored with the message."""
    if last_error == ModelFailure.code:
        return f"the model cannot be used, see `models` in {config_file}"
    if last_error is not None:
        return f"the last error was `{last_error}`"
    if result.unfinished is None:
        return "no agent has begun to answer"
    return (
        f"so far the room shows: {result.unfinished}" if result.unfinished else "an agent has begun, without a word yet"
    )

"""The demo's chat: which messages are answers, what a terminal shows, and where lines come from."""

import asyncio
import io
import os
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from mindroom.core.clock import TestClock
from mindroom.core.content import DeliveryMarker, as_edit, message_content
from mindroom.core.ids import DeliveryId, EventId, RoomId, TurnId, UserId
from mindroom.core.values import MessageTarget, Stage
from mindroom.ops.console import (
    Conversation,
    Exchange,
    Lines,
    Screen,
    Style,
    Update,
    chat,
    exchange,
    read_update,
    why_unanswered,
)
from mindroom.ops.human import HeardMessage, HumanClient

ROOM = RoomId("!room")
ADA, BOB, STRANGER = UserId("@ada:x"), UserId("@bob:x"), UserId("@stranger:x")
NAMES = {ADA: "Ada", BOB: "Bob"}
TURN = TurnId(UUID(int=1))


def answer(
    text: str,
    stage: Stage,
    *,
    delivery: DeliveryId,
    thread: str = "$q1",
    sources: Sequence[str] = (),
    sender: UserId = ADA,
    edits: str | None = None,
) -> HeardMessage:
    """A message event as the runtime sends it."""
    content = message_content(
        msgtype="m.text" if stage is Stage.FINAL else "m.notice",
        body=text,
        html=None,
        mentions=(),
        marker=DeliveryMarker(delivery, TURN, 1, stage, tuple(EventId(source) for source in sources)),
        target=MessageTarget(ROOM, EventId(thread), None),
    )
    if edits is not None:
        content = as_edit(content, EventId(edits), newly_mentioned=())
    return HeardMessage(EventId(f"${uuid4().hex}"), sender, content)


class ScriptedClient(HumanClient):
    """A client whose homeserver answers each message with the next script."""

    def __init__(self, *scripts: Sequence[HeardMessage]) -> None:
        super().__init__("http://nowhere", UserId("@human:x"), clock=TestClock(), access_token="")
        self.said: list[tuple[str, EventId | None]] = []
        self._scripts = list(scripts)
        self._heard: asyncio.Queue[HeardMessage] = asyncio.Queue()

    async def say(self, room: RoomId, text: str, *, thread: EventId | None) -> EventId:
        assert room == ROOM
        self.said.append((text, thread))
        for message in self._scripts.pop(0) if self._scripts else ():
            self._heard.put_nowait(message)
        return EventId(f"$q{len(self.said)}")

    async def hear(self, room: RoomId) -> tuple[HeardMessage, ...]:
        return (await self._heard.get(),)


def conversation(client: ScriptedClient, kept: list[EventId | None], thread: str | None = None) -> Conversation:
    return Conversation(client, ROOM, NAMES, kept.append, EventId(thread) if thread else None)


def delivery() -> DeliveryId:
    return DeliveryId(uuid4())


# ---- what is an answer -----------------------------------------------------------------------------------------------
def test_an_ordinary_message_is_no_answer() -> None:
    assert read_update(HeardMessage(EventId("$1"), ADA, {"body": "hello", "msgtype": "m.text"})) is None


def test_an_edit_shows_its_new_text_and_progress_without_its_mark() -> None:
    number = delivery()
    progress = read_update(answer("half ⋯", Stage.PROGRESS, delivery=number, edits="$a"))
    final = read_update(answer("half and half ⋯", Stage.FINAL, delivery=number, edits="$a", sources=["$q1"]))
    assert progress == Update(number, ADA, "half", False, (), None)
    assert final == Update(number, ADA, "half and half ⋯", True, (EventId("$q1"),), None)


@pytest.mark.parametrize("junk", [{"body": 7}, {"m.new_content": "text"}, {"m.new_content": {"body": []}}])
def test_junk_in_place_of_a_text_is_an_empty_text(junk: dict[str, object]) -> None:
    message = answer("x", Stage.FINAL, delivery=delivery(), edits="$a" if "m.new_content" in junk else None)
    update = read_update(HeardMessage(message.event_id, ADA, message.content | junk))
    assert update is not None
    assert update.text == ""


# ---- an exchange -----------------------------------------------------------------------------------------------------
async def test_an_exchange_ends_with_the_final_that_names_the_message() -> None:
    number, other = delivery(), delivery()
    client = ScriptedClient(
        [
            answer("an older one", Stage.FINAL, delivery=other, sources=["$older"]),
            answer("⋯", Stage.INITIAL, delivery=number),
            answer("forged", Stage.FINAL, delivery=number, sources=["$q1"], sender=STRANGER),
            answer("done", Stage.FINAL, delivery=number, sources=["$q1"], edits="$a"),
        ]
    )
    kept: list[EventId | None] = []
    result = await exchange(conversation(client, kept), "go", timeout_seconds=5)
    assert result == Exchange(EventId("$q1"), ("done",), "")
    assert kept == ["$q1"]


async def test_an_exchange_waits_for_all_who_began_to_answer() -> None:
    one, two = delivery(), delivery()
    client = ScriptedClient(
        [
            answer("⋯", Stage.INITIAL, delivery=one),
            answer("⋯", Stage.INITIAL, delivery=two, sender=BOB),
            answer("first", Stage.FINAL, delivery=one, sources=["$q1"], edits="$a"),
            answer("second", Stage.FINAL, delivery=two, sources=["$q1"], edits="$b", sender=BOB),
        ]
    )
    assert (await exchange(conversation(client, []), "both", timeout_seconds=5)).answers == ("first", "second")


async def test_without_an_answer_the_exchange_tells_how_far_it_came() -> None:
    client = ScriptedClient([answer("so far ⋯", Stage.PROGRESS, delivery=delivery())])
    result = await exchange(conversation(client, [], "$q0"), "go", timeout_seconds=0.05)
    assert result == Exchange(EventId("$q1"), (), None)  # another thread's
    client = ScriptedClient([answer("so far ⋯", Stage.PROGRESS, delivery=delivery(), thread="$q0")])
    result = await exchange(conversation(client, [], "$q0"), "go", timeout_seconds=0.05)
    assert result == Exchange(EventId("$q1"), (), "so far")


@pytest.mark.parametrize(
    ("unfinished", "last_error", "sentence"),
    [
        (None, None, "no agent has begun to answer"),
        ("", None, "an agent has begun, without a word yet"),
        ("half", None, "so far the room shows: half"),
        ("half", "model", "the model cannot be used, see `models` in config.yaml"),
        (None, "matrix", "the last error was `matrix`"),
    ],
)
def test_the_reason_for_no_answer_is_the_best_one_known(
    unfinished: str | None, last_error: str | None, sentence: str
) -> None:
    result = Exchange(EventId("$q"), (), unfinished)
    assert why_unanswered(result, last_error=last_error, config_file=Path("config.yaml")) == sentence


# ---- a chat ----------------------------------------------------------------------------------------------------------
async def test_a_chat_stays_in_its_thread_until_new(tmp_path: Path) -> None:
    typed = tmp_path / "typed"
    typed.write_text("one\n\ntwo\n/new\nthree")
    client = ScriptedClient(
        [answer("1", Stage.FINAL, delivery=delivery(), sources=["$q1"])],
        [answer("2", Stage.FINAL, delivery=delivery(), sources=["$q2"])],
        [answer("3", Stage.FINAL, delivery=delivery(), sources=["$q3"])],
    )
    kept: list[EventId | None] = []
    out = io.StringIO()
    with typed.open("rb") as source:
        spoke = await chat(
            conversation(client, kept, "$q0"),
            screen=Screen(out, Style.FINAL, NAMES),
            lines=Lines(source.fileno()),
            patience_seconds=5,
        )
    assert spoke
    assert client.said == [("one", "$q0"), ("two", "$q0"), ("three", None)]
    assert kept == [None, "$q3"]
    assert out.getvalue() == "1\n2\nA new conversation begins with your next message.\n3\n"


async def test_a_chat_without_an_answer_goes_on() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"anybody?\n")
    os.close(writer)
    out = io.StringIO()
    await chat(
        conversation(ScriptedClient(), []),
        screen=Screen(out, Style.FINAL, NAMES),
        lines=Lines(reader),
        patience_seconds=0.01,
    )
    os.close(reader)
    assert out.getvalue() == "No answer within 0.01 s; it is shown here when it comes.\n"


async def test_an_answer_given_up_is_shown_when_it_comes_and_delays_no_other() -> None:
    slow, quick = delivery(), delivery()
    client = ScriptedClient(
        [answer("⋯", Stage.INITIAL, delivery=slow)],
        [
            answer("quick", Stage.FINAL, delivery=quick, sources=["$q2"]),
            answer("slow", Stage.FINAL, delivery=slow, sources=["$q1"], edits="$a"),
        ],
    )
    talk = conversation(client, [])
    assert (await exchange(talk, "one", timeout_seconds=0.05)).answers == ()
    assert (await exchange(talk, "two", timeout_seconds=5)).answers == ("quick",)
    assert [update.text for update in await talk.hear()] == ["slow"]


# ---- the screen ------------------------------------------------------------------------------------------------------
def updates(*texts: str, sender: UserId = ADA, number: DeliveryId | None = None) -> list[Update]:
    """An answer that grows; the last text is final."""
    number = number or delivery()
    last = len(texts) - 1
    return [Update(number, sender, text, index == last, (), None) for index, text in enumerate(texts)]


def shown(*steps: Update | str, style: Style = Style.LIVE) -> str:
    out = io.StringIO()
    screen = Screen(out, style, NAMES)
    for step in steps:
        if isinstance(step, Update):
            screen.show(step)
        elif step == "prompt":
            screen.prompt()
        else:
            screen.entered()
    return out.getvalue()


def test_a_growing_answer_is_continued_in_place() -> None:
    assert shown(*updates("", "Good", "Good morning", "Good morning.")) == "Ada: Good morning.\n"


def test_a_rewritten_answer_begins_on_a_new_line() -> None:
    assert shown(*updates("still trying", "Good.")) == "Ada: still trying\nAda: Good.\n"


def test_two_answers_at_once_do_not_run_into_each_other() -> None:
    ada, bob = updates("a", "ab"), updates("b", "bc", sender=BOB)
    assert shown(ada[0], bob[0], ada[1], bob[1]) == "Ada: a\nBob: b\nAda: ab\nBob: bc\n"


def test_a_late_answer_takes_the_prompt_s_place_and_gives_it_back() -> None:
    assert shown("prompt", *updates("", "la", "late")) == "> \r\x1b[KAda: late\n> "
    assert shown("prompt", "entered", *updates("ok")) == "> Ada: ok\n"


def test_what_a_room_says_cannot_act_on_the_terminal() -> None:
    """I5: control characters are shown as such; line breaks stay."""
    message = answer("a\x1b]0;title\x07b\nc", Stage.FINAL, delivery=delivery())
    update = read_update(message)
    assert update is not None
    assert shown(update, style=Style.FINAL) == "a\ufffd]0;title\ufffdb\nc\n"


def test_elsewhere_only_finished_answers_are_written() -> None:
    assert shown("prompt", *updates("", "half", "whole"), style=Style.FINAL) == "whole\n"


# ---- lines -----------------------------------------------------------------------------------------------------------
async def test_lines_are_taken_as_they_come_and_the_last_needs_no_end() -> None:
    reader, writer = os.pipe()
    lines = Lines(reader)
    os.write(writer, b"one\r\ntw")
    assert await lines.next() == "one"
    second = asyncio.ensure_future(lines.next())
    await asyncio.sleep(0)
    assert not second.done()
    os.write(writer, b"o\nthr\xff")
    assert await second == "two"
    os.close(writer)
    assert [await lines.next(), await lines.next()] == ["thr\ufffd", None]
    os.close(reader)


async def test_waiting_for_a_line_can_be_given_up() -> None:
    reader, writer = os.pipe()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await Lines(reader).next()
    os.write(writer, b"later\n")
    assert await Lines(reader).next() == "later"
    os.close(writer)
    os.close(reader)

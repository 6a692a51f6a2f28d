"""Threads, room mode and order of answers, as a person in the room sees them."""

import asyncio

import pytest

from mindroom.core.content import DELIVERY_KEY, RUN_KEY
from tests.support.runtime import House

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_an_answer_opens_a_thread_at_the_message(house: House) -> None:
    room = await house.room("assistant")
    source = await house.human.send(room, "hello there")
    answer = await house.answer(room, "assistant", source)
    assert "hello there" in answer.body
    assert answer.content["m.relates_to"] == {
        "rel_type": "m.thread",
        "event_id": source,
        "is_falling_back": True,
        "m.in_reply_to": {"event_id": source},
    }
    assert await house.outcome("assistant", source) == "answered"


async def test_r22_a_message_in_an_old_thread_is_answered_in_that_thread(house: House) -> None:
    """R22: inside an existing thread the reply keeps the right root."""
    room = await house.room("assistant")
    root = await house.human.send(room, "first")
    await house.answer(room, "assistant", root)
    source = await house.human.send(room, "second", thread=root)
    answer = await house.answer(room, "assistant", source)
    assert answer.thread == root
    assert answer.content["m.relates_to"]["m.in_reply_to"] == {"event_id": source}


async def test_r22_a12_a_thread_from_before_the_agent_came_is_read_before_it_is_answered(house: House) -> None:
    """R22, A12: root and messages lie behind the end of what sync shows to somebody who joins."""
    room = await house.room()
    root = await house.human.send(room, "the root of old")
    said = await house.human.send(room, "said long ago", thread=root)
    await house.human.edit(room, said, "said and changed long ago")
    for _ in range(5):
        await asyncio.gather(*(house.human.send(room, f"talk {n}") for n in range(22)))
    await house.human.invite(room, house.agent("quiet"))
    await house.joined(room, "quiet")
    source = await house.human.send(room, "what was it?", thread=root, mentions=[house.agent("quiet")])
    answer = await house.answer(room, "quiet", source)
    assert answer.thread == root
    row = await house.row(
        "SELECT string_agg(content ->> 'body', ' < ' ORDER BY base, page, idx) AS told FROM visible_messages "
        "WHERE $1 IN (event_id, thread_id) AND event_id <> $2 AND sender = $3",
        *(root, source, house.human.user_id),
    )
    assert row is not None
    assert row["told"] == "the root of old < said and changed long ago"
    assert await house.row("SELECT 1 FROM journal_receipts WHERE event_id = ANY($1)", [root, said]) is None


async def test_a_plain_reply_inherits_the_thread_of_its_target(house: House) -> None:
    room = await house.room("assistant")
    root = await house.human.send(room, "first")
    first = await house.answer(room, "assistant", root)
    source = await house.human.send(room, "and then?", reply_to=first.event_id)
    answer = await house.answer(room, "assistant", source)
    assert answer.thread == root


async def test_r23_room_mode_quotes_nothing(house: House) -> None:
    """R23: in room mode an answer has no relation at all."""
    room = await house.room("plain")
    source = await house.human.send(room, "hello")
    answer = await house.answer(room, "plain", source)
    assert "m.relates_to" not in answer.content


async def test_r17_two_messages_within_a_second_get_an_answer_each_in_its_own_thread(house: House) -> None:
    """R17."""
    room = await house.room("assistant")
    sources = await asyncio.gather(house.human.send(room, "one"), house.human.send(room, "two"))
    for source in sources:
        answer = await house.answer(room, "assistant", source)
        assert answer.thread == source
        assert answer.content[DELIVERY_KEY]["sources"] == [source]
    assert len(await house.said(room, "assistant")) == 2


async def test_e8_an_answer_tells_what_it_cost(house: House) -> None:
    """E8: model, tokens and durations ride in the event."""
    room = await house.room("assistant")
    source = await house.human.send(room, "what did it cost")
    run = (await house.answer(room, "assistant", source)).content[RUN_KEY]
    assert run["model"]
    assert run["input_tokens"] > 0
    assert run["output_tokens"] > 0
    assert isinstance(run["duration_ms"], int)


async def test_r21_editing_an_answered_message_makes_no_second_answer(house: House) -> None:
    """R21, with the `* ` fallback that clients send."""
    room = await house.room("assistant")
    source = await house.human.send(room, "tell me of cats")
    await house.answer(room, "assistant", source)
    edit = await house.human.edit(room, source, "tell me of dogs")
    assert await house.outcome("assistant", edit) == "context"
    follower = await house.human.send(room, "a later message")
    await house.answer(room, "assistant", follower)
    answers = await house.said(room, "assistant")
    assert [a.content[DELIVERY_KEY]["sources"] for a in answers] == [[source], [follower]]


async def test_a_later_prompt_reads_the_edited_text(house: House) -> None:
    """An edit that comes before the answer is what the thread shows afterwards."""
    room = await house.room("assistant")
    root = await house.human.send(room, "tell me of cats")
    await house.answer(room, "assistant", root)
    edit = await house.human.edit(room, root, "tell me of dogs")
    assert await house.outcome("assistant", edit) == "context"
    row = await house.row("SELECT content ->> 'body' AS body FROM visible_messages WHERE event_id = $1", root)
    assert row is not None
    assert row["body"] == "tell me of dogs"

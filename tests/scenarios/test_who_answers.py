"""Exactly the right agents answer, everybody else is silent with a stored reason."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.support.matrix_human import MatrixHuman
from tests.support.runtime import House

pytestmark = pytest.mark.asyncio(loop_scope="module")


def _pill(user: str, label: str) -> dict[str, Any]:
    return {
        "msgtype": "m.text",
        "body": f"{label}: how are you?",
        "format": "org.matrix.custom.html",
        "formatted_body": f'<a href="https://matrix.to/#/{user}">{label}</a>: how are you?',
    }


async def test_the_sole_candidate_answers_unmentioned(house: House) -> None:
    room = await house.room("assistant", "quiet", humans=["bob"])
    source = await house.human.send(room, "anybody?")
    await house.answer(room, "assistant", source)
    assert await house.outcome("quiet", source) == "ignored.not_addressed"
    assert await house.said(room, "quiet") == []


async def test_several_candidates_stay_silent_unmentioned(house: House) -> None:
    room = await house.room("assistant", "helper", humans=["bob"])
    source = await house.human.send(room, "anybody?")
    assert await house.outcome("assistant", source) == "ignored.several_candidates"
    assert await house.outcome("helper", source) == "ignored.several_candidates"
    assert await house.said(room, "assistant") == await house.said(room, "helper") == []


@pytest.mark.parametrize("way", ["m.mentions", "pill", "user id", "name"])
async def test_a_mention_wins_and_the_other_agent_is_silent(house: House, way: str) -> None:
    """R24 for the pill: it is known by its link, whatever its label says."""
    room = await house.room("assistant", "helper", humans=["bob"])
    user = house.agent("helper")
    content = {
        "m.mentions": {"msgtype": "m.text", "body": "how are you?", "m.mentions": {"user_ids": [user]}},
        "pill": _pill(user, "Some Display Name"),
        "user id": {"msgtype": "m.text", "body": f"{user} how are you?"},
        "name": {"msgtype": "m.text", "body": f"@{house.agent_name('helper')} how are you?"},
    }[way]
    source = await house.human.send_event(room, "m.room.message", content)
    await house.answer(room, "helper", source)
    assert await house.outcome("helper", source) == "answered"
    assert await house.outcome("assistant", source) == "ignored.other_mentioned"
    assert await house.said(room, "assistant") == []
    row = await house.row("SELECT reason FROM turns WHERE room_id = $1", room)
    assert row is not None
    assert row["reason"] == "mention"


async def test_an_empty_m_mentions_decides_too(house: House) -> None:
    """A pasted URL that holds the name is no mention."""
    room = await house.room("assistant", "helper", humans=["bob"])
    body = f"see https://example.org/@{house.agent_name('helper')}"
    source = await house.human.send(room, body, mentions=[])
    assert await house.outcome("helper", source) == "ignored.several_candidates"
    assert await house.said(room, "helper") == []


async def test_two_mentioned_agents_answer_once_each(house: House) -> None:
    room = await house.room("assistant", "helper", humans=["bob"])
    source = await house.human.send(room, "both", mentions=[house.agent("assistant"), house.agent("helper")])
    await house.answer(room, "assistant", source)
    await house.answer(room, "helper", source)
    await house.quiet()
    assert len(await house.said(room, "assistant")) == len(await house.said(room, "helper")) == 1


async def test_the_agent_that_answers_in_a_thread_goes_on(house: House) -> None:
    room = await house.room("assistant", "helper", humans=["bob"])
    root = await house.human.send(room, "helper please", mentions=[house.agent("helper")])
    await house.answer(room, "helper", root)
    source = await house.human.send(room, "and more?", thread=root)
    await house.answer(room, "helper", source)
    assert await house.outcome("assistant", source) == "ignored.not_addressed"
    moved = await house.human.send(room, "now you", thread=root, mentions=[house.agent("assistant")])
    await house.answer(room, "assistant", moved)
    after = await house.human.send(room, "go on", thread=root)
    await house.answer(room, "assistant", after)
    assert await house.outcome("helper", after) == "ignored.not_addressed"


async def test_two_humans_in_a_thread_talk_among_themselves(house: House) -> None:
    room = await house.room("assistant", humans=["bob"])
    root = await house.human.send(room, "hello")
    await house.answer(room, "assistant", root)
    theirs = await house.people["bob"].send(room, "I think so too", thread=root)
    assert await house.outcome("assistant", theirs) == "ignored.not_addressed"
    asked = await house.people["bob"].send(room, "you?", thread=root, mentions=[house.agent("assistant")])
    await house.answer(room, "assistant", asked)


async def test_a_reply_to_an_agent_addresses_it(house: House) -> None:
    room = await house.room("assistant", "helper", humans=["bob"])
    root = await house.human.send(room, "helper please", mentions=[house.agent("helper")])
    answer = await house.answer(room, "helper", root)
    source = await house.people["bob"].send(room, "what do you mean?", reply_to=answer.event_id)
    await house.answer(room, "helper", source)
    assert await house.outcome("assistant", source) == "ignored.other_mentioned"


async def test_in_a_direct_room_no_mention_is_needed(house: House) -> None:
    """A9: the invite's is_direct is kept; a DM answers as such."""
    room = await house.room("assistant", is_direct=True)
    source = await house.human.send(room, "hi")
    await house.answer(room, "assistant", source)
    row = await house.row("SELECT reason FROM turns WHERE room_id = $1", room)
    assert row is not None
    assert row["reason"] == "dm"


async def test_i1_an_unauthorized_sender_meets_silence(house: House) -> None:
    """I1, at admission: nothing of the message is kept as work."""
    room = await house.room("assistant", humans=["mallory"])
    source = await house.people["mallory"].send(room, "do my bidding", mentions=[house.agent("assistant")])
    assert await house.outcome("assistant", source) == "ignored.unauthorized"
    assert await house.said(room, "assistant") == []
    kept = await house.row("SELECT count(*) AS n FROM journal_pending WHERE event_id = $1", source)
    assert kept is not None
    assert kept["n"] == 0


async def test_notices_and_emptiness_start_nothing(house: House) -> None:
    room = await house.room("assistant")
    notice = await house.human.send(room, "build failed", msgtype="m.notice")
    sticker = await house.human.send_event(room, "m.sticker", {"body": "x", "url": "mxc://a/b", "info": {}})
    empty = await house.human.send(room, "   ")
    assert await house.outcome("assistant", notice) == "ignored.notice"
    assert await house.outcome("assistant", empty) == "ignored.empty"
    assert await house.outcome("assistant", sticker) in ("ignored.unsupported", "context")
    assert await house.said(room, "assistant") == []


async def test_an_agent_never_answers_an_agent_unasked(house: House) -> None:
    """Answers of hosted principals are receipts, never work."""
    room = await house.room("assistant", "helper", humans=["bob"])
    source = await house.human.send(room, "one of you", mentions=[house.agent("helper")])
    answer = await house.answer(room, "helper", source)
    assert await house.outcome("assistant", answer.event_id) == "context"
    assert await house.said(room, "assistant") == []


async def test_a9_r12_an_unauthorized_inviter_is_refused(house: House) -> None:
    """A9, R12."""
    mallory: MatrixHuman = house.people["mallory"]
    room = await mallory.create_room(invite=[house.agent("assistant")])
    gone = await mallory.wait_for(
        room,
        lambda e: (
            e["type"] == "m.room.member"
            and e["state_key"] == house.agent("assistant")
            and e["content"]["membership"] == "leave"
        ),
    )
    assert gone["sender"] == house.agent("assistant")
    assert await mallory.members(room) == {mallory.user_id}


async def test_an_agent_that_joins_a_long_room_knows_the_agents_in_it(house: House) -> None:
    """A13: with an agent already there that nobody has heard for long, the newcomer is not the sole candidate."""
    room = await house.human.create_room(preset="public_chat")
    async with AsyncExitStack() as stack:
        for _ in range(6):  # more than a summary's heroes, whose members a homeserver shows by itself
            guest = await MatrixHuman.register(
                house.homeserver.url, shared_secret=house.homeserver.registration_shared_secret
            )
            await (await stack.enter_async_context(guest)).join(room)
    await house.human.invite(room, house.agent("assistant"))
    await house.joined(room, "assistant")
    chatter = (house.human.send(room, f"chatter {number}", msgtype="m.notice") for number in range(110))
    await asyncio.gather(*chatter)
    await house.human.invite(room, house.agent("helper"))
    await house.joined(room, "helper")
    source = await house.human.send(room, "anybody?")
    assert await house.outcome("assistant", source) == "ignored.several_candidates"
    assert await house.outcome("helper", source) == "ignored.several_candidates"

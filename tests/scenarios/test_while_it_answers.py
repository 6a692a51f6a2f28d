"""What the room sees while an answer is being made: placeholder, progress, the final text; and what interrupts it."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from mindroom.core.content import DELIVERY_KEY, RUN_KEY
from mindroom.db.embedded import EmbeddedPostgres
from mindroom.matrix.local_homeserver import LocalHomeserver
from tests.support.databases import dumped
from tests.support.matrix_human import Event
from tests.support.openai_server import Behaviour, Fault, OpenAIServer
from tests.support.runtime import AgentSetup, House, eventually, fresh_database, open_house

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL_KEY = "MINDROOM_TEST_MODEL_KEY"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[OpenAIServer]:
    async with OpenAIServer() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(
    synapse: LocalHomeserver, postgres_server: EmbeddedPostgres, server: OpenAIServer
) -> AsyncIterator[House]:
    """A running team whose model is `server`."""
    model = {"provider": "openai_like", "id": "test-model", "base_url": server.base_url}
    with tempfile.TemporaryDirectory(prefix="mindroom-", ignore_cleanup_errors=True) as path:
        async with (
            fresh_database(postgres_server) as dsn,
            open_house(
                synapse,
                dsn,
                Path(path),
                agents=[AgentSetup("assistant"), AgentSetup("plain", thread_mode="room")],
                model=model,
                people=("alice", "bob"),
                authorized=("alice", "bob"),
            ) as house,
        ):
            await house.start()
            yield house


@pytest.fixture
def behaviour(server: OpenAIServer) -> Iterator[Behaviour]:
    """How the model behaves in this test; ordinary again afterwards."""
    server.behaviour = Behaviour()
    yield server.behaviour
    server.behaviour = Behaviour()


def _stage(event: Event) -> str:
    stage: str = event["content"].get(DELIVERY_KEY, {}).get("stage", "")
    return stage


async def test_e8_a_slow_answer_shows_placeholder_progress_and_final(house: House, behaviour: Behaviour) -> None:
    """E8, E1: who is told what, and when."""
    behaviour.delay_seconds, behaviour.chunks, behaviour.chunk_interval_seconds = 0.8, 30, 0.08
    behaviour.answer_characters = 1500
    room = await house.room("assistant")
    source = await house.human.send(room, "a long story please")
    answer = await house.answer(room, "assistant", source)
    events = await house.events_of(room, "assistant")
    first, *progress, last = events
    assert _stage(first) == "initial"
    assert first["content"]["body"] == "⋯"
    assert first["content"]["msgtype"] == "m.notice"
    assert first["content"]["m.mentions"] == {}
    assert first["content"]["m.relates_to"]["event_id"] == source
    assert progress
    for event in progress:
        assert _stage(event) == "progress"
        assert event["content"]["msgtype"] == "m.notice"
        assert event["content"]["m.mentions"] == {}
        assert event["content"]["m.new_content"]["body"].endswith("⋯")
        assert event["content"]["m.relates_to"] == {"rel_type": "m.replace", "event_id": first["event_id"]}
    assert _stage(last) == "final"
    assert last["content"]["m.relates_to"] == {"rel_type": "m.replace", "event_id": first["event_id"]}
    for content in (last["content"], last["content"]["m.new_content"]):
        assert content["msgtype"] == "m.text"
        assert content[DELIVERY_KEY]["sources"] == [source]
    assert len(answer.body) == 1500
    assert len({event["unsigned"].get("transaction_id", event["event_id"]) for event in events}) == len(events)
    run: dict[str, Any] = answer.content[RUN_KEY]
    assert run["first_text_ms"] >= 700
    assert run["duration_ms"] >= run["first_text_ms"]


async def test_a_fast_answer_has_no_placeholder(house: House, behaviour: Behaviour) -> None:
    room = await house.room("assistant")
    await house.answer(room, "assistant", await house.human.send(room, "warm up"))
    source = await house.human.send(room, "quickly")
    await house.answer(room, "assistant", source)
    sent = [
        e for e in await house.events_of(room, "assistant") if e["content"][DELIVERY_KEY].get("sources") == [source]
    ]
    assert [_stage(event) for event in sent] == ["final"]
    assert "m.new_content" not in sent[0]["content"]
    row = await house.row(
        "SELECT o.state FROM delivery_outbox o JOIN turn_sources s USING (turn_id) "
        "WHERE s.event_id = $1 AND o.stage = 'initial'",
        source,
    )
    assert row is not None
    assert row["state"] == "retired"


async def test_follow_ups_of_one_requester_become_one_next_turn(house: House, behaviour: Behaviour) -> None:
    """While an answer runs; another requester has a turn of their own."""
    behaviour.delay_seconds = 1.0
    room = await house.room("plain", humans=["bob"])
    first = await house.human.send(room, "question tok-1")
    await house.human.wait_for(room, lambda e: e["sender"] == house.agent("plain") and _stage(e) == "initial")
    second = await house.human.send(room, "also tok-2")
    theirs = await house.people["bob"].send(room, "and me tok-3")
    third = await house.human.send(room, "and also tok-4")
    for source in (first, second, theirs, third):
        await house.answer(room, "plain", source)
    sources = [m.content[DELIVERY_KEY]["sources"] for m in await house.said(room, "plain")]
    assert sources == [[first], [second, third], [theirs]]


async def test_an_edit_before_the_answer_is_what_gets_answered(house: House, behaviour: Behaviour) -> None:
    """The prompt is read under the lock, so a waiting message is answered in its newest revision, once."""
    behaviour.delay_seconds = 0.8
    room = await house.room("plain")
    first = await house.human.send(room, "hold the line")
    await house.human.wait_for(room, lambda e: e["sender"] == house.agent("plain") and _stage(e) == "initial")
    source = await house.human.send(room, "tell me of cats")
    edit = await house.human.edit(room, source, "tell me of dogs")
    assert await house.outcome("plain", edit) == "context"
    await house.answer(room, "plain", first)
    answer = await house.answer(room, "plain", source)
    assert "dogs" in answer.body
    assert len(await house.said(room, "plain")) == 2


async def test_a4_redacting_a_waiting_message_takes_its_text_and_its_turn(house: House, behaviour: Behaviour) -> None:
    """A4: settled `redacted`, no answer, no text left."""
    behaviour.delay_seconds = 0.8
    room = await house.room("plain")
    first = await house.human.send(room, "hold the line")
    await house.human.wait_for(room, lambda e: e["sender"] == house.agent("plain") and _stage(e) == "initial")
    source = await house.human.send(room, "my password is hunter2")
    await house.human.redact(room, source)
    assert await house.outcome("plain", source) == "redacted"
    await house.answer(room, "plain", first)
    await house.quiet()
    assert len(await house.said(room, "plain")) == 1
    await _assert_forgotten(house, "hunter2")


async def test_a4_d9_redacting_a_message_being_answered_withdraws_the_placeholder(
    house: House, behaviour: Behaviour
) -> None:
    """A4, D9: the run stops at once and its placeholder is redacted."""
    behaviour.delay_seconds = 30.0
    room = await house.room("assistant")
    source = await house.human.send(room, "my password is hunter3")
    placeholder = await house.human.wait_for(
        room, lambda e: e["sender"] == house.agent("assistant") and _stage(e) == "initial"
    )
    await house.human.redact(room, source)
    assert await house.outcome("assistant", source) == "redacted"
    redaction = await house.human.wait_for(room, lambda e: e["type"] == "m.room.redaction" and _by(e, house))
    assert redaction["content"].get("redacts", redaction.get("redacts")) == placeholder["event_id"]
    await house.quiet()
    assert [(m.redacted, m.body) for m in await house.said(room, "assistant")] == [(True, "")]
    row = await house.row("SELECT state, outcome FROM turns WHERE room_id = $1", room)
    assert row is not None
    assert tuple(row) == ("closed", "redacted")
    await _assert_forgotten(house, "hunter3")


async def test_a4_redacting_an_edit_of_a_waiting_message_answers_the_revision_before_it(
    house: House, behaviour: Behaviour
) -> None:
    """A4: a real homeserver still has the earlier edit; the redacted one is nowhere."""
    behaviour.delay_seconds = 2.0
    room = await house.room("plain")
    first = await house.human.send(room, "hold the line")
    await house.human.wait_for(room, lambda e: e["sender"] == house.agent("plain") and _stage(e) == "initial")
    source = await house.human.send(room, "tell me of cats")
    await house.human.edit(room, source, "tell me of dogs")
    wrong = await house.human.edit(room, source, "tell me of hunter5")
    await house.human.redact(room, wrong)

    async def is_back() -> bool:
        row = await house.row("SELECT content ->> 'body' AS body FROM visible_messages WHERE event_id = $1", source)
        return row is not None and row["body"] == "tell me of dogs"

    await eventually(is_back, what="the revision before is back")
    await house.answer(room, "plain", first)
    answer = await house.answer(room, "plain", source)
    assert "dogs" in answer.body
    assert "hunter5" not in answer.body
    await _assert_forgotten(house, "hunter5")


async def test_redacting_one_of_two_sources_answers_the_other(house: House, behaviour: Behaviour) -> None:
    """A4: a turn goes on with the sources it has left."""
    behaviour.delay_seconds = 1.0
    room = await house.room("plain")
    await house.human.send(room, "hold the line")
    await house.human.wait_for(room, lambda e: e["sender"] == house.agent("plain") and _stage(e) == "initial")
    gone = await house.human.send(room, "my password is hunter4")
    kept = await house.human.send(room, "what is new")

    async def holds_both() -> bool:
        row = await house.row(
            "SELECT count(*) AS n FROM turn_sources s JOIN turns t USING (turn_id) "
            "WHERE t.state = 'open' AND s.event_id = ANY($1::text[])",
            [gone, kept],
        )
        return row is not None and row["n"] == 2

    await eventually(holds_both, what="one turn holds both")
    await house.human.redact(room, gone)
    answer = await house.answer(room, "plain", kept)
    assert answer.content[DELIVERY_KEY]["sources"] == [kept]
    assert "hunter4" not in answer.body
    assert await house.outcome("plain", gone) == "redacted"
    await house.quiet()
    assert [m.content.get(DELIVERY_KEY, {}).get("stage") for m in await house.said(room, "plain")] == ["final"] * 2
    await _assert_forgotten(house, "hunter4")


async def test_e1_a_retried_answer_goes_on_showing_progress(house: House, behaviour: Behaviour) -> None:
    """E1: each progress edit has a transaction id of its own, also after the model failed in mid-answer."""
    behaviour.chunks, behaviour.chunk_interval_seconds, behaviour.answer_characters = 30, 0.08, 1500
    behaviour.fault, behaviour.fault_calls = Fault.RESET_MID_STREAM, 2
    room = await house.room("assistant")
    source = await house.human.send(room, "a long story please")
    await house.answer(room, "assistant", source, timeout_seconds=40)
    rows = [e for e in await house.events_of(room, "assistant") if _stage(e) == "progress"]
    bodies = [e["content"]["m.new_content"]["body"] for e in rows]
    assert max(len(body) for body in bodies[-2:]) > 900, "only the third attempt, in a run of its own, gets so far"
    assert len(await house.said(room, "assistant")) == 1


def _by(event: Event, house: House) -> bool:
    return event["sender"] == house.agent("assistant")


async def _assert_forgotten(house: House, text: str) -> None:
    assert await dumped(house.dsn, text) == []


async def test_a_refused_request_becomes_a_sentence_with_a_reference(house: House, behaviour: Behaviour) -> None:
    """Never a traceback, never the provider's words, never silence (I2)."""
    behaviour.fault = Fault.BAD_REQUEST
    room = await house.room("assistant")
    source = await house.human.send(room, "a secret question tok-9")
    answer = await house.answer(room, "assistant", source)
    assert "Reference" in answer.body
    assert "secret question" not in answer.body
    assert await house.outcome("assistant", source) == "failed"

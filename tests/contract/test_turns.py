"""Dispatch and turns as a whole: from a pending source to one answer, whatever fails on the way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from mindroom.core.content import DELIVERY_KEY
from mindroom.core.errors import (
    MatrixDeliveryFailure,
    MatrixFailure,
    MatrixFailureClass,
    ModelFailure,
    ModelFailureKind,
)
from mindroom.turns.controller import TurnController
from tests.support.events import ALICE, BOB, OTHER_ROOM, ROOM, STRANGER, edit, joined_room, message, redaction
from tests.support.runtime import eventually
from tests.support.spine import Spine, open_spine

DOWN = ModelFailure(ModelFailureKind.SERVER, status=503)


@asynccontextmanager
async def serving(dsn: str, *, thread_mode: str = "thread") -> AsyncIterator[Spine]:
    async with open_spine(dsn, thread_mode=thread_mode) as spine:
        await spine.serve()
        yield spine


async def test_c1_verdicts_of_one_requester_in_a_room_come_in_order(
    database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: the first source is slow to prepare; the later ones of its sender wait for it, another sender does not."""
    decided: list[str] = []
    original = TurnController.decide

    async def slow_at_first(self: TurnController, source: object) -> None:
        event_id = source.event_id  # type: ignore[attr-defined]
        if event_id == "$1":
            await self._clock.sleep(5)
        await original(self, source)  # type: ignore[arg-type]
        decided.append(event_id)

    monkeypatch.setattr(TurnController, "decide", slow_at_first)
    async with serving(database_dsn) as spine:
        await spine.hear(message("$1"), message("$2"), message("$3"), message("$theirs", sender=BOB))
        assert decided == ["$theirs"]
        await spine.advance(6)
        assert decided == ["$theirs", "$1", "$2", "$3"]
        assert sorted(spine.finals()) == [["$1"], ["$2"], ["$3"], ["$theirs"]]


async def test_c1_a_slot_is_not_held_across_a_model_call(database_dsn: str) -> None:
    """C1: while the model thinks about the first message, the second has its verdict."""
    async with serving(database_dsn) as spine:
        spine.model.go.clear()
        await spine.hear(message("$1"), message("$2"))
        assert len(spine.model.requests) == 2
        assert await spine.value("SELECT count(*) FROM turns WHERE state = 'open'") == 2


async def test_c1_a_source_in_back_off_lets_later_ones_pass(database_dsn: str) -> None:
    """C1, C2."""
    async with serving(database_dsn) as spine:
        spine.model.failure = ModelFailure(ModelFailureKind.AUTH, status=401)
        await spine.hear(message("$1"))
        spine.model.failure = None
        await spine.hear(message("$2"))
        assert spine.finals() == [["$2"]]
        await spine.advance(10)
        assert spine.finals() == [["$2"], ["$1"]]


async def test_c2_an_hour_without_the_model_parks_nothing(database_dsn: str) -> None:
    """C2: the source stays pending, no attempt is counted, the placeholder says so, and then it is answered."""
    async with serving(database_dsn) as spine:
        spine.model.failure = DOWN
        await spine.hear(message("$1"))
        await spine.advance(55)
        assert [wire.content["body"] for _, wire in spine.gateway.visible()] == ["⋯"]
        await spine.advance(3545, step_seconds=5)
        rows = await spine.rows("SELECT attempts, last_error FROM journal_pending")
        assert rows == [(0, "model")]
        calls = len(spine.model.requests)
        assert 60 <= calls <= 400, "it keeps asking, without hammering"
        told = [w.content for _, w in spine.gateway.visible() if w.txn_id.startswith("progress")]
        assert told
        assert all("still trying (" in content["m.new_content"]["body"] for content in told)
        assert len(told) <= 2, "it says so, not every minute"
        spine.model.failure = None
        await spine.advance(70, step_seconds=5)
        assert spine.finals() == [["$1"]]
        assert await spine.value("SELECT count(*) FROM turns") == 1
        assert spine.gateway.stages().count("initial") == 1


async def test_c2_an_hour_without_the_homeserver_parks_nothing(database_dsn: str) -> None:
    """C2: what is decided is answered once the homeserver takes it."""
    async with serving(database_dsn) as spine:
        down = MatrixDeliveryFailure("send", MatrixFailureClass.NETWORK)
        spine.gateway.fail("final", *[down] * 10_000)
        await spine.hear(message("$1"))
        spine.answer(*[MatrixFailure("sync", MatrixFailureClass.NETWORK)] * 1000)
        await spine.advance(3600, step_seconds=5)
        assert await spine.value("SELECT state FROM delivery_outbox WHERE stage = 'final'") == "claimed"
        spine.gateway.faults.clear()
        await spine.advance(90, step_seconds=5)
        assert spine.finals() == [], "half an hour later a send might be a second message: sync decides first (E4)"
        spine.sync.drop()
        await spine.advance(70, step_seconds=5)
        spine.answer(spine.batch(), spine.batch())
        await spine.advance(90, step_seconds=5)
        spine.answer(spine.batch())
        await spine.advance(90, step_seconds=5)
        assert spine.finals() == [["$1"]]


async def test_c2_an_outage_of_the_database_loses_nothing(database_dsn: str) -> None:
    """C2, B6: nothing can be written for a while; nothing is counted against the source."""
    async with serving(database_dsn) as spine:
        spine.database.outage = lambda name: name in ("open_turn", "record_failure", "settle", "read")
        await spine.hear(message("$1"))

        async def passed() -> bool:
            await spine.advance(60, step_seconds=10)
            return spine.clock.boottime() > 1200

        await eventually(passed)
        spine.database.outage = lambda _name: False

        async def answered() -> bool:
            await spine.advance(20, step_seconds=5)
            return spine.finals() == [["$1"]]

        await eventually(answered)
        assert await spine.outcome("$1") == "answered"


async def test_c2_an_unknown_error_counts(database_dsn: str) -> None:
    """C2: what nobody foresaw is an attempt, with its class and never its text."""
    async with serving(database_dsn) as spine:
        spine.model.failure = ZeroDivisionError("secret text of a message")
        await spine.hear(message("$1"))
        assert await spine.rows("SELECT attempts, last_error FROM journal_pending") == [(1, "ZeroDivisionError")]
        await spine.advance(3)
        assert await spine.value("SELECT attempts FROM journal_pending") >= 2


async def test_d1_the_same_source_gets_the_same_verdict_after_a_crash(database_dsn: str) -> None:
    """D1, D2: decided anew, the same; the open turn, not a second one, answers."""
    async with serving(database_dsn) as spine:
        spine.model.go.clear()
        await spine.hear(message("$1"))
        await spine.advance(1)
        before = await spine.rows("SELECT turn_id, reason FROM turns")
        await spine.crash()
        spine.model.go.set()
        await spine.start()
        spine.answer(spine.batch())
        await spine.settle()
        await spine.advance(1)
        assert await spine.rows("SELECT turn_id, reason FROM turns") == before
        assert spine.finals() == [["$1"]]


async def test_d2_a_crash_keeps_the_grouping_and_adopts_the_placeholder(database_dsn: str) -> None:
    """D2: both sources of the batch are answered by the one turn that held them, in its own placeholder."""
    async with serving(database_dsn, thread_mode="room") as spine:
        spine.model.go.clear()
        await spine.hear(message("$0"))
        await spine.hear(message("$1"), message("$2"))
        spine.model.go.set()
        await spine.settle()
        await spine.crash()
        spine.model.go.clear()
        await spine.start()
        spine.answer(spine.batch((ROOM, joined_room([message("$3"), message("$4")]))))
        await spine.settle()
        await spine.advance(1)
        opened = await spine.rows("SELECT count(*) FROM turns")
        await spine.crash()
        spine.model.go.set()
        await spine.start()
        spine.answer(spine.batch())
        await spine.settle()
        await spine.advance(2)
        assert await spine.rows("SELECT count(*) FROM turns") == opened
        assert [source for sources in spine.finals() for source in sources] == ["$0", "$1", "$2", "$3", "$4"]
        last = [wire for _, wire in spine.gateway.visible() if wire.txn_id.startswith("final.")][-1]
        assert last.content[DELIVERY_KEY]["sources"] == ["$3", "$4"]
        assert last.content["m.relates_to"]["rel_type"] == "m.replace"


async def test_d2_a_lost_first_answer_is_not_a_second_turn(database_dsn: str) -> None:
    """D3, R14: crashes before and after the hand-over, again and again: one visible answer."""
    async with serving(database_dsn) as spine:
        spine.gateway.fail("final", MatrixDeliveryFailure("send", MatrixFailureClass.NETWORK))
        spine.model.failure = DOWN
        await spine.hear(message("$1"))
        for broken in (DOWN, DOWN, None, None):
            await spine.crash()
            spine.model.failure = broken
            await spine.start()
            spine.answer(spine.batch())
            await spine.settle()
            await spine.advance(70, step_seconds=5)
        assert spine.finals() == [["$1"]]
        assert len([s for s in spine.gateway.stages() if s != "progress"]) <= 2
        assert await spine.value("SELECT count(*) FROM turns") == 1


async def test_d9_a_placeholder_is_settled_when_its_turn_fails(database_dsn: str) -> None:
    """D9: a permanent failure becomes a sentence in the placeholder's own place."""
    async with serving(database_dsn) as spine:
        spine.model.go.clear()
        await spine.hear(message("$1"))
        await spine.advance(1)
        spine.model.failure = ModelFailure(ModelFailureKind.CONTEXT_LENGTH, status=400)
        spine.model.go.set()
        await spine.settle()
        (placeholder, _), (_, final) = spine.gateway.visible()
        assert final.content["m.relates_to"] == {"rel_type": "m.replace", "event_id": placeholder}
        assert "too long for the model" in final.content["m.new_content"]["body"]
        assert await spine.outcome("$1") == "failed"


async def test_d9_a_placeholder_is_withdrawn_when_its_source_is_redacted_after_a_crash(database_dsn: str) -> None:
    """D9, A4: nobody runs the turn any more; the redaction alone ends it."""
    async with serving(database_dsn) as spine:
        spine.model.go.clear()
        await spine.hear(message("$1"))
        await spine.advance(1)
        await spine.crash()
        await spine.start()
        spine.answer(spine.batch((ROOM, joined_room([redaction("$r", "$1")]))))
        await spine.settle()
        await spine.advance(2)
        events = [wire.event_type for _, wire in spine.gateway.visible()]
        assert events == ["m.room.message", "m.room.redaction"]
        assert await spine.outcome("$1") == "redacted"
        assert await spine.rows("SELECT state, outcome FROM turns") == [("closed", "redacted")]


async def test_i1_authorization_is_checked_again_at_the_decision(database_dsn: str) -> None:
    """I1: what was admitted for somebody who is no longer authorized is ignored after the restart."""
    async with serving(database_dsn) as spine:
        spine.model.go.clear()
        spine.model.failure = DOWN
        await spine.hear(message("$1", sender=BOB))
        await spine.crash()
        spine.config = spine.without(BOB)
        spine.model.go.set()
        await spine.start()
        spine.answer(spine.batch())
        await spine.settle()
        await spine.advance(30)
        assert await spine.outcome("$1") == "ignored.unauthorized"
        assert spine.finals() == []


async def test_i1_an_unauthorized_sender_leaves_no_work(database_dsn: str) -> None:
    """I1: the verdict stands at admission; no source is kept."""
    async with serving(database_dsn) as spine:
        await spine.hear(message("$1", sender=STRANGER))
        assert await spine.outcome("$1") == "ignored.unauthorized"
        assert await spine.value("SELECT count(*) FROM journal_pending") == 0


async def test_ignores_make_no_turn_and_share_a_commit(database_dsn: str) -> None:
    """Architecture section 1: an ignored source makes no turns row; ignores are settled many per commit."""
    async with serving(database_dsn) as spine:
        notices = [message(f"$n{n}") for n in range(30)]
        for notice in notices:
            notice["content"]["msgtype"] = "m.notice"
        await spine.hear(*notices)
        assert await spine.value("SELECT count(*) FROM journal_settlements WHERE outcome = 'ignored.notice'") == 30
        assert await spine.value("SELECT count(*) FROM turns") == 0
        assert len(spine.database.statements_of("settle")) <= 2


async def test_an_edit_of_a_waiting_source_is_what_the_model_reads(database_dsn: str) -> None:
    """The prompt is built under the conversation's lock from what the room shows then."""
    async with serving(database_dsn, thread_mode="room") as spine:
        spine.model.go.clear()
        await spine.hear(message("$1", "hold"))
        await spine.hear(message("$2", "cats"), edit("$e", "$2", "dogs"))
        spine.model.go.set()
        await spine.settle()
        prompt = spine.model.requests[-1].messages[-1].text
        assert "dogs" in prompt
        assert "cats" not in prompt


async def test_c3_a_stuck_room_slows_no_other(database_dsn: str) -> None:
    """C3: the model hangs for one room only."""
    async with open_spine(database_dsn) as spine:
        await spine.start()
        spine.answer(spine.room_batch(ROOM, OTHER_ROOM))
        await spine.settle()
        spine.gateway.held[ROOM] = held = asyncio.Event()
        await spine.hear(message("$stuck"))
        await spine.hear(message("$free"), room=OTHER_ROOM)
        assert spine.finals(OTHER_ROOM) == [["$free"]]
        held.set()
        await spine.settle()
        assert spine.finals() == [["$stuck"]]


async def test_a_turn_that_fails_during_the_drain_takes_no_other_with_it(database_dsn: str) -> None:
    """Sources are given back while nobody feeds any more; the other running answer is finished and sent."""
    async with serving(database_dsn) as spine:
        spine.model.held = {"fails": asyncio.Event(), "works": asyncio.Event()}
        await spine.hear(message("$1", "this fails"), message("$2", "this works"))
        assert len(spine.model.requests) == 2
        spine.stop.set()
        await spine.settle()
        spine.model.script.append(ModelFailure(ModelFailureKind.AUTH, status=401))
        spine.model.held["fails"].set()
        await spine.settle()
        spine.model.held["works"].set()
        await spine.settle()
        assert spine.task is not None
        await spine.task
        assert spine.finals() == [["$2"]]
        assert await spine.rows("SELECT event_id, attempts FROM journal_pending") == [("$1", 0)]


async def test_lanes_live_only_while_they_have_work(database_dsn: str) -> None:
    """Memory: a thousand senders leave nothing behind."""
    async with serving(database_dsn) as spine:
        await spine.hear(*(message(f"$n{n}", sender=ALICE if n % 2 else BOB) for n in range(20)))
        assert await spine.value("SELECT count(*) FROM journal_pending") == 0
        assert spine.metrics.registry.get_sample_value("mindroom_lane_depth", {"principal": "agent"}) == 0

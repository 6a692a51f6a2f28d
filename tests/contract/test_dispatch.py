"""Many sources at once: bounded work, rooms that do not wait for each other, answers where the conversation stands."""

import asyncio

from mindroom.core.content import DELIVERY_KEY
from mindroom.core.errors import MatrixDeliveryFailure, MatrixFailureClass
from mindroom.turns.controller import MAX_RUNNING_IN_ROOM, MAX_RUNNING_TURNS
from tests.support.events import ALICE, BOB, OTHER_ROOM, ROOM, joined_room, message, redaction
from tests.support.runtime import eventually
from tests.support.spine import Spine, open_spine

THIRD_ROOM = "!third:x"


async def serve_rooms(spine: Spine) -> None:
    """The agent is in three rooms."""
    await spine.start()
    spine.answer(spine.room_batch(ROOM, OTHER_ROOM, THIRD_ROOM))
    await spine.settle()


async def test_c3_running_turns_are_bounded_for_a_principal_and_for_a_room(database_dsn: str) -> None:
    """C3: 60 conversations in each of three rooms, and a model that does not answer yet."""
    async with open_spine(database_dsn) as spine:
        await serve_rooms(spine)
        spine.model.go.clear()
        await spine.hear(*(message(f"$a{n}") for n in range(60)))
        assert len(spine.model.requests) == MAX_RUNNING_IN_ROOM
        await spine.hear(*(message(f"$b{n}") for n in range(60)), room=OTHER_ROOM)
        await spine.hear(*(message(f"$c{n}") for n in range(60)), room=THIRD_ROOM)
        assert len(spine.model.requests) == MAX_RUNNING_TURNS
        spine.model.go.set()
        await spine.advance(30)
        assert [len(spine.finals(room)) for room in (ROOM, OTHER_ROOM, THIRD_ROOM)] == [60, 60, 60]


async def test_c3_a_room_whose_answers_hang_slows_no_other(database_dsn: str) -> None:
    async with open_spine(database_dsn) as spine:
        await serve_rooms(spine)
        spine.model.held["stuck"] = asyncio.Event()
        await spine.hear(*(message(f"$stuck{n}", "stuck") for n in range(100)))
        await spine.hear(*(message(f"$well{n}") for n in range(20)), room=OTHER_ROOM)
        assert (len(spine.finals(ROOM)), len(spine.finals(OTHER_ROOM))) == (0, 20)
        spine.model.held["stuck"].set()
        await spine.advance(10)
        assert len(spine.finals(ROOM)) == 100


async def test_c3_a_room_whose_sources_all_fail_slows_no_other(database_dsn: str) -> None:
    """C1, C3: a source in back-off holds no slot."""
    async with open_spine(database_dsn) as spine:
        await serve_rooms(spine)
        spine.gateway.fail(ROOM, *[MatrixDeliveryFailure("send", MatrixFailureClass.NETWORK)] * 10_000)
        await spine.hear(*(message(f"$bad{n}") for n in range(40)))
        await spine.hear(*(message(f"$well{n}") for n in range(20)), room=OTHER_ROOM)
        await spine.advance(2)
        assert len(spine.finals(OTHER_ROOM)) == 20


async def test_c3_ten_thousand_pending_at_a_start_are_all_decided_a_page_at_a_time(database_dsn: str) -> None:
    """C3: nobody is authorized any more, so each is decided and none is answered; the feeder's reads are pages."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        await spine.crash()
        async with spine.database._pool.acquire() as connection:
            await connection.execute(
                """
                WITH heard AS (
                    INSERT INTO journal_receipts (principal, epoch, origin_ts, base, page, idx, event_id, room_id,
                                                  thread_id, sender, kind, class)
                    SELECT $1, 1, 0, 1000000 + n, 0, 0, '$p' || n, $2, '', '@nobody:x', 'message', 'live'
                    FROM generate_series(1, 10000) n RETURNING *)
                INSERT INTO journal_pending (receipt, principal, epoch, origin_ts, base, page, idx, event_id, room_id,
                                             thread_id, sender, kind, class, source)
                SELECT receipt, principal, epoch, origin_ts, base, page, idx, event_id, room_id, thread_id, sender,
                       kind, class, '{"type": "m.room.message", "content": {"body": "x"}}' FROM heard""",
                spine.principal,
                ROOM,
            )
        await spine.start()
        spine.answer(spine.batch())
        for _ in range(60):
            await spine.advance(1)
            if await spine.value("SELECT count(*) FROM journal_pending") == 0:
                break
        assert await spine.rows("SELECT outcome, count(*) FROM journal_settlements GROUP BY outcome") == [
            ("ignored.unauthorized", 10_000)
        ]
        assert spine.model.requests == []


async def test_r19_after_a_restart_the_answer_is_given_where_the_conversation_stands(database_dsn: str) -> None:
    """R19, D2: the person has moved on while the agent was down: one answer to all of it, in the old placeholder."""
    async with open_spine(database_dsn, thread_mode="room") as spine:
        await spine.serve()
        spine.model.go.clear()
        await spine.hear(message("$1", "the old question"))
        await spine.advance(1)
        ((placeholder, _),) = spine.gateway.visible()
        await spine.crash()
        spine.model.go.set()
        await spine.start()
        newer = [message("$2", "never mind"), message("$3", "the new question"), message("$4", "mine", sender=BOB)]
        spine.answer(spine.batch((ROOM, joined_room(newer))))
        await spine.settle()
        await spine.advance(2)
        assert spine.finals() == [["$1", "$2", "$3"], ["$4"]]
        assert "the new question" in spine.model.requests[-2].messages[-1].text
        first = next(wire for _, wire in spine.gateway.visible() if wire.txn_id.startswith("final."))
        assert first.content["m.relates_to"] == {"rel_type": "m.replace", "event_id": placeholder}
        assert spine.gateway.stages().count("initial") == 1


async def test_r19_what_joined_is_told_apart_when_it_is_redacted(database_dsn: str) -> None:
    """R19, A4: the commit that lets it join is lost once, then it is withdrawn; the open turn goes on without it."""
    async with open_spine(database_dsn, thread_mode="room") as spine:
        await spine.serve()
        spine.model.go.clear()
        await spine.hear(message("$1"))
        await spine.crash()
        spine.database.outage = lambda name: name == "supersede"
        await spine.start()
        spine.answer(spine.batch((ROOM, joined_room([message("$2"), message("$3")]))))
        await spine.settle()
        await spine.advance(2)
        spine.database.outage = lambda _name: False

        async def joined() -> bool:
            await spine.advance(2)
            return bool(await spine.value("SELECT count(*) = 3 FROM turn_sources"))

        await eventually(joined)
        await spine.hear(redaction("$r", "$2"))
        spine.model.go.set()
        await spine.advance(5)
        assert spine.finals() == [["$1", "$3"]]


async def test_r38_two_sources_of_a_conversation_that_come_at_once_are_both_kept_in_order(database_dsn: str) -> None:
    """R38: two people, the same moment, the same conversation; the second prompt holds the first exchange."""
    async with open_spine(database_dsn, thread_mode="room") as spine:
        await spine.serve()
        spine.model.go.clear()
        first, second = message("$1", "first question", sender=ALICE), message("$2", "second question", sender=BOB)
        spine.model.script.extend(["the first answer", "the second answer"])
        await spine.hear(first, second)
        spine.model.go.set()
        await spine.advance(2)
        assert spine.finals() == [["$1"], ["$2"]]
        prompt = "\n".join(part.text for part in spine.model.requests[-1].messages)
        assert prompt.index("first question") < prompt.index("the first answer") < prompt.index("second question")


async def test_r15_three_deliveries_within_a_second_are_one_call_and_one_answer(database_dsn: str) -> None:
    """R15, A2."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        await spine.hear(message("$1"), message("$1"))
        await spine.hear(message("$1"))
        await spine.advance(2)
        assert len(spine.model.requests) == 1
        markers = [wire.content.get(DELIVERY_KEY, {}).get("sources") for _, wire in spine.gateway.visible()]
        assert markers.count(["$1"]) == 1

"""F4: an upgraded room is followed into its successor, with what is owed there, and left when nothing is."""

from typing import Any

import pytest

from mindroom.core.content import DELIVERY_KEY
from mindroom.core.errors import MatrixDeliveryFailure, MatrixFailure, MatrixFailureClass
from mindroom.core.ids import RoomId
from tests.support.events import (
    ALICE,
    ME,
    OTHER_ROOM,
    ROOM,
    STRANGER,
    Event,
    invited_room,
    joined_room,
    left_room,
    member,
    message,
    state,
)
from tests.support.spine import Spine, open_spine

NEW = RoomId("!successor-without-a-server-part")
REFUSED = MatrixDeliveryFailure("send", MatrixFailureClass.FORBIDDEN, status=403, errcode="M_FORBIDDEN")
LOST = MatrixDeliveryFailure("send", MatrixFailureClass.NETWORK)
NOT_INVITED = MatrixFailure("join", MatrixFailureClass.FORBIDDEN, status=403, errcode="M_FORBIDDEN")


def tombstone(*, sender: str = STRANGER) -> Event:
    return state("$tombstone", "m.room.tombstone", {"body": "moved", "replacement_room": NEW}, sender=sender)


def successor(*, of: str = ROOM, timeline: list[Event] | None = None) -> tuple[str, Event]:
    """Our join of the new room, as sync shows it."""
    create = state("$create2", "m.room.create", {"room_version": "12", "predecessor": {"room_id": of}})
    return NEW, joined_room(timeline or [member("$join", ME, "join")], state=[create, member("$a", ALICE, "join")])


async def upgraded_while_answering(spine: Spine) -> None:
    """A question in ROOM is answered, but ROOM was upgraded meanwhile and takes nothing any more."""
    await spine.serve()
    spine.model.finish.clear()
    await spine.hear(message("$1"))
    await spine.advance(1)
    spine.gateway.fail(ROOM, *[REFUSED] * 50)
    await spine.hear(tombstone())
    spine.model.finish.set()
    await spine.advance(10)


async def test_f4_r13_the_successor_is_joined_through_the_server_of_the_upgrader(database_dsn: str) -> None:
    """F4, R13: whoever may upgrade a room has moved us; the id of a new room has no server part."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        await spine.hear(tombstone(sender="@mallory:far.example:8448"))
        assert spine.membership.joined == [NEW]
        assert spine.membership.via == [("far.example:8448",)]


async def test_f4_a_successor_that_lets_nobody_in_is_asked_again_and_an_invitation_is_taken_at_once(
    database_dsn: str,
) -> None:
    """F4: a refusal is final for an invitation, not for a successor; over a crash, with back-off on the row."""
    async with open_spine(database_dsn) as spine:
        spine.membership.faults[NEW] = [NOT_INVITED] * 20
        await spine.serve()
        await spine.hear(tombstone())
        assert await spine.rows("SELECT membership, invite_attempts FROM room_membership WHERE room_id = $1", NEW) == [
            ("invite", 1)
        ]
        await spine.crash()
        await spine.start()
        spine.answer(spine.batch())
        await spine.advance(600, step_seconds=10)
        asked = 20 - len(spine.membership.faults[NEW])
        assert 5 < asked < 12
        spine.membership.faults[NEW] = []
        spine.answer(spine.batch(invite={NEW: invited_room(member("$i", ME, "invite", sender=ALICE))}))
        await spine.settle()
        assert spine.membership.joined == [NEW]


async def test_f4_what_is_owed_goes_to_the_successor_as_a_message_that_names_the_request(database_dsn: str) -> None:
    """F4, R13: then the old room is left, once, and questions in the new one are answered."""
    async with open_spine(database_dsn) as spine:
        await upgraded_while_answering(spine)
        assert await spine.rows("SELECT room_id, state, last_error FROM delivery_outbox WHERE stage = 'final'") == [
            (ROOM, "queued", "tombstoned")
        ]
        assert spine.membership.left == []
        spine.answer(spine.batch(successor()))
        await spine.advance(20)
        [(_, wire)] = spine.gateway.visible(NEW)
        assert wire.content[DELIVERY_KEY]["sources"] == ["$1"]
        assert "m.relates_to" not in wire.content
        assert wire.content["body"].startswith("In answer to https://matrix.to/#/%21room%3Ax/%241?via=x\n\n")
        assert wire.content["body"].endswith("an answer")
        assert spine.membership.left[0] == ROOM
        spine.answer(spine.batch(leave={ROOM: left_room([member("$l", ME, "leave", before="join")])}))
        await spine.settle()
        left = len(spine.membership.left)
        await spine.hear(message("$2", membership="join"), room=NEW)
        await spine.advance(20)
        assert spine.finals(NEW) == [["$1"], ["$2"]]
        assert len(spine.membership.left) == left


async def test_f4_the_old_room_is_left_only_when_nothing_is_owed_there(database_dsn: str) -> None:
    """F4: an answer that is still being written keeps us."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.finish.clear()
        await spine.hear(message("$1"))
        await spine.hear(tombstone())
        spine.answer(spine.batch(successor()))
        await spine.advance(30)
        assert spine.membership.left == []
        spine.model.finish.set()
        await spine.advance(10)
        assert spine.finals() == [["$1"]]
        assert spine.membership.left[0] == ROOM


async def test_f4_an_answer_that_may_have_arrived_keeps_us_in_the_old_room(database_dsn: str) -> None:
    """F4: its source is settled, but the outbox still owes it."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.gateway.fail("final", *[LOST] * 100)
        await spine.hear(message("$1"))
        await spine.advance(2)
        await spine.hear(tombstone())
        spine.answer(spine.batch(successor()))
        await spine.advance(30)
        assert spine.membership.left == []
        spine.gateway.faults.clear()
        await spine.advance(60, step_seconds=5)
        assert spine.finals() == [["$1"]]
        assert spine.membership.left[0] == ROOM


async def test_f4_a_tombstone_that_comes_after_we_joined_the_successor_is_seen_at_once(database_dsn: str) -> None:
    """F4: we were invited there before."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.answer(spine.batch(successor()))
        await spine.settle()
        spine.answer(spine.batch((ROOM, joined_room([tombstone()]))))
        await spine.settle()
        assert spine.membership.asked == []
        assert spine.membership.left == [ROOM]


@pytest.mark.parametrize("predecessor", [OTHER_ROOM, "", None])
async def test_f4_a_room_that_does_not_name_the_old_one_is_not_adopted(database_dsn: str, predecessor: Any) -> None:
    """F4, F3: nothing goes there and neither room is left."""
    async with open_spine(database_dsn) as spine:
        await upgraded_while_answering(spine)
        spine.answer(spine.batch(successor(of=predecessor)))
        await spine.advance(30)
        assert spine.gateway.visible(NEW) == []
        assert spine.membership.left == []
        assert await spine.value("SELECT last_error FROM delivery_outbox WHERE stage = 'final'") == "tombstoned"


async def test_f4_without_a_successor_the_answer_fails_after_a_day(database_dsn: str) -> None:
    """F4."""
    async with open_spine(database_dsn) as spine:
        spine.membership.faults[NEW] = [NOT_INVITED] * 200
        await upgraded_while_answering(spine)
        await spine.advance(23 * 3600, step_seconds=600)
        assert await spine.value("SELECT state FROM delivery_outbox WHERE stage = 'final'") == "queued"
        await spine.advance(2 * 3600, step_seconds=600)
        assert await spine.rows("SELECT state, last_error FROM delivery_outbox WHERE stage = 'final'") == [
            ("failed", "tombstoned")
        ]


async def test_f4_a_crash_between_the_join_and_the_move_is_made_up(database_dsn: str) -> None:
    """F4: what follows from the book alone needs no memory."""
    async with open_spine(database_dsn) as spine:
        await upgraded_while_answering(spine)
        spine.database.outage = lambda name: name == "carry_over"
        spine.answer(spine.batch(successor()))
        await spine.advance(10)
        await spine.crash()
        spine.database.outage = lambda _name: False
        await spine.start()
        spine.answer(spine.batch())
        await spine.advance(20)
        assert spine.finals(NEW) == [["$1"]]
        assert ROOM in spine.membership.left

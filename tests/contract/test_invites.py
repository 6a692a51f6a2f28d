"""Invitations are debts: tried again when they are due, whoever put them off, and never while ownership is in doubt."""

import asyncio

from mindroom.core.errors import MatrixFailure, MatrixFailureClass
from mindroom.core.ids import RoomId
from tests.support.events import ALICE, ME, OTHER_ROOM, ROOM, STRANGER, Event, invited_room, left_room, member
from tests.support.spine import Spine, open_spine

DOWN = MatrixFailure("join", MatrixFailureClass.SERVER, status=502)
AN_HOUR = "UPDATE room_membership SET invite_next_attempt_at = mindroom_now() + interval '1 hour' RETURNING 1"


def invitation(event_id: str, sender: str = ALICE) -> Event:
    return invited_room(member(event_id, ME, "invite", sender=sender))


async def invited_while_down(spine: Spine) -> None:
    """ROOM invites us and the join fails."""
    spine.membership.faults[ROOM] = [DOWN]
    await spine.start()
    spine.answer(spine.batch(), spine.batch(invite={ROOM: invitation("$i")}))
    await spine.settle()
    assert await spine.value("SELECT invite_attempts FROM room_membership") == 1


async def test_a9_an_invite_in_back_off_does_not_delay_the_next_one(database_dsn: str) -> None:
    """A9."""
    async with open_spine(database_dsn) as spine:
        await invited_while_down(spine)
        spine.answer(spine.batch(invite={OTHER_ROOM: invitation("$j")}))
        await spine.settle()
        assert spine.membership.joined == [OTHER_ROOM]
        await spine.advance(2)
        assert ROOM in spine.membership.joined


async def test_a9_an_invite_that_an_earlier_process_put_off_is_taken_when_it_is_due(database_dsn: str) -> None:
    """A9: nothing else happens that would wake anybody."""
    async with open_spine(database_dsn) as spine:
        await invited_while_down(spine)
        await spine.crash()
        await spine.value(AN_HOUR)
        await spine.start()
        spine.answer(spine.batch())
        await spine.settle()
        await spine.advance(3500, step_seconds=500)
        assert spine.membership.joined == []
        await spine.advance(200, step_seconds=100)
        assert spine.membership.joined == [ROOM]


async def test_h2_nobody_joins_or_leaves_while_the_lease_is_in_doubt(database_dsn: str) -> None:
    """H2: a process that was stopped may hold an older configuration than the one that serves now."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        assert spine.lease is not None
        trusted, spine.lease.trusted_until = spine.lease.trusted_until, 0.0
        left = left_room([member("$l", ME, "leave", sender=ALICE)])
        spine.answer(spine.batch(leave={ROOM: left}, invite={OTHER_ROOM: invitation("$i", STRANGER)}))
        await spine.advance(5)
        assert spine.membership.left == []
        spine.lease.trusted_until = trusted
        await spine.advance(20)
        assert spine.membership.left == [OTHER_ROOM]


async def test_r27_e5_a_join_waits_as_long_as_the_homeserver_asks(database_dsn: str) -> None:
    """R27: joins obey 429 too; a second one during the pause would only be refused again."""
    async with open_spine(database_dsn) as spine:
        limit = MatrixFailure("join", MatrixFailureClass.RATE_LIMITED, status=429, retry_after_seconds=120.0)
        spine.membership.faults[ROOM] = [limit, limit]
        await spine.start()
        spine.answer(spine.batch(), spine.batch(invite={ROOM: invitation("$i")}))
        await spine.settle()
        await spine.advance(115, step_seconds=5)
        assert len(spine.membership.faults[ROOM]) == 1
        await spine.advance(10, step_seconds=5)
        assert not spine.membership.faults[ROOM]
        await spine.advance(125, step_seconds=5)
        assert spine.membership.joined == [ROOM]


async def test_a9_a_slow_join_delays_no_other_invite(database_dsn: str) -> None:
    """A9: a join over federation may take minutes; not more than four at once, and none is asked for twice."""
    async with open_spine(database_dsn) as spine:
        slow = [RoomId(f"!slow{n}:x") for n in range(3)]
        spine.membership.held = {room: asyncio.Event() for room in slow}
        await spine.start()
        spine.answer(spine.batch(), spine.batch(invite={room: invitation(f"$i{room}") for room in slow}))
        await spine.settle()
        spine.answer(spine.batch(invite={ROOM: invitation("$i")}))
        await spine.advance(120, step_seconds=10)
        assert spine.membership.joined == [ROOM]
        assert sorted(spine.membership.asked) == sorted([*slow, ROOM])
        for held in spine.membership.held.values():
            held.set()
        await spine.settle()
        assert sorted(spine.membership.joined) == sorted([*slow, ROOM])


async def test_a9_not_more_than_four_joins_go_on_at_once(database_dsn: str) -> None:
    """A9: the fifth follows as soon as one is done."""
    async with open_spine(database_dsn) as spine:
        slow = [RoomId(f"!slow{n}:x") for n in range(5)]
        spine.membership.held = {room: asyncio.Event() for room in slow}
        await spine.start()
        spine.answer(spine.batch(), spine.batch(invite={room: invitation(f"$i{room}") for room in slow}))
        await spine.settle()
        assert len(spine.membership.asked) == 4
        spine.membership.held[spine.membership.asked[0]].set()
        await spine.settle()
        assert len(spine.membership.asked) == 5


async def test_a9_a_429_to_one_join_holds_the_others_back(database_dsn: str) -> None:
    """A9, E5: the limit is the user's, not the room's."""
    limited = MatrixFailure("join", MatrixFailureClass.RATE_LIMITED, status=429, retry_after_seconds=60.0)
    async with open_spine(database_dsn) as spine:
        spine.membership.faults[ROOM] = [limited]
        await spine.start()
        spine.answer(spine.batch(), spine.batch(invite={ROOM: invitation("$i")}))
        await spine.settle()
        spine.answer(spine.batch(invite={OTHER_ROOM: invitation("$j")}))
        await spine.advance(55)
        assert spine.membership.asked == [ROOM]
        await spine.advance(10)
        assert sorted(spine.membership.joined) == sorted([ROOM, OTHER_ROOM])


async def test_h2_a_join_under_way_is_given_up_when_the_lease_comes_into_doubt(database_dsn: str) -> None:
    """H2: it may outlast the trust that there was when it began."""
    async with open_spine(database_dsn) as spine:
        spine.membership.held[ROOM] = asyncio.Event()
        await spine.start()
        assert spine.lease is not None
        trusted, spine.lease.trusted_until = spine.lease.trusted_until, spine.clock.boottime() + 0.2
        spine.answer(spine.batch(), spine.batch(invite={ROOM: invitation("$i")}))
        await spine.settle()
        assert spine.membership.asked == [ROOM]
        spine.lease.trusted_until = 0.0
        await asyncio.wait_for(spine.membership.given_up.wait(), 5)
        spine.lease.trusted_until = trusted
        spine.membership.held.clear()
        await spine.advance(30)
        assert spine.membership.joined == [ROOM]


async def test_f3_an_invite_whose_sender_is_missing_is_neither_accepted_nor_declined(database_dsn: str) -> None:
    """F3, A9: until somebody known invites."""
    async with open_spine(database_dsn) as spine:
        await spine.start()
        nameless = invitation("$i")
        del nameless["invite_state"]["events"][0]["sender"]
        spine.answer(spine.batch(), spine.batch(invite={ROOM: nameless}))
        await spine.advance(60, step_seconds=10)
        assert (spine.membership.asked, spine.membership.left) == ([], [])
        spine.answer(spine.batch(invite={ROOM: invitation("$j")}))
        await spine.settle()
        assert spine.membership.joined == [ROOM]


async def test_a9_a_leave_drops_a_waiting_invite_and_a_new_one_starts_afresh(database_dsn: str) -> None:
    """A9."""
    async with open_spine(database_dsn) as spine:
        await invited_while_down(spine)
        spine.answer(spine.batch(leave={ROOM: left_room([member("$l", ME, "leave", sender=ALICE, before="invite")])}))
        await spine.settle()
        await spine.advance(600, step_seconds=10)
        assert spine.membership.joined == []
        spine.answer(spine.batch(invite={ROOM: invitation("$again")}))
        await spine.settle()
        assert spine.membership.joined == [ROOM]

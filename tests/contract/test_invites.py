"""Invitations are debts: tried again when they are due, whoever put them off, and never while ownership is in doubt."""

from collections import deque
from collections.abc import Sequence

from mindroom.core.errors import MatrixFailure, MatrixFailureClass
from mindroom.core.ids import RoomId
from tests.support.events import ALICE, ME, OTHER_ROOM, ROOM, STRANGER, Event, invited_room, left_room, member
from tests.support.spine import ScriptedMembership, Spine, open_spine

DOWN = MatrixFailure("join", MatrixFailureClass.SERVER, status=502)
AN_HOUR = "UPDATE room_membership SET invite_next_attempt_at = mindroom_now() + interval '1 hour' RETURNING 1"


class TroubledMembership(ScriptedMembership):
    """Joins of ROOM end as scripted."""

    def __init__(self, *faults: Exception) -> None:
        super().__init__()
        self.faults = deque(faults)

    async def join(self, room: RoomId, *, via: Sequence[str] = ()) -> None:
        if room == ROOM and self.faults:
            raise self.faults.popleft()
        await super().join(room, via=via)


def invitation(event_id: str, sender: str = ALICE) -> Event:
    return invited_room(member(event_id, ME, "invite", sender=sender))


async def invited_while_down(spine: Spine) -> None:
    """ROOM invites us and the join fails."""
    spine.membership = TroubledMembership(DOWN)
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
        spine.membership = membership = TroubledMembership(limit, limit)
        await spine.start()
        spine.answer(spine.batch(), spine.batch(invite={ROOM: invitation("$i")}))
        await spine.settle()
        await spine.advance(115, step_seconds=5)
        assert len(membership.faults) == 1
        await spine.advance(10, step_seconds=5)
        assert not membership.faults
        await spine.advance(125, step_seconds=5)
        assert membership.joined == [ROOM]

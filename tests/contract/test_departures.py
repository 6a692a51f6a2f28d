"""F1, F2, F3, A5: leaving a room ends everything of that stay, and only a decision makes us leave."""

import ast
import asyncio
from collections.abc import Iterator

import pytest

from mindroom.core.clock import TestClock
from mindroom.core.content import read_marker
from mindroom.core.errors import MatrixDeliveryFailure, MatrixFailureClass
from mindroom.core.ports import HistoryPage, WirePayload
from tests.conftest import REPOSITORY
from tests.support.events import ALICE, ME, ROOM, Event, invited_room, joined_room, left_room, member, message, state
from tests.support.spine import Barrier, Spine, open_spine

CREATE = state("$create", "m.room.create", {"room_version": "12"})
KICK = member("$kick", ME, "leave", before="join", sender=ALICE)
INVITE = member("$invite", ME, "invite", before="leave", sender=ALICE)
REJOIN = member("$rejoin", ME, "join", before="invite")
LOST = MatrixDeliveryFailure("send", MatrixFailureClass.NETWORK)
OWED = "SELECT state FROM delivery_outbox WHERE stage = 'final'"
EMPTY = ("journal_pending", "visible_messages", "unresolved_edits", "room_history_recovery", "conversation_hydration")


def kicked(*before: Event) -> Event:
    return {ROOM: left_room([*before, KICK])}


async def come_back(spine: Spine, *said: Event) -> None:
    """Invited again, joined again; `said` follows our join."""
    spine.answer(
        spine.batch(invite={ROOM: invited_room(INVITE)}),
        spine.batch((ROOM, joined_room([KICK, INVITE, REJOIN, *said], state=[CREATE, member("$a", ALICE, "join")]))),
    )
    await spine.advance(1, step_seconds=0.5)


def echo(wire: WirePayload, event_id: str) -> Event:
    """What was sent, as sync shows it to its sender."""
    return {
        "event_id": event_id,
        "type": wire.event_type,
        "sender": ME,
        "origin_server_ts": 2000,
        "content": wire.content,
        "unsigned": {"transaction_id": wire.txn_id},
    }


def page(*newest_first: Event) -> HistoryPage:
    return HistoryPage(newest_first, None)


# ---- what a departure ends (F2) --------------------------------------------------------------------------------------
async def test_f2_after_a_kick_nothing_of_the_old_stay_is_said_any_more(
    database_dsn: str,
) -> None:
    """F2, F1: the running answer is cancelled, what waits is settled, tables of the room are empty."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.finish.clear()
        await spine.hear(message("$1"))
        await spine.advance(2)
        await spine.hear(message("$2"))
        sent = len(spine.gateway.attempts)
        spine.answer(spine.batch(leave=kicked()))
        await spine.settle()
        assert (await spine.outcome("$1"), await spine.outcome("$2")) == ("departed", "departed")
        for table in EMPTY:
            assert await spine.value(f"SELECT count(*) FROM {table} WHERE room_id = $1", ROOM) == 0, table
        assert await spine.value("SELECT count(*) FROM turns WHERE state = 'open'") == 0
        spine.model.finish.set()
        await come_back(spine, message("$3"))
        await spine.advance(60, step_seconds=5)
        assert spine.finals() == [["$3"]]
        assert {wire.txn_id.partition(".")[0] for wire in spine.gateway.attempts[:sent]} <= {"initial", "progress"}
        assert await spine.value("SELECT epoch FROM room_membership WHERE room_id = $1", ROOM) == 2


@pytest.mark.parametrize("is_shown", [True, False])
async def test_f2_a_claimed_answer_is_adopted_when_the_room_shows_it_and_retired_otherwise(
    database_dsn: str, is_shown: bool
) -> None:
    """F2: its reply was lost before the kick; it is never sent a second time."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.gateway.fail("final", *[LOST] * 100)
        await spine.hear(message("$1"))
        await spine.advance(2)
        assert await spine.value(OWED) == "claimed"
        wire = next(w for w in reversed(spine.gateway.attempts) if w.txn_id.startswith("final"))
        spine.gateway.faults.clear()
        spine.answer(spine.batch(leave=kicked(*[echo(wire, "$final")] * is_shown)))
        await spine.settle()
        sent = len(spine.gateway.attempts)
        await come_back(spine)
        await spine.advance(3600, step_seconds=60)
        assert await spine.value(OWED) == ("acked" if is_shown else "retired")
        assert len(spine.gateway.attempts) == sent
        assert await spine.outcome("$1") == "answered"


async def test_f2_an_answer_that_was_retired_is_adopted_when_a_later_timeline_shows_it(database_dsn: str) -> None:
    """F2, A6: the response of the kick was too short for it."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.gateway.fail("final", *[LOST] * 100)
        await spine.hear(message("$1"))
        await spine.advance(2)
        wire = next(w for w in reversed(spine.gateway.attempts) if w.txn_id.startswith("final"))
        assert read_marker(wire.content) is not None
        spine.answer(spine.batch(leave=kicked()))
        await spine.settle()
        assert await spine.value(OWED) == "retired"
        spine.answer(spine.batch((ROOM, joined_room([echo(wire, "$final"), KICK, INVITE, REJOIN], state=[CREATE]))))
        await spine.settle()
        assert await spine.value(OWED) == "acked"


async def test_f1_r45_kick_invite_and_rejoin_in_one_response_are_one_departure(database_dsn: str) -> None:
    """F1, R45: the timeline was too short for our join; what the gap then shows changes nothing, names included."""
    async with open_spine(database_dsn) as spine:
        await spine.start()
        first = member("$first", ME, "join")
        spine.answer(spine.batch((ROOM, joined_room([first], state=[CREATE, member("$a", ALICE, "join")]))))
        spine.model.finish.clear()
        await spine.settle()
        await spine.hear(message("$1"))
        await spine.crash()
        spine.model.finish.set()
        await spine.start()
        name = state("$name", "m.room.name", {"name": "old"})
        spine.history.pages.append(page(message("$2"), REJOIN, INVITE, KICK, name, message("$between")))
        spine.history.open.set()
        again = joined_room([message("$3")], state=[REJOIN, CREATE, member("$a", ALICE, "join")], limited=True)
        spine.answer(spine.batch((ROOM, again)))
        await spine.settle()
        assert await spine.outcome("$1") == "departed"
        assert await spine.value("SELECT epoch FROM room_membership WHERE room_id = $1", ROOM) == 2
        await spine.advance(5)
        spine.answer(spine.batch((ROOM, joined_room([message("$4")], state=[REJOIN]))))
        await spine.advance(2)
        assert sorted(source for sources in spine.finals() for source in sources) == ["$2", "$3", "$4"]
        assert await spine.value("SELECT count(*) FROM room_state WHERE type = 'm.room.name'") == 0
        assert await spine.value("SELECT epoch FROM room_membership WHERE room_id = $1", ROOM) == 2


# ---- races (A5) ------------------------------------------------------------------------------------------------------
async def until(event: asyncio.Event, clock: TestClock) -> None:
    """Time passes until the barrier is reached."""
    for _ in range(400):
        if event.is_set():
            return
        await clock.advance(0.01)
        await asyncio.sleep(0.002)
    raise AssertionError("never reached")


async def others_come() -> None:
    """What can run does; what wants to write waits for the mutex of the lease."""
    for _ in range(200):
        await asyncio.sleep(0)


async def nothing_is_left(spine: Spine) -> None:
    spine.model.finish.set()
    await spine.settle()
    await spine.advance(30, step_seconds=5)
    assert await spine.value("SELECT count(*) FROM turns WHERE state = 'open'") == 0
    assert await spine.value("SELECT count(*) FROM delivery_outbox WHERE state IN ('queued', 'claimed')") == 0
    for table in EMPTY:
        assert await spine.value(f"SELECT count(*) FROM {table} WHERE room_id = $1", ROOM) == 0, table


@pytest.mark.parametrize("transaction", ["open_turn", "hand_off", "claim_delivery"])
async def test_a5_a_departure_that_comes_during_a_transaction_takes_back_what_it_wrote(
    database_dsn: str, transaction: str
) -> None:
    """A5, F2: the departure commits second."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        if transaction == "claim_delivery":  # of the placeholder
            spine.model.finish.clear()
        barrier = spine.database.barriers[transaction] = Barrier()
        spine.answer(spine.batch((ROOM, joined_room([message("$1")]))))
        await until(barrier.reached, spine.clock)
        spine.answer(spine.batch(leave=kicked()))
        await others_come()
        barrier.go.set()
        await nothing_is_left(spine)


@pytest.mark.parametrize("transaction", ["hand_off", "claim_delivery"])
async def test_a5_a_transaction_that_comes_during_a_departure_writes_nothing(
    database_dsn: str, transaction: str
) -> None:
    """A5, F2: the departure commits first; nothing more is sent."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.finish.clear()
        await spine.hear(message("$1"))
        barrier = spine.database.barriers["admit"] = Barrier()
        spine.answer(spine.batch(leave=kicked()))
        await until(barrier.reached, spine.clock)
        if transaction == "hand_off":
            spine.model.finish.set()
        else:
            await spine.clock.advance(1)
        await others_come()
        barrier.go.set()
        await spine.settle()
        sent = len(spine.gateway.attempts)
        await nothing_is_left(spine)
        assert len(spine.gateway.attempts) == sent
        assert spine.finals() == []
        assert await spine.outcome("$1") == "departed"


async def test_a5_a_page_of_a_gap_that_comes_after_the_departure_changes_nothing(database_dsn: str) -> None:
    """A5: it was asked for during the stay."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.answer(spine.batch((ROOM, joined_room([message("$new")], limited=True))))
        await spine.settle()
        assert spine.history.asked
        spine.answer(spine.batch(leave=kicked()))
        await spine.settle()
        spine.history.pages.append(page(message("$gap")))
        spine.history.open.set()
        await spine.advance(5)
        assert await spine.value("SELECT count(*) FROM journal_receipts WHERE event_id = '$gap'") == 0
        for table in EMPTY:
            assert await spine.value(f"SELECT count(*) FROM {table} WHERE room_id = $1", ROOM) == 0, table


# ---- who makes us leave (F3) -----------------------------------------------------------------------------------------
def _calls_of(name: str) -> Iterator[str]:
    for path in sorted((REPOSITORY / "mindroom").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr == name and ast.unparse(node.value).endswith("membership"):
                yield str(path.relative_to(REPOSITORY))


def test_f3_a9_rooms_are_joined_in_one_place_and_left_in_two() -> None:
    """F3, A9: an invitation that was declined, and an upgraded room in which nothing is owed."""
    assert list(_calls_of("join")) == ["mindroom/bot/invites.py"]
    assert list(_calls_of("leave")) == ["mindroom/bot/invites.py", "mindroom/bot/upgrades.py"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"timeline": {"events": [], "limited": True, "prev_batch": "p"}},
        {"timeline": {"events": [member("$m", ME, "join", before="join")]}, "summary": {"m.joined_member_count": 0}},
        {"state": {"events": [state("$t", "m.room.tombstone", {})]}},
        {"state": {"events": [state("$c", "m.room.create", {"predecessor": {"room_id": ROOM}})]}},
        {"state": {"events": [state("$j", "m.room.join_rules", {}), member("$a", ALICE, "leave")]}},
    ],
)
async def test_f3_missing_and_odd_data_makes_nobody_leave(database_dsn: str, body: Event) -> None:
    """F3: nor does silence, a restart, or a configuration without the person who invited us."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.answer(spine.batch((ROOM, body)), spine.batch())
        await spine.advance(60, step_seconds=10)
        await spine.crash()
        spine.config = spine.without(ALICE)
        await spine.start()
        spine.answer(spine.batch())
        await spine.advance(60, step_seconds=10)
        assert spine.membership.left == []
        assert await spine.value("SELECT membership FROM room_membership WHERE room_id = $1", ROOM) == "join"

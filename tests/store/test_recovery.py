"""Gaps, invites, memberships and room state as rows: what a crash must not forget (A9, A13, B2, B3, F2)."""

from collections.abc import AsyncIterator

import pytest

from mindroom.core.ids import Epoch, RoomId, SyncToken
from mindroom.core.values import Membership
from mindroom.journal.records import Gap, GapFound, RoomMembership, StateRow
from tests.support.events import ALICE, OTHER_ROOM, ROOM
from tests.support.ledgers import Ledgers, move_database_clock, open_ledgers, source


@pytest.fixture
async def ledgers(database_dsn: str) -> AsyncIterator[Ledgers]:
    async with open_ledgers(database_dsn) as opened:
        yield opened


async def open_gap(ledgers: Ledgers, *, room: RoomId = ROOM, since: str = "s1", epoch: int = 1) -> Gap:
    found = GapFound(room, SyncToken(f"p-{since}"), SyncToken(since), Epoch(epoch))
    async with ledgers.lease.transaction("admit") as tx:
        floor = await ledgers.recovery.draw_floor(tx)
        await ledgers.recovery.open_gaps(tx, [found], floor=floor)
    return (await gaps(ledgers))[room, since]


async def gaps(ledgers: Ledgers) -> dict[tuple[str, str], Gap]:
    return {(s.gap.room, s.gap.to_token): s.gap for s in await ledgers.recovery.gaps()}


async def advance(ledgers: Ledgers, gap: Gap, *, cursor: str | None, closes: bool = False) -> bool:
    async with ledgers.lease.transaction("gap_page") as tx:
        return await ledgers.recovery.advance(tx, gap, cursor=SyncToken(cursor) if cursor else None, closes=closes)


# ---- gaps ------------------------------------------------------------------------------------------------------------
async def test_a_gap_is_open_with_a_floor_below_everything_live_of_its_response(ledgers: Ledgers) -> None:
    """B2."""
    before = await ledgers.hear(source("$before"))
    gap = await open_gap(ledgers)
    after = await ledgers.hear(source("$after"))
    assert max(before.receipts.values()) < gap.floor < min(after.receipts.values())
    assert (gap.from_token, gap.cursor, gap.page, gap.attempts) == ("p-s1", None, 0, 0)


async def test_recording_a_gap_again_does_not_start_it_over(ledgers: Ledgers) -> None:
    gap = await open_gap(ledgers)
    assert await advance(ledgers, gap, cursor="c1")
    assert (await open_gap(ledgers)).cursor == "c1"


async def test_several_gaps_of_a_room_are_walked_oldest_first(ledgers: Ledgers) -> None:
    for since in ("s3", "s1", "s2"):
        await open_gap(ledgers, since=since)
        await move_database_clock(ledgers.database, 1)
    states = await ledgers.recovery.gaps()
    assert [s.gap.to_token for s in states] == ["s3", "s1", "s2"]
    assert [int(s.age_seconds) for s in states] == [3, 2, 1]


async def test_a_page_moves_the_cursor_once(ledgers: Ledgers) -> None:
    """B2: each page is one commit with its cursor; a repeated page changes nothing."""
    first = await open_gap(ledgers)
    assert await advance(ledgers, first, cursor="c1")
    assert not await advance(ledgers, first, cursor="other")
    second = (await gaps(ledgers))[ROOM, "s1"]
    assert (second.cursor, second.page) == ("c1", 1)
    assert await advance(ledgers, second, cursor=None, closes=True)
    assert await gaps(ledgers) == {}
    assert not await advance(ledgers, second, cursor="c2")


async def test_a_closed_gap_stays_as_repaired(ledgers: Ledgers) -> None:
    await advance(ledgers, await open_gap(ledgers), cursor=None, closes=True)
    (row,) = await ledgers.database.fetch("SELECT state, closed_at IS NOT NULL AS closed FROM room_history_recovery")
    assert (row["state"], row["closed"]) == ("repaired", True)


async def test_a_failed_page_waits_and_progress_resets_the_count(ledgers: Ledgers) -> None:
    """B3."""
    gap = await open_gap(ledgers)
    for _ in range(2):
        async with ledgers.lease.transaction("gap_failed") as tx:
            await ledgers.recovery.gap_failed(tx, gap, code="M_LIMIT_EXCEEDED", delay_seconds=30)
    (state,) = await ledgers.recovery.gaps()
    assert (state.is_due, state.gap.attempts) == (False, 2)
    await move_database_clock(ledgers.database, 31)
    (state,) = await ledgers.recovery.gaps()
    assert state.is_due
    await advance(ledgers, state.gap, cursor="c1")
    (state,) = await ledgers.recovery.gaps()
    assert (state.is_due, state.gap.attempts, state.gap.page) == (True, 0, 1)


async def test_a_departure_deletes_the_gaps_of_the_room(ledgers: Ledgers) -> None:
    """B3, F2."""
    gap = await open_gap(ledgers)
    await open_gap(ledgers, room=OTHER_ROOM)
    async with ledgers.lease.transaction("admit") as tx:
        await ledgers.journal.depart(tx, {ROOM: Epoch(1)})
    assert list(await gaps(ledgers)) == [(OTHER_ROOM, "s1")]
    assert not await advance(ledgers, gap, cursor="c1")


async def test_a_page_of_an_earlier_stay_does_not_move_the_gap_of_the_next(ledgers: Ledgers) -> None:
    """B3: pages compare the epoch."""
    stale = await open_gap(ledgers, epoch=1)
    async with ledgers.lease.transaction("admit") as tx:
        await ledgers.journal.depart(tx, {ROOM: Epoch(1)})
    await open_gap(ledgers, epoch=2)
    assert not await advance(ledgers, stale, cursor="c1")
    async with ledgers.lease.transaction("gap_failed") as tx:
        await ledgers.recovery.gap_failed(tx, stale, code="x", delay_seconds=30)
    (state,) = await ledgers.recovery.gaps()
    assert (state.gap.epoch, state.gap.cursor, state.is_due) == (2, None, True)


# ---- invites ---------------------------------------------------------------------------------------------------------
async def invite(ledgers: Ledgers) -> None:
    row = RoomMembership(Epoch(1), Membership.INVITE, inviter=ALICE, is_direct=True)
    async with ledgers.lease.transaction("admit") as tx:
        await ledgers.journal.write_memberships(tx, {ROOM: row})


async def test_an_invite_waits_with_back_off_until_it_is_decided(ledgers: Ledgers) -> None:
    """A9."""
    await invite(ledgers)
    (due,) = await ledgers.recovery.invites()
    assert (due.room, due.inviter, due.attempts, due.due_in_seconds) == (ROOM, ALICE, 0, 0)
    async with ledgers.lease.transaction("invite_result") as tx:
        await ledgers.recovery.invite_failed(tx, ROOM, code="server", delay_seconds=60)
    (waiting,) = await ledgers.recovery.invites()
    assert 50 < waiting.due_in_seconds <= 60
    await move_database_clock(ledgers.database, 61)
    (due,) = await ledgers.recovery.invites()
    assert (due.attempts, due.due_in_seconds) == (1, 0)


async def test_a_refusal_is_final_until_a_new_invite(ledgers: Ledgers) -> None:
    """A9: 403 after a kick or ban; a new invite starts with a clean slate."""
    await invite(ledgers)
    async with ledgers.lease.transaction("invite_result") as tx:
        await ledgers.recovery.invite_failed(tx, ROOM, code="server", delay_seconds=60)
        await ledgers.recovery.invite_over(tx, ROOM, code="M_FORBIDDEN")
    await move_database_clock(ledgers.database, 3600)
    assert await ledgers.recovery.invites() == []
    await invite(ledgers)
    (due,) = await ledgers.recovery.invites()
    assert due.attempts == 0


async def test_the_result_of_an_invite_never_undoes_a_join(ledgers: Ledgers) -> None:
    await ledgers.standing(Membership.JOIN)
    async with ledgers.lease.transaction("invite_result") as tx:
        await ledgers.recovery.invite_over(tx, ROOM, code="M_FORBIDDEN")
        await ledgers.recovery.invite_failed(tx, ROOM, code="server", delay_seconds=60)
    assert (await ledgers.journal.load_book()).joined() == [ROOM]


# ---- the book --------------------------------------------------------------------------------------------------------
async def test_rooms_known_before_a_crash_are_known_after_it(ledgers: Ledgers) -> None:
    """A13."""
    standing = RoomMembership(Epoch(3), Membership.JOIN, ALICE, True, 2, 1)
    rows = [
        StateRow(ROOM, "m.room.create", "", ALICE, {"room_version": "12"}),
        StateRow(ROOM, "m.room.member", ALICE, ALICE, {"membership": "join", "displayname": "Al\x00ice"}),
    ]
    async with ledgers.lease.transaction("admit") as tx:
        await ledgers.journal.write_memberships(tx, {ROOM: standing})
        await ledgers.journal.write_state(tx, rows)
        await ledgers.journal.write_state(tx, [StateRow(ROOM, "m.room.create", "", ALICE, {"room_version": "11"})])
    book = await ledgers.journal.load_book()
    view = book.view(ROOM)
    assert view.membership == standing
    assert view.content("m.room.create") == {"room_version": "11"}
    assert view.display_name(ALICE) == "Al\ufffdice"
    assert view.members() == {ALICE: "join"}
    assert book.epoch(ROOM) == 3


async def test_a_departure_forgets_the_state_of_the_room(ledgers: Ledgers) -> None:
    """F2."""
    async with ledgers.lease.transaction("admit") as tx:
        for room in (ROOM, OTHER_ROOM):
            await ledgers.journal.write_state(tx, [StateRow(room, "m.room.create", "", ALICE, {})])
        await ledgers.journal.depart(tx, {ROOM: Epoch(1)})
    book = await ledgers.journal.load_book()
    assert (book.view(ROOM).is_known, book.view(OTHER_ROOM).is_known) == (False, True)

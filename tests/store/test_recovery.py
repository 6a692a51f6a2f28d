"""Gaps, invites, memberships and room state as rows: what a crash must not forget (A9, A13, B2, B3, F2)."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from mindroom.core.ids import Epoch, EventId, RoomId, SyncToken
from mindroom.core.values import GAP_PAGE_TOP, GapState, Membership, OrderKey
from mindroom.journal.records import Gap, GapFound, RoomMembership, StateRow
from tests.support.events import ALICE, OTHER_ROOM, ROOM
from tests.support.ledgers import Ledgers, context, move_database_clock, open_ledgers, receipt_of, source


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
    return {(gap.room, gap.to_token): gap for gap in await ledgers.recovery.gaps()}


async def advance(ledgers: Ledgers, gap: Gap, **changes: Any) -> bool:
    async with ledgers.lease.transaction("gap_page") as tx:
        return await ledgers.recovery.advance(tx, gap, replace(gap, **changes))


async def fail(ledgers: Ledgers, gap: Gap, *, refused: bool = False, gives_up: bool = False) -> bool:
    async with ledgers.lease.transaction("gap_failed") as tx:
        return await ledgers.recovery.gap_failed(
            tx, gap, code="x", delay_seconds=30, is_refusal=refused, gives_up=gives_up
        )


async def the_gap(ledgers: Ledgers) -> Gap:
    (gap,) = await ledgers.recovery.gaps()
    return gap


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
    assert await advance(ledgers, gap, cursor=SyncToken("c1"))
    assert (await open_gap(ledgers)).cursor == "c1"


async def test_several_gaps_of_a_room_are_walked_oldest_first(ledgers: Ledgers) -> None:
    for since in ("s3", "s1", "s2"):
        await open_gap(ledgers, since=since)
        await move_database_clock(ledgers.database, 1)
    found = await ledgers.recovery.gaps()
    assert [gap.to_token for gap in found] == ["s3", "s1", "s2"]
    assert [(found[-1].opened_ms - gap.opened_ms) // 1000 for gap in found] == [2, 1, 0]


async def test_a_page_moves_the_cursor_once(ledgers: Ledgers) -> None:
    """B2: each page is one commit with its cursor; a repeated page changes nothing."""
    first = await open_gap(ledgers)
    assert await advance(ledgers, first, cursor=SyncToken("c1"))
    assert not await advance(ledgers, first, cursor=SyncToken("other"))
    second = (await gaps(ledgers))[ROOM, "s1"]
    assert (second.cursor, second.page) == ("c1", 1)
    assert await advance(ledgers, second, state=GapState.REPAIRED)
    assert await gaps(ledgers) == {}
    assert not await advance(ledgers, second, cursor=SyncToken("c2"))


async def test_a_closed_gap_stays_as_repaired(ledgers: Ledgers) -> None:
    await advance(ledgers, await open_gap(ledgers), state=GapState.REPAIRED)
    (row,) = await ledgers.database.fetch("SELECT state, closed_at IS NOT NULL AS closed FROM room_history_recovery")
    assert (row["state"], row["closed"]) == ("repaired", True)


async def test_where_a_walk_stands_survives(ledgers: Ledgers) -> None:
    """B2: which walk it is, its cursor and its place."""
    gap = await open_gap(ledgers)
    anchor = OrderKey(gap.floor, GAP_PAGE_TOP + 1, -7)
    await advance(ledgers, gap, walk=2, cursor=SyncToken("c1"), events=40, anchor=anchor)
    found = await the_gap(ledgers)
    assert (found.walk, found.cursor, found.events, found.anchor, found.page) == (2, "c1", 40, anchor, 1)


async def test_a_gap_without_a_token_has_no_first_walk(ledgers: Ledgers) -> None:
    """B2."""
    assert (await open_gap(ledgers, since="")).walk == 2


async def test_a_failed_page_waits_and_progress_resets_the_count(ledgers: Ledgers) -> None:
    """B3."""
    gap = await open_gap(ledgers)
    await fail(ledgers, gap, refused=True)
    await fail(ledgers, gap)
    found = await the_gap(ledgers)
    assert (found.is_due, found.attempts, found.refusals) == (False, 2, 1)
    await move_database_clock(ledgers.database, 31)
    found = await the_gap(ledgers)
    assert found.is_due
    assert 31 <= found.refused_seconds < 40
    await fail(ledgers, gap, refused=True)
    found = await the_gap(ledgers)
    assert found.refusals == 2
    assert found.refused_seconds >= 31
    await advance(ledgers, found, cursor=SyncToken("c1"))
    found = await the_gap(ledgers)
    assert (found.is_due, found.attempts, found.refusals, found.refused_seconds) == (True, 0, 0, 0.0)
    assert found.page == 1


@pytest.mark.parametrize("how", ["page", "failure"])
async def test_a_truncated_gap_stays_visible_and_withdraws_what_was_complete(ledgers: Ledgers, how: str) -> None:
    """B3."""
    gap = await open_gap(ledgers)
    async with ledgers.lease.transaction("test.hydrated") as tx:
        await tx.execute(
            "INSERT INTO conversation_hydration (principal, room_id, thread_id, epoch, state) "
            "VALUES ($1, $2, '', 1, 'complete')",
            ledgers.lease.principal,
            ROOM,
        )
    if how == "page":
        assert await advance(ledgers, gap, state=GapState.TRUNCATED)
    else:
        assert await fail(ledgers, gap, refused=True, gives_up=True)
    assert await ledgers.recovery.gaps() == []
    (row,) = await ledgers.database.fetch("SELECT state, closed_at IS NOT NULL AS closed FROM room_history_recovery")
    assert (row["state"], row["closed"]) == ("truncated", True)
    assert await ledgers.database.fetch("SELECT FROM conversation_hydration") == []
    assert not await fail(ledgers, gap)


async def test_a_failure_of_a_page_that_was_read_meanwhile_counts_nothing(ledgers: Ledgers) -> None:
    """B3: settlement compares the revision, (epoch, page)."""
    gap = await open_gap(ledgers)
    await advance(ledgers, gap, cursor=SyncToken("c1"))
    assert not await fail(ledgers, gap, refused=True, gives_up=True)
    assert (await the_gap(ledgers)).refusals == 0


async def test_what_is_known_of_a_page_and_where_our_time_begins(ledgers: Ledgers) -> None:
    """B2: late events are history too, but nothing ends at them."""
    ours = await ledgers.hear(source("$live"))
    late = context("$late")
    late.outcome = "ignored.late"
    await ledgers.hear(context("$baseline"), late)
    known = await ledgers.recovery.known([EventId(e) for e in ("$live", "$baseline", "$late", "$new")])
    assert {event: k.is_beginning for event, k in known.items()} == {"$live": False, "$baseline": True, "$late": False}
    receipt = receipt_of(ours, "$live")
    assert (known[EventId("$live")].receipt, known[EventId("$live")].order_key) == (receipt, OrderKey(receipt))


async def test_a_departure_deletes_the_gaps_of_the_room(ledgers: Ledgers) -> None:
    """B3, F2."""
    gap = await open_gap(ledgers)
    await open_gap(ledgers, room=OTHER_ROOM)
    async with ledgers.lease.transaction("admit") as tx:
        await ledgers.journal.depart(tx, {ROOM: Epoch(1)})
    assert list(await gaps(ledgers)) == [(OTHER_ROOM, "s1")]
    assert not await advance(ledgers, gap, cursor=SyncToken("c1"))


async def test_a_page_of_an_earlier_stay_does_not_move_the_gap_of_the_next(ledgers: Ledgers) -> None:
    """B3: pages compare the epoch."""
    stale = await open_gap(ledgers, epoch=1)
    async with ledgers.lease.transaction("admit") as tx:
        await ledgers.journal.depart(tx, {ROOM: Epoch(1)})
    await open_gap(ledgers, epoch=2)
    assert not await advance(ledgers, stale, cursor=SyncToken("c1"))
    assert not await fail(ledgers, stale)
    found = await the_gap(ledgers)
    assert (found.epoch, found.cursor, found.is_due) == (2, None, True)


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

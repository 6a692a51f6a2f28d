"""The feeder's pages: order of work, back-off on rows, held rooms, open turns (B2, C2, D2)."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from mindroom.core.errors import RetryClass
from mindroom.core.ids import Epoch, EventId, Fence, PrincipalName, TurnId
from mindroom.core.values import GAP_PAGE_TOP, EventClass, MessageTarget, OrderKey, Reason
from mindroom.journal.records import Heard
from mindroom.journal.store import Journal
from mindroom.turnstore.record import TurnRecord, TurnSource
from tests.support.events import ALICE, OTHER_ROOM, ROOM
from tests.support.ledgers import START, Ledgers, add_principal, move_database_clock, open_ledgers, receipt_of, source


@pytest.fixture
async def ledgers(database_dsn: str) -> AsyncIterator[Ledgers]:
    async with open_ledgers(database_dsn) as opened:
        yield opened


def recovered(event_id: str, *, floor: int, page: int, index: int) -> Heard:
    heard = source(event_id)
    heard.event_class = EventClass.RECOVERED
    heard.base, heard.page, heard.index = floor, GAP_PAGE_TOP - page, index
    return heard


async def fail(ledgers: Ledgers, event: str, *, retry_class: RetryClass, delay_seconds: float = 60.0) -> None:
    async with ledgers.lease.transaction("record_failure") as tx:
        await ledgers.journal.record_failure(
            tx, [EventId(event)], code="model", retry_class=retry_class, delay_seconds=delay_seconds
        )


async def attempts(ledgers: Ledgers) -> dict[str, int]:
    rows = await ledgers.database.fetch("SELECT event_id, attempts FROM journal_pending")
    return {r["event_id"]: r["attempts"] for r in rows}


async def test_recovered_events_come_before_live_ones_and_older_pages_first(ledgers: Ledgers) -> None:
    """B2: whatever the order in which they were stored."""
    await ledgers.hear(source("$before_the_gap"))
    async with ledgers.lease.transaction("admit") as tx:
        floor = await ledgers.recovery.draw_floor(tx)
        await ledgers.journal.hear(tx, [source("$live1"), source("$live2")])
    await ledgers.hear(
        recovered("$c", floor=floor, page=0, index=0),
        recovered("$d", floor=floor, page=0, index=1),
    )
    await ledgers.hear(
        recovered("$a", floor=floor, page=1, index=0),
        recovered("$b", floor=floor, page=1, index=1),
    )
    assert await ledgers.pending() == ["$before_the_gap", "$a", "$b", "$c", "$d", "$live1", "$live2"]


async def test_the_lowest_key_of_a_batch_is_where_the_feeder_must_look(ledgers: Ledgers) -> None:
    async with ledgers.lease.transaction("admit") as tx:
        floor = await ledgers.recovery.draw_floor(tx)
    admitted = await ledgers.hear(source("$live"), recovered("$r", floor=floor, page=2, index=1))
    assert admitted.lowest_pending == OrderKey(floor, GAP_PAGE_TOP - 2, 1)


async def test_pages_follow_each_other_without_holes_or_repeats(ledgers: Ledgers) -> None:
    """Rows are compared whole, ties by receipt."""
    tied = [recovered(f"$tie{n}", floor=1, page=0, index=0) for n in range(7)]
    names = [f"${n}" for n in range(20)]
    await ledgers.hear(*tied, *(source(n) for n in names))
    found: list[str] = []
    after, receipt = START, 0
    while page := await ledgers.journal.pending_page(after, receipt, held_rooms=[], limit=4):
        assert len(page) <= 4
        found += [p.event_id for p in page]
        after, receipt = page[-1].order_key, page[-1].receipt
    assert found == [*(h.event_id for h in tied), *names]


async def test_a_page_carries_what_a_lane_needs(ledgers: Ledgers) -> None:
    admitted = await ledgers.hear(source("$a", thread="$root", epoch=3))
    (found,) = await ledgers.journal.pending_page(START, 0, held_rooms=[], limit=1)
    assert found.receipt == receipt_of(admitted, "$a")
    assert (found.room, found.thread, found.sender, found.epoch, found.origin_ts) == (ROOM, "$root", ALICE, 3, 1000)
    assert (found.event_class, found.attempts, found.open_turn) == (EventClass.LIVE, 0, None)
    assert found.source["content"]["body"] == "hello"


async def test_rooms_held_for_a_gap_keep_their_rows_unread(ledgers: Ledgers) -> None:
    await ledgers.hear(source("$a"), source("$b", room=OTHER_ROOM))
    assert await ledgers.pending(held=[ROOM]) == ["$b"]
    assert await ledgers.pending(held=[ROOM, OTHER_ROOM]) == []


async def test_a_source_in_back_off_lets_later_ones_pass_until_its_time(ledgers: Ledgers) -> None:
    """C1, J1."""
    await ledgers.hear(source("$a"), source("$b"))
    await fail(ledgers, "$a", retry_class=RetryClass.PERMANENT, delay_seconds=60)
    assert await ledgers.pending() == ["$b"]
    await move_database_clock(ledgers.database, 59)
    assert await ledgers.pending() == ["$b"]
    await move_database_clock(ledgers.database, 2)
    assert await ledgers.pending() == ["$a", "$b"]


@pytest.mark.parametrize(
    ("retry_class", "counted"), [(RetryClass.RETRY, 0), (RetryClass.PERMANENT, 2), (RetryClass.CORRUPT, 2)]
)
async def test_dependency_errors_never_count_as_attempts(
    ledgers: Ledgers, retry_class: RetryClass, counted: int
) -> None:
    """C2."""
    await ledgers.hear(source("$a"), source("$b"))
    for _ in range(2):
        await fail(ledgers, "$a", retry_class=retry_class)
    assert await attempts(ledgers) == {"$a": counted, "$b": 0}


async def test_the_summary_tells_amount_age_and_next_attempt(ledgers: Ledgers) -> None:
    empty = await ledgers.journal.pending_summary()
    assert (empty.pending, empty.oldest_seconds, empty.next_attempt_seconds) == (0, 0.0, None)
    await ledgers.hear(source("$a"))
    await move_database_clock(ledgers.database, 100)
    await ledgers.hear(source("$b"), source("$c"))
    await fail(ledgers, "$b", retry_class=RetryClass.RETRY, delay_seconds=30)
    await fail(ledgers, "$c", retry_class=RetryClass.RETRY, delay_seconds=90)
    summary = await ledgers.journal.pending_summary()
    assert summary.pending == 3
    assert 100 <= summary.oldest_seconds < 110
    assert summary.next_attempt_seconds is not None
    assert 20 < summary.next_attempt_seconds <= 30


async def test_a_source_knows_the_turn_that_holds_it(ledgers: Ledgers) -> None:
    """D2: grouping survives a crash."""
    admitted = await ledgers.hear(source("$a"), source("$b"))
    receipt = receipt_of(admitted, "$a")
    turn = TurnRecord(
        turn_id=TurnId(UUID(int=5)),
        target=MessageTarget(ROOM, None, None),
        requester=ALICE,
        epoch=Epoch(1),
        is_open=True,
        reason=Reason.MENTION,
        generation=1,
        model="m",
        fence=Fence(1),
        opened_at=None,
        sources=(TurnSource(EventId("$a"), receipt, OrderKey(receipt)),),
    )
    async with ledgers.lease.transaction("open_turn") as tx:
        await ledgers.turns.open(tx, turn, config_generation="c")
    page = await ledgers.journal.pending_page(START, 0, held_rooms=[], limit=9)
    assert [(p.event_id, p.open_turn) for p in page] == [("$a", turn.turn_id), ("$b", None)]


async def test_r39_a_reader_skips_no_row_that_is_committed_late(ledgers: Ledgers) -> None:
    """R39: another principal's numbers, committed before ours although drawn after them, hide none of ours."""
    other = await add_principal(ledgers.database, "other")
    lease = await ledgers.keeper.take(other, PrincipalName("other"))
    assert lease is not None
    theirs = Journal(other, ledgers.database)
    async with ledgers.lease.transaction("admit") as mine:
        early = await ledgers.journal.hear(mine, [source("$1")])
        async with lease.transaction("admit") as tx:
            late = await theirs.hear(tx, [source("$1"), source("$2")])
        assert min(late.receipts.values()) > max(early.receipts.values()), (
            "ours are drawn first, theirs committed first"
        )
        seen = await theirs.pending_page(START, 0, held_rooms=[], limit=10)
        assert [s.event_id for s in seen] == ["$1", "$2"]
        assert await ledgers.pending() == []
    after = seen[-1]
    assert await theirs.pending_page(after.order_key, after.receipt, held_rooms=[], limit=10) == []
    assert await ledgers.pending() == ["$1"]


async def test_r39_of_one_principal_later_numbers_are_committed_later(ledgers: Ledgers) -> None:
    """R39, A5: a second commit draws no number while the first is not over, so a cursor may stand at the last."""
    order: list[str] = []

    async def second() -> None:
        async with ledgers.lease.transaction("admit") as tx:
            order.append("second draws")
            await ledgers.journal.hear(tx, [source("$2")])

    async with ledgers.lease.transaction("admit") as tx:
        await ledgers.journal.hear(tx, [source("$1")])
        waiting = asyncio.ensure_future(second())
        for _ in range(20):
            await asyncio.sleep(0)
        order.append("first commits")
    await waiting
    assert order == ["first commits", "second draws"]
    assert await ledgers.pending() == ["$1", "$2"]

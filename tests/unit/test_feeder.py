"""The feeder over a scripted journal: each source is handed out once until it is returned, in order of work."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import cast

from mindroom.bot.feeder import MAX_HELD, MAX_HELD_IN_ROOM, PAGE, SWEEP_SECONDS, TICKS_A_SECOND, Feeder
from mindroom.bot.gate import StartGate
from mindroom.core.clock import TestClock
from mindroom.core.errors import DatabaseUnavailable
from mindroom.core.ids import RoomId
from mindroom.core.metrics import Metrics
from mindroom.core.values import OrderKey
from mindroom.journal.records import PendingSource
from mindroom.journal.rooms import RoomBook
from mindroom.journal.store import Journal, PendingSummary
from tests.unit.test_lanes import calm, source


class Stored:
    """The pending rows, as the statements would read them."""

    def __init__(self) -> None:
        self.rows: dict[int, PendingSource] = {}
        self.due_at: dict[int, float] = {}
        self.clock = TestClock()
        self.failures = 0
        self.reads = 0

    def add(self, *numbers: int, room: str = "!r") -> None:
        self.rows.update({n: source(n, room=room) for n in numbers})

    async def pending_page(
        self, after: OrderKey, after_receipt: int, *, held_rooms: Sequence[RoomId], limit: int
    ) -> list[PendingSource]:
        self.reads += 1
        if self.failures:
            self.failures -= 1
            raise DatabaseUnavailable("scripted")
        later = [r for n, r in sorted(self.rows.items()) if (r.order_key, n) > (after, after_receipt)]
        due = [r for r in later if self.due_at.get(r.receipt, 0.0) <= self.clock.boottime()]
        return [r for r in due if r.room not in held_rooms][:limit]

    async def pending_summary(self) -> PendingSummary:
        waits = [due - self.clock.boottime() for due in self.due_at.values() if due > self.clock.boottime()]
        return PendingSummary(len(self.rows), 0, 0.0, min(waits, default=None))


class Fed:
    """A feeder, what it handed out, and everything around it."""

    def __init__(self) -> None:
        self.stored, self.metrics = Stored(), Metrics()
        self.clock = self.stored.clock
        self.gate = StartGate(RoomBook())
        self.out: list[int] = []
        self.feeder = Feeder(
            cast("Journal", self.stored),
            gate=self.gate,
            put=lambda pending: self.out.append(pending.receipt),
            clock=self.clock,
            metrics=self.metrics,
            name="agent",
        )

    def settle(self, number: int) -> None:
        del self.stored.rows[number]
        self.feeder.settled(source(number).receipt)

    def swept(self) -> float:
        return self.metrics.registry.get_sample_value("mindroom_sweep_found_total", {"kind": "pending"}) or 0.0


@asynccontextmanager
async def feeding(
    *numbers: int, gate_open: bool = True, due_at: Mapping[int, float] | None = None
) -> AsyncIterator[Fed]:
    fed = Fed()
    fed.stored.add(*numbers)
    fed.stored.due_at.update(due_at or {})
    if gate_open:
        fed.gate.open()
    task = asyncio.ensure_future(fed.feeder.run())
    await calm()
    try:
        yield fed
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_b7_nothing_is_read_before_the_gate_opens() -> None:
    async with feeding(1, gate_open=False) as fed:
        assert fed.stored.reads == 0
        fed.gate.open()
        await calm()
        assert fed.out == [1]


async def test_a_source_is_handed_out_once_until_it_is_returned() -> None:
    async with feeding(1, 2) as fed:
        fed.feeder.wake_all()
        await calm()
        assert fed.out == [1, 2]
        fed.feeder.returned(fed.stored.rows[1].receipt, OrderKey(1), 5.0)
        await calm()
        await fed.clock.advance(4)
        await calm()
        assert fed.out == [1, 2]
        await fed.clock.advance(2)
        await calm()
        assert fed.out == [1, 2, 1]


async def test_an_older_key_moves_the_cursor_back() -> None:
    """A gap's sources sort before what was handed out already."""
    async with feeding(10, 11) as fed:
        fed.stored.add(5)
        fed.feeder.wake(OrderKey(5))
        await calm()
        assert fed.out == [10, 11, 5]


async def test_a_held_room_stays_unread_and_comes_when_released() -> None:
    async with feeding() as fed:
        fed.gate.hold_also([RoomId("!held")])
        fed.stored.add(1, room="!held")
        fed.stored.add(2)
        fed.feeder.wake(OrderKey(1))
        await calm()
        assert fed.out == [2]
        fed.gate.hold(frozenset(), gaps=frozenset())
        fed.feeder.wake_all()
        await calm()
        assert fed.out == [2, 1]


async def test_c3_pages_and_memory_are_bounded() -> None:
    """C3: so many receipts are held at a time; the rest comes as they are settled, and never more."""
    async with feeding() as fed:
        for number in range(MAX_HELD + 2 * PAGE):
            fed.stored.add(number, room=f"!{number % 3}")
        fed.feeder.wake_all()
        await calm()
        assert fed.out == list(range(MAX_HELD))
        for number in range(PAGE):
            fed.settle(number)
            await calm()
            assert len(fed.feeder._held) <= MAX_HELD
        assert fed.out == list(range(MAX_HELD + PAGE))


async def test_c3_a_room_that_settles_nothing_leaves_memory_to_others() -> None:
    """C3: ten thousand owed in one room come first and stay; another room's source is handed out, and so is later all
    of the first one, each once."""
    total = 2 * MAX_HELD
    async with feeding() as fed:
        fed.stored.add(*range(1, total + 1), room="!stuck")
        fed.stored.add(total + 1, total + 2, room="!well")
        fed.feeder.wake_all()
        await calm()
        assert fed.out == [*range(1, MAX_HELD_IN_ROOM + 1), total + 1, total + 2]
        fed.stored.add(0, room="!stuck")
        fed.feeder.wake(OrderKey(0))
        await fed.clock.advance(2 * SWEEP_SECONDS)
        await calm()
        assert len(fed.out) == MAX_HELD_IN_ROOM + 2
        assert fed.swept() == 0
        at = 0
        while at < len(fed.out):
            fed.settle(fed.out[at])
            at += 1
            if at % PAGE == 0:
                await calm()
                assert len(fed.feeder._held) <= MAX_HELD_IN_ROOM + 2
        await calm()
        for number in fed.out[at:]:
            fed.settle(number)
        await calm()
        assert sorted(fed.out) == list(range(total + 3))


async def test_c3_any_number_in_back_off_needs_few_timers() -> None:
    """C2, C3: ten thousand that failed one after another within a second; all come back, in few reads."""
    total = 2 * MAX_HELD
    async with feeding() as fed:
        for number in range(total):
            fed.stored.add(number, room=f"!{number % 4}")
            fed.stored.due_at[number] = 30.0 + number / total
            fed.feeder.returned(fed.stored.rows[number].receipt, OrderKey(number), 30.0 + number / total)
        assert len(asyncio.all_tasks()) <= TICKS_A_SECOND + 8
        reads = fed.stored.reads
        await fed.clock.advance(29)
        assert fed.out == []
        for _ in range(22):
            await fed.clock.advance(0.1)
            await calm()
            for number in [n for n in fed.out if n in fed.stored.rows]:
                fed.settle(number)
            await calm()
        assert sorted(fed.out) == list(range(total))
        assert fed.stored.reads - reads < 100
        assert fed.swept() == 0


async def test_c2_an_absent_database_is_asked_again_with_back_off() -> None:
    async with feeding() as fed:
        fed.stored.failures = 5
        fed.stored.add(1)
        fed.feeder.wake(OrderKey(1))
        await calm()
        assert fed.out == []
        await fed.clock.advance(30)
        await calm()
        assert fed.out == [1]


async def test_c2_what_an_earlier_process_put_in_back_off_is_read_when_it_is_due() -> None:
    """Found by the fault programme: without a timer of this process such sources waited for the next event."""
    async with feeding(1, 2, 3, due_at={1: 2.0, 2: 40.0}) as fed:
        assert fed.out == [3]
        await fed.clock.advance(3)
        await calm()
        assert fed.out == [3, 1]
        await fed.clock.advance(40)
        await calm()
        assert fed.out == [3, 1, 2]
        assert fed.swept() == 0


async def test_the_sweep_finds_what_nobody_was_woken_for_and_counts_it() -> None:
    async with feeding(10) as fed:
        fed.stored.add(3)
        await fed.clock.advance(SWEEP_SECONDS + 1)
        await calm()
        assert fed.out == [10, 3]
        assert fed.swept() == 1


async def test_the_sweep_finds_what_is_lost_behind_thousands_that_are_known() -> None:
    """C3: more pages than one lie before it."""
    async with feeding(*range(0, 4 * PAGE, 2)) as fed:
        fed.stored.add(3 * PAGE + 1)
        await fed.clock.advance(SWEEP_SECONDS + 1)
        await calm()
        assert fed.out[-1] == 3 * PAGE + 1
        assert fed.swept() == 1


async def test_the_sweep_counts_nothing_when_all_is_known() -> None:
    async with feeding(10) as fed:
        await fed.clock.advance(5 * SWEEP_SECONDS)
        await calm()
        assert fed.out == [10]
        assert fed.swept() == 0


async def test_a_source_returned_after_the_end_stays_owed() -> None:
    """During a drain nobody feeds any more; giving back is no error."""
    async with feeding(1) as fed:
        pass
    fed.feeder.returned(fed.stored.rows[1].receipt, OrderKey(1), 5.0)
    assert fed.out == [1]


async def test_what_is_told_while_a_page_is_read_is_not_passed_over() -> None:
    """A commit lands behind the cursor but before the end of the page on its way: the next page begins there."""
    async with feeding(10) as fed:
        await calm()
        read = fed.stored.pending_page

        async def slow_page(*args: object, **options: object) -> list[PendingSource]:
            page = await read(*args, **options)  # type: ignore[arg-type]
            if 200 in [row.receipt for row in page] and 50 not in fed.stored.rows:
                fed.stored.add(50)
                fed.feeder.wake(OrderKey(50))
            return page

        fed.stored.pending_page = slow_page  # type: ignore[method-assign, assignment]
        fed.stored.add(200)
        fed.feeder.wake(OrderKey(200))
        await calm()
        assert sorted(fed.out) == [10, 50, 200]

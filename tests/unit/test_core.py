"""Time, back-off, transaction ids and the shortening of answers."""

import asyncio
import random
from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindroom.core.backoff import Backoff, backoff_seconds
from mindroom.core.clock import SystemClock, TestClock
from mindroom.core.ids import DeliveryId, Fence
from mindroom.core.transactions import progress_txn_id, read_txn_id, txn_id
from mindroom.core.values import GAP_PAGE_TOP, OrderKey, Stage
from mindroom.outbox.fitting import CUT_NOTE, smaller


# ---- clock -----------------------------------------------------------------------------------------------------------
async def test_sleepers_wake_at_their_own_moment_in_order() -> None:
    """J1."""
    clock = TestClock()
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.boottime()))

    tasks = [asyncio.create_task(sleeper(name, s)) for name, s in (("late", 5), ("early", 1), ("never", 99))]
    await asyncio.sleep(0)
    start = clock.now()
    await clock.advance(10)
    assert woken == [("early", 1), ("late", 5)]
    assert (clock.boottime(), clock.now() - start) == (10, timedelta(seconds=10))
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_task_that_sleeps_again_is_woken_again_within_one_advance() -> None:
    clock = TestClock()
    beats: list[float] = []

    async def beat() -> None:
        while True:
            await clock.sleep(3)
            beats.append(clock.boottime())

    task = asyncio.create_task(beat())
    await asyncio.sleep(0)
    await clock.advance(10)
    task.cancel()
    assert beats == [3, 6, 9]


async def test_a_cancelled_sleeper_is_forgotten_and_no_time_is_no_wait() -> None:
    clock = TestClock()
    task = asyncio.create_task(clock.sleep(5))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await clock.advance(10)
    await clock.sleep(0)
    await clock.sleep(-1)
    assert clock.boottime() == 10


async def test_the_machines_clock_goes_forward() -> None:
    clock = SystemClock()
    before = clock.boottime()
    await clock.sleep(-1)
    assert clock.boottime() >= before
    assert clock.now().tzinfo is not None


# ---- back-off --------------------------------------------------------------------------------------------------------
@given(st.integers(1, 10_000), st.floats(0.01, 10), st.floats(0.01, 3600), st.integers())
def test_a_wait_lies_between_half_and_the_whole_of_the_doubled_first_one(
    failures: int, first: float, cap: float, seed: int
) -> None:
    """B5: with jitter and a cap, for ever."""
    wait = backoff_seconds(failures, first=first, cap=cap, rng=random.Random(seed))
    whole = min(cap, first * 2.0 ** min(failures - 1, 30))
    assert whole / 2 <= wait <= whole <= cap


def test_success_starts_the_back_off_over() -> None:
    backoff = Backoff(1.0, 100.0, random.Random(0))
    waits = [backoff.next_seconds() for _ in range(10)]
    assert waits[-1] >= 50
    assert backoff.failures == 10
    backoff.reset()
    assert backoff.next_seconds() <= 1


def test_callers_do_not_wait_in_step() -> None:
    waits = {Backoff(1.0, 100.0, random.Random(seed)).next_seconds() for seed in range(20)}
    assert len(waits) == 20


# ---- transaction ids -------------------------------------------------------------------------------------------------
@given(st.uuids(), st.sampled_from([Stage.INITIAL, Stage.FINAL]), st.integers(0, 2**60), st.integers(0, 2**30))
def test_transaction_ids_are_read_as_they_were_written(delivery: UUID, stage: Stage, fence: int, number: int) -> None:
    """E1: the same id at every attempt; progress has one for each edit."""
    key = DeliveryId(delivery)
    assert txn_id(stage, key) == f"{stage.value}.{delivery}"
    assert read_txn_id(txn_id(stage, key)) == (stage, key)
    progress = progress_txn_id(key, fence=Fence(fence), number=number)
    assert read_txn_id(progress) == (Stage.PROGRESS, key)
    assert progress != progress_txn_id(key, fence=Fence(fence), number=number + 1)
    assert len(progress) < 255


@pytest.mark.parametrize(
    "text", ["", ".", "final", "final.", "final.x", "x." + str(UUID(int=1)), f"final.{UUID(int=1)}.1", "m123.4.5.6"]
)
def test_other_transaction_ids_are_not_ours(text: str) -> None:
    assert read_txn_id(text) is None


@given(st.text(max_size=60))
def test_reading_a_transaction_id_never_raises(text: str) -> None:
    read_txn_id(text)


# ---- order -----------------------------------------------------------------------------------------------------------
def test_work_is_ordered_as_a_row() -> None:
    """Recovered before live of the same floor, older pages first."""
    keys = [
        OrderKey(9),
        OrderKey(10, GAP_PAGE_TOP - 1, 5),
        OrderKey(10, GAP_PAGE_TOP, 0),
        OrderKey(10, GAP_PAGE_TOP, 1),
        OrderKey(11),
    ]
    shuffled = random.Random(3).sample(keys, len(keys))
    assert sorted(shuffled) == keys


# ---- fitting ---------------------------------------------------------------------------------------------------------
def test_an_answer_that_is_too_long_loses_its_html_first() -> None:
    """E7."""
    made = {"msgtype": "m.text", "body": "x" * 1000, "format": "html", "formatted_body": "<p>x</p>"}
    assert smaller(made, reference="R1") == {"msgtype": "m.text", "body": "x" * 1000}


def test_then_half_of_its_text_with_a_note_that_says_so_until_nothing_is_left_to_cut() -> None:
    """E7: nothing is cut silently."""
    note = CUT_NOTE.format(reference="R1")
    found = smaller({"body": "x" * 1000, "keep": 1}, reference="R1")
    assert found == {"body": "x" * 500 + note, "keep": 1}
    found = smaller(found, reference="R1")
    assert found == {"body": "x" * 250 + note, "keep": 1}
    assert smaller(found, reference="R1") is None
    assert smaller({}, reference="R1") is None

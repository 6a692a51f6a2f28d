"""core.seams: order, failure and budget of listeners."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from mindroom.core.clock import TestClock
from mindroom.core.seams import BudgetSpent, EventDef, ListenerFault, OnFailure, SeamMode, Seams

Call = Callable[[int], Awaitable[str]]

WRAPPED = EventDef(
    "wrapped", payload=int, result=str, mode=SeamMode.WRAP, on_failure=OnFailure.CLOSED, budget_seconds=10.0
)
TOLD = EventDef(
    "told", payload=str, result=type(None), mode=SeamMode.NOTIFY, on_failure=OnFailure.OPEN, budget_seconds=1.0
)


class Faults(list[tuple[str, ListenerFault]]):
    def count(self, event: str, fault: ListenerFault) -> None:  # type: ignore[override]
        self.append((event, fault))


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def seams(clock: TestClock, faults: Faults) -> Seams:
    return Seams(clock=clock, count_fault=faults.count)


async def as_text(number: int) -> str:
    return str(number)


async def until_sleeping() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_call_without_listeners_is_the_call_itself(seams: Seams) -> None:
    assert await seams.call(WRAPPED, 7, innermost=as_text) == "7"


async def test_the_first_registered_wrap_is_the_outermost(seams: Seams) -> None:
    async def outer(number: int, proceed: Call) -> str:
        return f"outer({await proceed(number + 1)})"

    async def inner(number: int, proceed: Call) -> str:
        return f"inner({await proceed(number * 10)})"

    seams.wrap(WRAPPED, outer)
    seams.wrap(WRAPPED, inner)
    assert await seams.call(WRAPPED, 1, innermost=as_text) == "outer(inner(20))"


async def test_an_error_of_a_wrap_listener_fails_the_call(seams: Seams) -> None:
    async def refuse(number: int, proceed: Call) -> str:
        raise PermissionError

    async def innermost(number: int) -> str:
        raise AssertionError("a refused call ran")

    seams.wrap(WRAPPED, refuse)
    with pytest.raises(PermissionError):
        await seams.call(WRAPPED, 1, innermost=innermost)


async def test_the_budget_clock_stops_inside_the_wrapped_call(seams: Seams, clock: TestClock) -> None:
    async def thinks_for_eight_seconds(number: int, proceed: Call) -> str:
        await clock.sleep(4)
        answer = await proceed(number)
        await clock.sleep(4)
        return answer

    async def takes_an_hour(number: int) -> str:
        await clock.sleep(3600)
        return str(number)

    seams.wrap(WRAPPED, thinks_for_eight_seconds)
    call = asyncio.ensure_future(seams.call(WRAPPED, 1, innermost=takes_an_hour))
    for seconds in (4, 3600, 4):
        await until_sleeping()
        await clock.advance(seconds)
    assert await call == "1"


async def test_a_wrap_listener_over_its_budget_is_interrupted_and_fails_the_call(
    seams: Seams, clock: TestClock
) -> None:
    async def dawdles(number: int, proceed: Call) -> str:
        answer = await proceed(number)
        await clock.sleep(11)
        return answer

    seams.wrap(WRAPPED, dawdles)
    call = asyncio.ensure_future(seams.call(WRAPPED, 1, innermost=as_text))
    await until_sleeping()
    await clock.advance(10)
    with pytest.raises(BudgetSpent) as caught:
        await call
    assert caught.value.code == "budget"


async def test_time_before_and_after_the_wrapped_call_adds_up(seams: Seams, clock: TestClock) -> None:
    async def thinks_twice(number: int, proceed: Call) -> str:
        await clock.sleep(6)
        await proceed(number)
        await clock.sleep(6)
        return "done"

    seams.wrap(WRAPPED, thinks_twice)
    call = asyncio.ensure_future(seams.call(WRAPPED, 1, innermost=as_text))
    await until_sleeping()
    await clock.advance(6)
    await until_sleeping()
    await clock.advance(4)
    with pytest.raises(BudgetSpent):
        await call


async def test_cancellation_from_outside_stays_a_cancellation(seams: Seams, clock: TestClock) -> None:
    async def passes(number: int, proceed: Call) -> str:
        return await proceed(number)

    async def hangs(number: int) -> str:
        await asyncio.Event().wait()
        return ""

    seams.wrap(WRAPPED, passes)
    call = asyncio.ensure_future(seams.call(WRAPPED, 1, innermost=hangs))
    await until_sleeping()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_no_task_is_left_behind_by_a_budget(seams: Seams) -> None:
    async def passes(number: int, proceed: Call) -> str:
        return await proceed(number)

    seams.wrap(WRAPPED, passes)
    await seams.call(WRAPPED, 1, innermost=as_text)
    await until_sleeping()
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_notify_tells_every_listener_in_order(seams: Seams) -> None:
    heard: list[str] = []
    seams.listen(TOLD, lambda word: heard.append(f"first {word}"))
    seams.listen(TOLD, lambda word: heard.append(f"second {word}"))
    seams.notify(TOLD, "hello")
    assert heard == ["first hello", "second hello"]


def test_a_failing_notify_listener_is_counted_and_the_rest_are_told(seams: Seams, faults: Faults) -> None:
    heard: list[str] = []

    def fails(word: str) -> None:
        raise RuntimeError(word)

    seams.listen(TOLD, fails)
    seams.listen(TOLD, heard.append)
    seams.notify(TOLD, "hello")
    assert heard == ["hello"]
    assert faults == [("told", ListenerFault.ERROR)]


def test_a_slow_notify_listener_is_counted(faults: Faults) -> None:
    class Dragging(TestClock):
        seconds = 0.0

        def boottime(self) -> float:
            self.seconds += 2.0
            return self.seconds

    seams = Seams(clock=Dragging(), count_fault=faults.count)
    seams.listen(TOLD, lambda _: None)
    seams.notify(TOLD, "hello")
    assert faults == [("told", ListenerFault.OVER_BUDGET)]


@pytest.mark.parametrize(("mode", "on_failure"), [(SeamMode.WRAP, OnFailure.OPEN), (SeamMode.NOTIFY, OnFailure.CLOSED)])
def test_what_decides_must_fail_closed_and_what_is_told_open(mode: SeamMode, on_failure: OnFailure) -> None:
    with pytest.raises(ValueError, match="odd"):
        EventDef("odd", payload=int, result=str, mode=mode, on_failure=on_failure, budget_seconds=None)


def test_an_event_is_used_in_its_own_mode_only(seams: Seams) -> None:
    with pytest.raises(ValueError, match="wrapped is a wrap event"):
        seams.notify(WRAPPED, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="told is a notify event"):
        seams.wrap(TOLD, None)  # type: ignore[arg-type]

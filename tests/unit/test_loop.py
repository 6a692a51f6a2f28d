"""responses.loop: one answer out of model attempts, with retry as the first listener."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindroom.core.clock import TestClock
from mindroom.core.errors import ModelFailure, ModelFailureKind, RetryClass
from mindroom.core.ids import TurnId
from mindroom.core.ports import ModelDone, ModelEvent, ModelRequest, PromptMessage, TextDelta
from mindroom.core.seams import Call, ListenerFault, Seams
from mindroom.responses.loop import (
    MAX_WAIT_SECONDS,
    MODEL_ATTEMPT,
    TEXT_ADDED,
    TEXT_RESTARTED,
    LoopRequest,
    ModelAttempt,
    RetryListener,
    RunKey,
    StepResult,
    TextAdded,
    TextRestarted,
    run_loop,
    wait_seconds,
    worth_repeating,
)

RUN = RunKey(TurnId(UUID(int=1)), generation=1)
REQUEST = LoopRequest(RUN, ModelRequest("main", (PromptMessage("user", "hi"),)))
DONE = ModelDone("m-1", 11, 7)
HELLO = (TextDelta("Hel"), TextDelta("lo"), DONE)
Script = Sequence[ModelEvent | ModelFailure]


class ScriptedPort:
    """Plays one script an attempt; the last is repeated."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = scripts
        self.attempts = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        assert request == REQUEST.model
        script = self.scripts[min(self.attempts, len(self.scripts) - 1)]
        self.attempts += 1
        for item in script:
            if isinstance(item, ModelFailure):
                raise item
            yield item


class HangingPort:
    """Speaks once, then never again; knows whether its stream was left."""

    def __init__(self) -> None:
        self.left = False

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        yield TextDelta("I was saying")
        try:
            await asyncio.Event().wait()
        finally:
            self.left = True


class World:
    """Seams with retry and a listener that writes down what people would see."""

    def __init__(self) -> None:
        self.clock = TestClock()
        self.faults: list[tuple[str, ListenerFault]] = []
        self.failures: list[ModelFailureKind] = []
        self.shown: list[str | None] = []
        self.seams = Seams(clock=self.clock, count_fault=lambda event, fault: self.faults.append((event, fault)))
        self.seams.wrap(
            MODEL_ATTEMPT,
            RetryListener(clock=self.clock, rng=random.Random(7), count_failure=self.failures.append),
        )
        self.seams.listen(TEXT_ADDED, self._added)
        self.seams.listen(TEXT_RESTARTED, self._restarted)

    def _added(self, event: TextAdded) -> None:
        assert event.run == RUN
        self.shown.append(event.text)

    def _restarted(self, event: TextRestarted) -> None:
        assert event.run == RUN
        self.shown.append(None)

    async def answer(self, port: ScriptedPort) -> StepResult:
        """Run the loop, moving the clock in quarter seconds while it waits."""
        run = asyncio.ensure_future(run_loop(REQUEST, port=port, seams=self.seams))
        while not run.done():
            await settle()
            if not run.done():
                await self.clock.advance(0.25)
        return await run


async def settle() -> None:
    """Let everything run that waits for neither clock nor network."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def world() -> World:
    return World()


def failed(kind: ModelFailureKind, *, retry_after_seconds: float | None = None) -> ModelFailure:
    return ModelFailure(kind, status=1, retry_after_seconds=retry_after_seconds)


async def test_the_answer_is_the_whole_text_with_the_providers_counts(world: World) -> None:
    result = await world.answer(ScriptedPort(HELLO))
    assert result == StepResult("Hello", 11, 7, "m-1")
    assert world.shown == ["Hel", "lo"]


@pytest.mark.parametrize("kind", ["network", "timeout", "rate_limited", "server"])
async def test_a_passing_failure_before_any_text_is_repeated_and_nobody_sees_it(world: World, kind: str) -> None:
    port = ScriptedPort((failed(ModelFailureKind(kind)),), (failed(ModelFailureKind(kind)),), HELLO)
    assert (await world.answer(port)).canonical_text == "Hello"
    assert port.attempts == 3
    assert world.shown == ["Hel", "lo"]
    assert world.failures == [ModelFailureKind(kind)] * 2


async def test_after_three_attempts_the_failure_is_the_runs_and_the_work_stays_owed_c2(world: World) -> None:
    port = ScriptedPort((failed(ModelFailureKind.SERVER),))
    with pytest.raises(ModelFailure) as caught:
        await world.answer(port)
    assert port.attempts == 3
    assert caught.value.retry_class is RetryClass.RETRY
    assert world.failures == [ModelFailureKind.SERVER] * 3


@pytest.mark.parametrize("kind", ["auth", "context_length", "bad_request", "unknown"])
async def test_what_seconds_cannot_heal_is_not_repeated(world: World, kind: str) -> None:
    port = ScriptedPort((failed(ModelFailureKind(kind)),), HELLO)
    with pytest.raises(ModelFailure):
        await world.answer(port)
    assert port.attempts == 1


async def test_the_wait_a_provider_asks_for_is_kept(world: World) -> None:
    port = ScriptedPort((failed(ModelFailureKind.RATE_LIMITED, retry_after_seconds=15),), HELLO)
    await world.answer(port)
    assert 15 <= world.clock.boottime() <= 15.5


async def test_a_wait_that_is_too_long_for_the_loop_is_left_to_the_turn(world: World) -> None:
    port = ScriptedPort((failed(ModelFailureKind.RATE_LIMITED, retry_after_seconds=MAX_WAIT_SECONDS + 1),), HELLO)
    with pytest.raises(ModelFailure) as caught:
        await world.answer(port)
    assert port.attempts == 1
    assert caught.value.retry_after_seconds == MAX_WAIT_SECONDS + 1


async def test_an_attempt_that_breaks_after_text_is_repeated_once_and_presentation_starts_over(world: World) -> None:
    port = ScriptedPort((TextDelta("Hel"), failed(ModelFailureKind.NETWORK)), HELLO)
    assert (await world.answer(port)).canonical_text == "Hello"
    assert world.shown == ["Hel", None, "Hel", "lo"]


async def test_an_answer_starts_over_at_most_once(world: World) -> None:
    port = ScriptedPort((TextDelta("Hel"), failed(ModelFailureKind.NETWORK)))
    with pytest.raises(ModelFailure):
        await world.answer(port)
    assert port.attempts == 2


@pytest.mark.parametrize("script", [(DONE,), (TextDelta(" \n"), DONE), (TextDelta("cut off"),), ()])
async def test_an_empty_or_unended_answer_is_a_counted_failure_and_no_fact(world: World, script: Script) -> None:
    port = ScriptedPort(script)
    with pytest.raises(ModelFailure) as caught:
        await world.answer(port)
    assert caught.value.kind is ModelFailureKind.UNKNOWN
    assert caught.value.retry_class is RetryClass.PERMANENT
    assert port.attempts == 1


async def test_a_broken_presentation_never_breaks_the_answer(world: World) -> None:
    def breaks(event: TextAdded) -> None:
        raise RuntimeError

    world.seams.listen(TEXT_ADDED, breaks)
    assert (await world.answer(ScriptedPort(HELLO))).canonical_text == "Hello"
    assert world.faults == [("text_added", ListenerFault.ERROR)] * 2


async def test_cancellation_ends_the_stream_at_once_and_is_not_repeated(world: World) -> None:
    port = HangingPort()
    run = asyncio.ensure_future(run_loop(REQUEST, port=port, seams=world.seams))
    await settle()
    assert world.shown == ["I was saying"]
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert port.left
    assert world.failures == []


async def test_cancellation_ends_a_wait_between_attempts(world: World) -> None:
    port = ScriptedPort((failed(ModelFailureKind.SERVER),))
    run = asyncio.ensure_future(run_loop(REQUEST, port=port, seams=world.seams))
    await settle()
    assert world.failures == [ModelFailureKind.SERVER]
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert port.attempts == 1


async def test_a_listener_after_retry_stands_round_each_attempt(world: World) -> None:
    seen: list[ModelRequest] = []

    async def watch(attempt: ModelAttempt, proceed: Call[ModelAttempt, StepResult]) -> StepResult:
        seen.append(attempt.request)
        return await proceed(attempt)

    world.seams.wrap(MODEL_ATTEMPT, watch)
    await world.answer(ScriptedPort((failed(ModelFailureKind.SERVER),), HELLO))
    assert seen == [REQUEST.model] * 2


async def test_without_listeners_a_failure_is_raised_as_it_is() -> None:
    seams = Seams(clock=TestClock(), count_fault=lambda event, fault: None)
    with pytest.raises(ModelFailure):
        await run_loop(REQUEST, port=ScriptedPort((failed(ModelFailureKind.SERVER),)), seams=seams)


@given(st.integers(1, 40), st.one_of(st.none(), st.floats(0, MAX_WAIT_SECONDS)), st.floats(0, 1))
def test_waits_grow_within_bounds_and_never_undercut_the_provider(
    attempt_number: int, asked: float | None, jitter: float
) -> None:
    wait = wait_seconds(attempt_number, asked_seconds=asked, jitter=jitter)
    assert 0.5 <= wait <= MAX_WAIT_SECONDS
    assert wait >= (asked or 0)
    assert wait <= wait_seconds(attempt_number + 1, asked_seconds=asked, jitter=jitter)


@given(st.sampled_from(ModelFailureKind), st.integers(1, 10), st.booleans())
def test_repeating_always_ends(kind: ModelFailureKind, attempt_number: int, streamed: bool) -> None:
    if worth_repeating(failed(kind), attempt_number=attempt_number, streamed=streamed):
        assert attempt_number < (2 if streamed else 3)
        assert failed(kind).retry_class is RetryClass.RETRY


@pytest.mark.parametrize("error", [None, ValueError(), asyncio.CancelledError()])
def test_only_model_failures_are_repeated(error: BaseException | None) -> None:
    assert not worth_repeating(error, attempt_number=1, streamed=False)

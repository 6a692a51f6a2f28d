"""The one model loop: runs model steps through the seams until a step is the answer.

A step is a fact only when it is complete; text on the way is shown (`text_added`) but never kept. Permission, retry,
compaction and presentation are listeners, so this module knows none of them except the retry it brings along. It must
never call a provider except through ModelPort, nor a room, a table or a clock except through what it is given.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tenacity import AsyncRetrying, RetryCallState

from mindroom.core.clock import Clock
from mindroom.core.errors import ModelFailure, ModelFailureKind
from mindroom.core.ids import TurnId
from mindroom.core.ports import ModelDone, ModelPort, ModelRequest, TextDelta
from mindroom.core.seams import Call, EventDef, OnFailure, SeamMode, Seams


@dataclass(frozen=True, slots=True)
class RunKey:
    """Which run a model event belongs to."""

    turn: TurnId
    generation: int


@dataclass(frozen=True, slots=True)
class LoopRequest:
    """What one run asks of a model."""

    run: RunKey
    model: ModelRequest


@dataclass(frozen=True, slots=True)
class StepResult:
    """A completed model step, ready to be stored. Tokens are the provider's counts, of the attempt that succeeded."""

    canonical_text: str
    input_tokens: int
    output_tokens: int
    model_id: str


@dataclass(frozen=True, slots=True)
class TextAdded:
    """The model wrote `text` after what it wrote before."""

    run: RunKey
    text: str


@dataclass(frozen=True, slots=True)
class TextRestarted:
    """Forget the text of the running step: another attempt writes it anew."""

    run: RunKey


class StepText:
    """The text of the running step, announced as it grows."""

    def __init__(self, run: RunKey, *, seams: Seams) -> None:
        self._run = run
        self._seams = seams
        self._parts: list[str] = []

    @property
    def streamed(self) -> bool:
        """True once a piece of the current attempt was announced."""
        return bool(self._parts)

    def begin(self) -> None:
        """A new attempt starts from nothing."""
        if self._parts:
            self._parts.clear()
            self._seams.notify(TEXT_RESTARTED, TextRestarted(self._run))

    def add(self, text: str) -> None:
        """Append and announce a piece."""
        self._parts.append(text)
        self._seams.notify(TEXT_ADDED, TextAdded(self._run, text))

    def whole(self) -> str:
        """All of it."""
        return "".join(self._parts)


@dataclass(frozen=True, slots=True)
class ModelAttempt:
    """Payload of `model_attempt`: the request, and the text of its step for who must know whether any was shown."""

    request: ModelRequest
    text: StepText


MAX_ATTEMPTS: Final = 3
"""Attempts a step, the first included; what fails beyond is owed and tried again by the turn (C2)."""
MAX_ATTEMPTS_AFTER_TEXT: Final = 2
"""Once text was shown a failed attempt is repeated at most up to this attempt: readers see the answer start over."""
MAX_WAIT_SECONDS: Final = 20.0
"""A provider that asks for more than this is left alone: the turn's own back-off is the place for long waits."""
FIRST_WAIT_SECONDS: Final = 1.0

MODEL_ATTEMPT: Final = EventDef(
    "model_attempt",
    payload=ModelAttempt,
    result=StepResult,
    mode=SeamMode.WRAP,
    on_failure=OnFailure.CLOSED,
    budget_seconds=MAX_ATTEMPTS * MAX_WAIT_SECONDS,
)
TEXT_ADDED: Final = EventDef(
    "text_added",
    payload=TextAdded,
    result=type(None),
    mode=SeamMode.NOTIFY,
    on_failure=OnFailure.OPEN,
    budget_seconds=0.05,
)
TEXT_RESTARTED: Final = EventDef(
    "text_restarted",
    payload=TextRestarted,
    result=type(None),
    mode=SeamMode.NOTIFY,
    on_failure=OnFailure.OPEN,
    budget_seconds=0.05,
)


async def run_loop(request: LoopRequest, *, port: ModelPort, seams: Seams) -> StepResult:
    """The step that is the answer. Without tools the first completed step is it.

    Raises ModelFailure when the attempts are used up, and passes cancellation on at once. An answer without any
    visible character, or a stream without its end, is ModelFailure of kind UNKNOWN: it is counted against the source
    like any permanent error, so that a model that never speaks is parked with a notice and not asked for ever.
    """
    return await _step(request.model, text=StepText(request.run, seams=seams), port=port, seams=seams)


async def _step(model: ModelRequest, *, text: StepText, port: ModelPort, seams: Seams) -> StepResult:
    async def attempt(payload: ModelAttempt) -> StepResult:
        return await _attempt(payload, port=port)

    return await seams.call(MODEL_ATTEMPT, ModelAttempt(model, text), innermost=attempt)


async def _attempt(attempt: ModelAttempt, *, port: ModelPort) -> StepResult:
    attempt.text.begin()
    done: ModelDone | None = None
    async for event in port.stream(attempt.request):
        match event:
            case TextDelta(text) if text:
                attempt.text.add(text)
            case ModelDone():
                done = event
    whole = attempt.text.whole()
    if done is None or not whole.strip():
        raise ModelFailure(ModelFailureKind.UNKNOWN)
    return StepResult(whole, done.input_tokens, done.output_tokens, done.model_id)


RETRIED_IN_PLACE: Final = frozenset(
    {
        ModelFailureKind.NETWORK,
        ModelFailureKind.TIMEOUT,
        ModelFailureKind.RATE_LIMITED,
        ModelFailureKind.SERVER,
    }
)
"""A refused key is retryable too, but by the turn: nobody replaces a key within seconds."""


class RetryListener:
    """Repeats failed attempts with growing, jittered waits; the first listener of `model_attempt`.

    `count_failure` is told of each failed attempt, repeated or not.
    """

    def __init__(self, *, clock: Clock, rng: random.Random, count_failure: Callable[[ModelFailureKind], None]) -> None:
        self._clock = clock
        self._rng = rng
        self._count_failure = count_failure

    async def __call__(self, attempt: ModelAttempt, proceed: Call[ModelAttempt, StepResult]) -> StepResult:
        """Raises the ModelFailure of the last attempt."""

        async def once() -> StepResult:
            try:
                return await proceed(attempt)
            except ModelFailure as failure:
                self._count_failure(failure.kind)
                raise

        def again(state: RetryCallState) -> bool:
            return worth_repeating(_failure(state), attempt_number=state.attempt_number, streamed=attempt.text.streamed)

        retrying = AsyncRetrying(sleep=self._clock.sleep, retry=again, wait=self._wait_seconds, reraise=True)
        return await retrying(once)

    def _wait_seconds(self, state: RetryCallState) -> float:
        failure = _failure(state)
        asked = failure.retry_after_seconds if isinstance(failure, ModelFailure) else None
        return wait_seconds(state.attempt_number, asked_seconds=asked, jitter=self._rng.random())


def worth_repeating(failure: BaseException | None, *, attempt_number: int, streamed: bool) -> bool:
    """Whether another attempt follows attempt `attempt_number` (from 1), which ended with `failure` or well (None)."""
    return (
        isinstance(failure, ModelFailure)
        and failure.kind in RETRIED_IN_PLACE
        and attempt_number < (MAX_ATTEMPTS_AFTER_TEXT if streamed else MAX_ATTEMPTS)
        and (failure.retry_after_seconds or 0.0) <= MAX_WAIT_SECONDS
    )


def wait_seconds(attempt_number: int, *, asked_seconds: float | None, jitter: float) -> float:
    """Wait after attempt `attempt_number`: 1 s, 2 s, 4 s … within ±50 % by `jitter` in 0..1, never less than asked."""
    own = FIRST_WAIT_SECONDS * 2.0 ** (attempt_number - 1) * (0.5 + jitter)
    return min(MAX_WAIT_SECONDS, max(own, asked_seconds or 0.0))


def _failure(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome is not None else None

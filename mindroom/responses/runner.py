"""ResponseRunner: answers one batch under the conversation's lock: authorize, open or adopt the turn, run, hand off.

The caller holds the ResponseLifecycleKey lock. A crash anywhere before `hand_off` leaves the sources pending; the next
run finds the open turn, adopts its placeholder and goes on in the same generation (D2).
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from mindroom.core.cancel import CancelScope
from mindroom.core.clock import Clock
from mindroom.core.errors import (
    DependencyError,
    MatrixDeliveryFailure,
    ModelFailure,
    RetryClass,
    TransactionRefused,
)
from mindroom.core.ids import EventId
from mindroom.core.metrics import Metrics
from mindroom.core.ports import DeliveryGateway, WirePayload
from mindroom.core.values import Stage
from mindroom.outbox.fitting import freeze_fitting
from mindroom.outbox.records import DeliveryKey, answer_delivery_id
from mindroom.responses.answer import answered, failed, reference
from mindroom.responses.assembly import Responder, ResponseIntent
from mindroom.responses.attempt import ResponseAttemptRunner
from mindroom.responses.loop import RunKey
from mindroom.responses.payload import ResponsePayloadPreparer
from mindroom.responses.streaming import AnswerStream, Streaming
from mindroom.responses.transitions import Answer, TurnTransitions, new_turn_id
from mindroom.responses.working import WorkingSigns
from mindroom.turnstore.record import TurnRecord, TurnSource

log = structlog.get_logger(__name__)

STILL_TRYING_AFTER_SECONDS = 60.0
"""From then on a visible placeholder says that we are still trying (C2)."""


@dataclass(frozen=True, slots=True)
class ResponseRunner:
    """Runs answers of one principal."""

    responder: Responder
    transitions: TurnTransitions
    payloads: ResponsePayloadPreparer
    attempts: ResponseAttemptRunner
    streaming: Streaming
    signs: WorkingSigns
    gateway: DeliveryGateway
    clock: Clock
    metrics: Metrics
    draw_bytes: Callable[[int], bytes] = os.urandom

    async def run(self, intent: ResponseIntent, *, scope: CancelScope) -> None:
        """Answer the batch. Raises TransactionRefused when it is no longer owed as it stands, and DependencyError
        when something is not there now; in both cases the sources stay where they are."""
        task = asyncio.current_task()
        if task is not None:
            scope.attach(task)
        started = self.clock.boottime()
        turn = await self._turn(intent)
        stream = await self._stream(turn)
        try:
            async with self.signs.shown(turn.target, anchor=turn.anchor.event_id):
                answer = await self._answer(turn, intent, stream, started)
                await self.streaming.close(stream)
                wire = await self._freeze(turn, answer, stream.event)
                await self.transitions.hand_off(turn, answer, wire=wire, edits=stream.event)
        except DependencyError as error:
            if error.retry_class is RetryClass.RETRY:
                await self._say_still_trying(turn, stream)
            raise
        finally:
            await self.streaming.close(stream)
        self.metrics.turn_seconds.labels(answer.outcome).observe(self.clock.boottime() - started)
        log.info("turn_closed", turn_id=str(turn.turn_id), outcome=answer.outcome, sources=len(turn.sources))

    async def _turn(self, intent: ResponseIntent) -> TurnRecord:
        """The open turn that holds the sources, or a new one."""
        if intent.turn is not None:
            turn = await self.transitions.turns.require(intent.turn)
            if not turn.is_open:
                raise TransactionRefused("resume_turn", "the turn has ended")
            await self.transitions.resume(turn)
            return await self.transitions.join(turn, _sources(intent))
        turn = TurnRecord(
            turn_id=new_turn_id(int(self.clock.now().timestamp() * 1000), self.draw_bytes(10)),
            target=intent.target,
            requester=intent.requester,
            epoch=intent.epoch,
            is_open=True,
            reason=intent.reason,
            generation=1,
            model=self.responder.model,
            fence=self.transitions.lease.fence,
            opened_at=None,
            sources=_sources(intent),
        )
        await self.transitions.open_turn(turn)
        return turn

    def _initial(self, turn: TurnRecord) -> DeliveryKey:
        return DeliveryKey(answer_delivery_id(turn.turn_id, turn.generation), Stage.INITIAL)

    async def _stream(self, turn: TurnRecord) -> AnswerStream:
        """Begin presentation, before a placeholder can be there; a resumed turn adopts the one that stands already."""
        key, visible = self._initial(turn), None
        if turn.opened_at is not None:
            row = await self.transitions.outbox.load(key)
            visible = row.acked_event if row is not None else None
        run = RunKey(turn.turn_id, turn.generation)
        return self.streaming.open(run, delivery=key.delivery, target=turn.target, epoch=turn.epoch, visible=visible)

    async def _answer(self, turn: TurnRecord, intent: ResponseIntent, stream: AnswerStream, started: float) -> Answer:
        request = await self.payloads.prepare(stream.run, intent)
        try:
            step = await self.attempts.run(request)
        except ModelFailure as failure:
            if failure.retry_class is RetryClass.RETRY:
                raise
            log.warning("model_refused", turn_id=str(turn.turn_id), kind=failure.kind.value)
            return failed(turn, failure, run_seconds=self.clock.boottime() - started)
        first_text = None if stream.first_text_at is None else stream.first_text_at - started
        return answered(
            turn,
            self.responder,
            step,
            run_seconds=self.clock.boottime() - started,
            first_text_seconds=first_text,
        )

    async def _freeze(self, turn: TurnRecord, answer: Answer, visible: EventId | None) -> WirePayload | None:
        """The FINAL as it will go out if the placeholder stands as we see it; None leaves freezing to the worker."""
        try:
            return await freeze_fitting(
                self.gateway,
                answer.content,
                key=DeliveryKey(answer_delivery_id(turn.turn_id, turn.generation), Stage.FINAL),
                room=turn.target.room,
                edits=visible,
                notify=answer.notify,
                reference=str(turn.turn_id),
            )
        except MatrixDeliveryFailure:
            return None

    async def _say_still_trying(self, turn: TurnRecord, stream: AnswerStream) -> None:
        if turn.opened_at is None:
            return
        waited = (self.clock.now() - turn.opened_at).total_seconds()
        if waited >= STILL_TRYING_AFTER_SECONDS:
            await self.streaming.tell(stream, f"still trying ({reference(turn.turn_id)})")


def _sources(intent: ResponseIntent) -> tuple[TurnSource, ...]:
    return tuple(TurnSource(source.event_id, source.receipt, source.order_key) for source in intent.sources)

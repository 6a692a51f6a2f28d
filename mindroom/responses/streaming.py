"""Presentation of running answers: the draft of each, its progress edits, and what an INITIAL says (E8, E11).

Listens to the model loop through the seams and to the outbox for visible placeholders. Nothing here is durable: after a
crash the placeholder is adopted and the next run edits it again.
"""

import asyncio
from dataclasses import dataclass, field

import structlog

from mindroom.core.clock import Clock
from mindroom.core.content import DeliveryMarker, JsonObject, as_edit, message_content
from mindroom.core.errors import DependencyError, MatrixDeliveryFailure
from mindroom.core.ids import DeliveryId, Epoch, EventId, Fence, TurnId
from mindroom.core.markdown import render
from mindroom.core.metrics import Metrics
from mindroom.core.ports import DeliveryGateway, OutgoingEvent
from mindroom.core.seams import Seams
from mindroom.core.transactions import progress_txn_id
from mindroom.core.values import MessageTarget, Stage
from mindroom.db.lease import Lease
from mindroom.outbox.gate import Permission, SendGate
from mindroom.outbox.limits import SendLimits
from mindroom.outbox.records import Purpose
from mindroom.responses.cadence import DEFAULT_CADENCE, EditProgress, wait_seconds
from mindroom.responses.loop import TEXT_ADDED, TEXT_RESTARTED, RunKey, TextAdded, TextRestarted

log = structlog.get_logger(__name__)

WORKING = "⋯"
"""What an INITIAL says without text, and how every progress text ends."""
IN_FLIGHT_PATIENCE_SECONDS = 5.0
"""hand_off waits this long for a progress edit that is on its way (E11)."""
TOLD_SECONDS = 3600.0


def initial_content(
    *, turn: TurnId, generation: int, delivery: DeliveryId, target: MessageTarget, text: str = ""
) -> JsonObject:
    """The placeholder: it mentions nobody and is no prompt for anybody (E8)."""
    return _working_content(Stage.INITIAL, turn, generation, delivery, target, text)


def _working_content(
    stage: Stage, turn: TurnId, generation: int, delivery: DeliveryId, target: MessageTarget, text: str
) -> JsonObject:
    rendered = render(text, mentions={})
    return message_content(
        msgtype="m.notice",
        body=f"{rendered.body} {WORKING}" if text else WORKING,
        html=f"{rendered.html} {WORKING}" if text and rendered.html else None,
        mentions=(),
        marker=DeliveryMarker(delivery, turn, generation, stage),
        target=target,
    )


@dataclass(eq=False)
class AnswerStream:
    """One running answer as the room sees it grow."""

    run: RunKey
    delivery: DeliveryId
    target: MessageTarget
    epoch: Epoch
    event: EventId | None = None
    text: str = ""
    first_text_at: float | None = None
    shown_characters: int = 0
    edits: int = 0
    last_edit_at: float = 0.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    in_flight: asyncio.Future[None] | None = None


class Streaming:
    """All running answers of one principal; PresentationPort of its outbox."""

    def __init__(
        self,
        lease: Lease,
        *,
        gateway: DeliveryGateway,
        gate: SendGate,
        limits: SendLimits,
        seams: Seams,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._lease = lease
        self._gateway = gateway
        self._gate = gate
        self._limits = limits
        self._clock = clock
        self._metrics = metrics
        self._by_run: dict[RunKey, AnswerStream] = {}
        self._by_delivery: dict[DeliveryId, AnswerStream] = {}
        self._last_number = 0
        self._told: dict[DeliveryId, float] = {}
        seams.listen(TEXT_ADDED, self._text_added)
        seams.listen(TEXT_RESTARTED, self._text_restarted)

    # ---- PresentationPort ------------------------------------------------------------------------------------------
    def draft_content(self, delivery: DeliveryId) -> JsonObject | None:
        """The INITIAL with the text so far."""
        stream = self._by_delivery.get(delivery)
        if stream is None or not stream.text:
            return None
        stream.shown_characters = len(stream.text)
        return initial_content(
            turn=stream.run.turn,
            generation=stream.run.generation,
            delivery=delivery,
            target=stream.target,
            text=stream.text,
        )

    def is_being_written(self, delivery: DeliveryId) -> bool:
        """True from the run's beginning until its progress has ended."""
        return delivery in self._by_delivery

    def initial_visible(self, delivery: DeliveryId, event: EventId) -> None:
        """Progress edits may begin."""
        stream = self._by_delivery.get(delivery)
        if stream is not None and stream.event is None:
            stream.event = event
            stream.last_edit_at = self._clock.boottime()
            stream.task = asyncio.get_running_loop().create_task(self._show_progress(stream))

    # ---- one answer ------------------------------------------------------------------------------------------------
    def open(
        self, run: RunKey, *, delivery: DeliveryId, target: MessageTarget, epoch: Epoch, visible: EventId | None
    ) -> AnswerStream:
        """A run begins; `visible` is its placeholder when a crashed run left one (D2)."""
        stream = AnswerStream(run, delivery, target, epoch)
        self._by_run[run] = self._by_delivery[delivery] = stream
        if visible is not None:
            self.initial_visible(delivery, visible)
        return stream

    async def close(self, stream: AnswerStream) -> None:
        """No more progress; waits a little for an edit that is on its way (E11)."""
        is_open = self._by_run.pop(stream.run, None) is not None
        self._by_delivery.pop(stream.delivery, None)
        await self._end_progress(stream)
        if is_open and stream.task is not None:
            self._metrics.edits_per_answer.observe(stream.edits)

    async def _end_progress(self, stream: AnswerStream) -> None:
        patience = asyncio.ensure_future(self._clock.sleep(IN_FLIGHT_PATIENCE_SECONDS))
        try:
            if stream.in_flight is not None:
                await asyncio.wait({stream.in_flight, patience}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            patience.cancel()
            # Also when we are cancelled while waiting: nothing may write into this answer any more.
            if stream.task is not None:
                stream.task.cancel()
                await asyncio.gather(stream.task, return_exceptions=True)

    async def tell(self, stream: AnswerStream, text: str) -> None:
        """Replace the visible placeholder's text by a sentence of ours, once an hour until other text is shown (C2).

        Without a placeholder nothing happens; the run has failed, so its progress ends first.
        """
        now = self._clock.boottime()
        self._told = {delivery: at for delivery, at in self._told.items() if now - at < TOLD_SECONDS}
        if stream.event is not None and stream.delivery not in self._told:
            self._told[stream.delivery] = now
            await self._end_progress(stream)
            await self._edit(stream, text)

    # ---- listeners -------------------------------------------------------------------------------------------------
    def _text_added(self, added: TextAdded) -> None:
        stream = self._by_run.get(added.run)
        if stream is None:
            return
        if stream.first_text_at is None:
            stream.first_text_at = self._clock.boottime()
        stream.text += added.text
        stream.changed.set()

    def _text_restarted(self, restarted: TextRestarted) -> None:
        stream = self._by_run.get(restarted.run)
        if stream is not None:
            stream.text = ""
            stream.shown_characters = 0

    # ---- progress --------------------------------------------------------------------------------------------------
    async def _show_progress(self, stream: AnswerStream) -> None:
        while stream.edits < DEFAULT_CADENCE.max_edits:
            now = self._clock.boottime()
            wait = wait_seconds(
                EditProgress(
                    elapsed_seconds=now - (stream.first_text_at or now),
                    since_last_edit_seconds=now - stream.last_edit_at,
                    new_characters=len(stream.text) - stream.shown_characters,
                    edits=stream.edits,
                )
            )
            if wait is None:
                stream.changed.clear()
                await stream.changed.wait()
            elif (wait := max(wait, self._limits.progress_seconds)) > 0:
                await self._clock.sleep(wait)
            else:
                self._told.pop(stream.delivery, None)
                await self._edit(stream, stream.text)

    async def _edit(self, stream: AnswerStream, text: str) -> None:
        """One progress edit; what a failed one was to show comes with the next, which is newer (E5)."""
        shown_before = stream.shown_characters
        stream.edits += 1
        stream.last_edit_at = self._clock.boottime()
        stream.shown_characters = len(stream.text)
        stream.in_flight = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._lease.effect_seconds()):
                await self._send(stream, text)
        except MatrixDeliveryFailure as failure:
            self._limits.refused(failure)
            stream.shown_characters = shown_before
        except (DependencyError, TimeoutError):
            log.debug("progress_edit_dropped", delivery=str(stream.delivery))
            stream.shown_characters = shown_before
        finally:
            stream.in_flight.set_result(None)

    async def _send(self, stream: AnswerStream, text: str) -> None:
        permission = self._gate.permission(stream.target.room, epoch=stream.epoch, purpose=Purpose.ANSWER)
        if stream.event is None or permission is not Permission.SEND:
            return
        content = _working_content(
            Stage.PROGRESS, stream.run.turn, stream.run.generation, stream.delivery, stream.target, text
        )
        # Counted over all runs of the fence: a second run of one delivery must not repeat the ids of the first (E1).
        self._last_number += 1
        txn = progress_txn_id(stream.delivery, fence=Fence(self._lease.fence), number=self._last_number)
        wire = await self._gateway.freeze(
            OutgoingEvent(stream.target.room, "m.room.message", as_edit(content, stream.event, newly_mentioned=()), txn)
        )
        self._limits.spend()
        await self._gateway.send(wire)
        self._limits.said()

"""OutboxWorker: says what is owed, one lane per room, in order. A service of one principal under one lease.

Every payload is frozen and committed before it leaves (E1). A lane stays at its first delivery until that is said or
can never be said, so a FINAL never overtakes a claimed INITIAL (E3) and a room that fails delays no other room.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import structlog

from mindroom.core.backoff import Backoff
from mindroom.core.blame import blame
from mindroom.core.clock import Clock
from mindroom.core.content import JsonObject, as_edit
from mindroom.core.errors import (
    DependencyError,
    FenceLost,
    MatrixDeliveryFailure,
    MatrixFailureClass,
    RetryClass,
)
from mindroom.core.ids import Epoch, EventId, RoomId
from mindroom.core.metrics import Metrics, errcode_label
from mindroom.core.ports import DeliveryGateway, OutgoingEvent, PresentationPort, WirePayload
from mindroom.core.values import Stage
from mindroom.db.engine import Tx
from mindroom.db.lease import Lease
from mindroom.outbox.fitting import smaller
from mindroom.outbox.gate import Permission, SendGate
from mindroom.outbox.records import Claimed, Delivery, DeliveryKey, DeliveryState, Purpose
from mindroom.outbox.store import Outbox

log = structlog.get_logger(__name__)

RESEND_WINDOW_SECONDS = 30 * 60.0
"""Synapse keeps transaction ids in its HTTP cache for at least this long (E4)."""
SWEEP_SECONDS = 10.0
SYNC_DECIDES_SECONDS = 60.0
"""A response asked for this long after a send shows its echo, or the send never happened (E4)."""
ASK_AGAIN_SECONDS = 5.0
"""How often a row is looked at that waits for sync."""
FIRST_RETRY_SECONDS = 0.25
RETRY_CAP_SECONDS = 20.0


@dataclass
class _Lane:
    waiting: deque[tuple[DeliveryKey, Claimed | None]] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None


@dataclass
class SendPause:
    """429 pauses all sends of the principal (E5): limits are per user."""

    clock: Clock
    until: float = 0.0

    def extend(self, seconds: float) -> None:
        self.until = max(self.until, self.clock.boottime() + seconds)

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.until - self.clock.boottime())


class OutboxWorker:
    """The only caller of DeliveryGateway for INITIAL and FINAL."""

    def __init__(
        self,
        lease: Lease,
        *,
        outbox: Outbox,
        gateway: DeliveryGateway,
        gate: SendGate,
        presentation: PresentationPort,
        pause: SendPause,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._lease = lease
        self._outbox = outbox
        self._gateway = gateway
        self._gate = gate
        self._presentation = presentation
        self._pause = pause
        self._clock = clock
        self._metrics = metrics
        self._lanes: dict[RoomId, _Lane] = {}
        self._timers: dict[DeliveryKey, asyncio.Task[None]] = {}
        self._known: set[DeliveryKey] = set()
        self._visible: dict[DeliveryKey, EventId] = {}
        self._tasks: asyncio.TaskGroup | None = None

    # ---- offers, all from after_commit hooks ------------------------------------------------------------------------
    def is_free(self, room: RoomId, *, epoch: Epoch) -> bool:
        """True when an answer may go out at once: nothing of the room is being said and the gate lets it (B7, E10)."""
        permission = self._gate.permission(room, epoch=epoch, purpose=Purpose.ANSWER)
        return room not in self._lanes and permission is Permission.SEND

    def offer_claimed(self, claimed: Claimed) -> None:
        """Say what was claimed in the commit that owes it."""
        self._enqueue(claimed.wire.room, claimed.key, claimed)

    def offer(self, room: RoomId, key: DeliveryKey, *, delay_seconds: float = 0.0) -> None:
        """Say a queued row, not before `delay_seconds` from now."""
        if key in self._known:
            return
        if delay_seconds <= 0:
            self._enqueue(room, key, None)
        elif self._tasks is not None:
            self._known.add(key)
            self._timers[key] = self._tasks.create_task(self._later(room, key, delay_seconds))

    def withdraw(self, key: DeliveryKey) -> None:
        """The row was dropped before it was claimed."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
            self._known.discard(key)

    def acknowledged(self, keys: Iterable[tuple[DeliveryKey, EventId]]) -> None:
        """Sync showed that these were said (A6)."""
        for key, event in keys:
            self._became_visible(key, event)

    def _became_visible(self, key: DeliveryKey, event: EventId) -> None:
        if key in self._known:  # others nobody will ask for; an echo of each delivery comes here
            self._visible[key] = event
        if key.stage is Stage.INITIAL:
            self._presentation.initial_visible(key.delivery, event)

    def visible_event(self, key: DeliveryKey) -> EventId | None:
        """The event a delivery became, when it is known in this process."""
        return self._visible.get(key)

    def forget(self, key: DeliveryKey) -> None:
        """Nobody will ask for this delivery's event again."""
        self._visible.pop(key, None)

    # ---- service ----------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Take up what is owed once the gate opens, then serve offers until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                await self._gate.opened()
                await self._take_up(found_by_sweep=False)
                while True:
                    await self._clock.sleep(SWEEP_SECONDS)
                    await self._sweep()
            finally:
                self._tasks = None

    async def drain(self, *, seconds: float) -> None:
        """Wait until every lane is empty, at most `seconds`; what is left stays owed."""
        deadline = self._clock.boottime() + seconds
        while self._lanes and self._clock.boottime() < deadline:
            tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
            await asyncio.wait(tasks, timeout=max(0.01, deadline - self._clock.boottime()))

    async def _sweep(self) -> None:
        try:
            await self._take_up(found_by_sweep=True)
            summary = await self._outbox.summary()
        except DependencyError:
            return
        self._metrics.outbox_unacked.labels(self._lease.name).set(summary.owed)
        self._metrics.outbox_oldest_seconds.labels(self._lease.name).set(summary.oldest_seconds)

    async def _take_up(self, *, found_by_sweep: bool) -> None:
        for owed in await self._outbox.owed():
            if owed.key in self._known:
                continue
            if found_by_sweep and owed.due_in_seconds <= 0:
                self._metrics.sweep_found.labels("delivery").inc()
            self.offer(owed.room, owed.key, delay_seconds=owed.due_in_seconds)

    # ---- lanes ------------------------------------------------------------------------------------------------------
    async def _later(self, room: RoomId, key: DeliveryKey, delay_seconds: float) -> None:
        await self._clock.sleep(delay_seconds)
        self._timers.pop(key, None)
        self._enqueue(room, key, None)

    def _enqueue(self, room: RoomId, key: DeliveryKey, claimed: Claimed | None) -> None:
        if self._tasks is None:
            return
        self._known.add(key)
        lane = self._lanes.setdefault(room, _Lane())
        lane.waiting.append((key, claimed))
        if lane.task is None:
            lane.task = self._tasks.create_task(self._serve(room, lane))

    async def _serve(self, room: RoomId, lane: _Lane) -> None:
        try:
            while lane.waiting:
                key, claimed = lane.waiting.popleft()
                await self._deliver(key, claimed)
        except FenceLost:
            log.info("outbox_lane_stopped", room=room)
        finally:
            if self._lanes.get(room) is lane:
                del self._lanes[room]

    async def _deliver(self, key: DeliveryKey, claimed: Claimed | None) -> None:
        """Until this delivery is said, can never be said, or has to wait for sync."""
        backoff = Backoff(FIRST_RETRY_SECONDS, RETRY_CAP_SECONDS)
        broken: str | None = None
        try:
            while True:
                try:
                    if broken is not None:
                        await self._finish("fail_delivery", key, code=broken)
                        return
                    ready = claimed or await self._prepare(key)
                    claimed = None  # before each further attempt row and gate are asked again
                    if ready is None or await self._attempt(ready):
                        return
                except FenceLost:
                    raise
                except DependencyError as error:
                    log.info("delivery_waits", delivery=str(key.delivery), code=error.code)
                    if error.retry_class is RetryClass.PERMANENT:
                        broken = error.code
                except Exception as error:
                    # One row that cannot be read or frozen must not end the service of its principal.
                    log.error("delivery_broken", delivery=str(key.delivery), error=blame(error))
                    broken = type(error).__name__
                await self._clock.sleep(max(self._pause.seconds_left, backoff.next_seconds()))
        finally:
            if key not in self._timers:
                self._known.discard(key)
            if key.stage is Stage.FINAL:
                self._visible.pop(key, None)

    def _look_again(self, row: Delivery, *, why: str) -> None:
        """The row waits for sync, and the lane does not wait for the row."""
        log.info("delivery_waits", delivery=str(row.key.delivery), stage=row.key.stage.value, code=why)
        if self._tasks is not None:
            later = self._later(row.room, row.key, ASK_AGAIN_SECONDS)
            self._timers[row.key] = self._tasks.create_task(later)

    async def _prepare(self, key: DeliveryKey) -> Claimed | None:
        """Claim a queued row, or take up a claimed one of an earlier fence; None when there is nothing to say now."""
        row = await self._outbox.load(key)
        if row is None or row.state not in (DeliveryState.QUEUED, DeliveryState.CLAIMED):
            return None
        permission = self._gate.permission(row.room, epoch=row.epoch, purpose=row.purpose)
        if permission is Permission.RETIRE:
            await self._finish("retire_delivery", key, code="epoch")
            return None
        if permission is Permission.REFUSE:
            await self._finish("fail_delivery", key, code="encrypted")
            return None
        if permission is Permission.WAIT:
            raise DependencyError(f"room {row.room} cannot be written to yet")
        if row.state is DeliveryState.CLAIMED:
            return await self._resume(row)
        return await self._claim(row)

    async def _resume(self, row: Delivery) -> Claimed | None:
        """The outcome is unknown: the same again on the same device within the window, else sync decides (E4)."""
        same_scope = row.device_id == self._gateway.device_id and row.claimed_seconds < RESEND_WINDOW_SECONDS
        if row.wire is not None and same_scope:
            return Claimed(row.key, row.turn, row.wire)
        heard = self._gate.heard_up_to(row.room)
        if heard is None or row.attempted_seconds - (self._clock.boottime() - heard) < SYNC_DECIDES_SECONDS:
            self._look_again(row, why="outcome_unknown")
            return None
        if row.key.stage is Stage.INITIAL:
            await self._finish("retire_delivery", row.key, code="never_sent")
            return None
        return await self._claim(row)

    async def _claim(self, row: Delivery) -> Claimed | None:
        if row.key.stage is Stage.FINAL and row.initial_state is DeliveryState.CLAIMED:
            self._look_again(row, why="initial_unknown")
            return None
        if row.purpose is Purpose.WITHDRAWAL and row.initial_event is None:
            await self._finish("retire_delivery", row.key, code="nothing_visible")
            return None
        wire = await self._freeze(row)
        if wire is None:
            await self._finish("fail_delivery", row.key, code="too_large")
            return None

        async def body(tx: Tx) -> bool:
            if row.state is DeliveryState.CLAIMED:
                await self._outbox.reopen(tx, row.key)
            return await self._outbox.claim(tx, row.key, wire, edit_target=row.initial_event)

        if await self._lease.run("claim_delivery", body):
            return Claimed(row.key, row.turn, wire)
        await self._finish("retire_delivery", row.key, code="epoch")
        return None

    async def _freeze(self, row: Delivery) -> WirePayload | None:
        if row.purpose is Purpose.WITHDRAWAL:
            redaction = {"redacts": row.initial_event}
            return await self._gateway.freeze(OutgoingEvent(row.room, "m.room.redaction", redaction, row.key.txn_id))
        content = row.content or {}
        if row.key.stage is Stage.INITIAL:
            content = self._presentation.draft_content(row.key.delivery) or content
        return await freeze_fitting(self._gateway, row, content)

    async def _attempt(self, claimed: Claimed) -> bool:
        """One send. True when the delivery is over, however it ended."""
        if claimed.key in self._visible:
            return True
        if (pause := self._pause.seconds_left) > 0:
            await self._clock.sleep(pause)
        try:
            event = await asyncio.wait_for(self._gateway.send(claimed.wire), self._lease.effect_seconds())
        except TimeoutError:
            await self._retry_later(claimed, code="network")
            return False
        except MatrixDeliveryFailure as failure:
            return await self._failed(claimed, failure)
        self._metrics.sends.labels("ok").inc()
        self._became_visible(claimed.key, event)

        async def body(tx: Tx) -> None:
            await self._outbox.ack(tx, claimed.key, event)

        await self._lease.run("ack_delivery", body)
        return True

    async def _failed(self, claimed: Claimed, failure: MatrixDeliveryFailure) -> bool:
        code = failure.errcode or failure.failure_class.value
        self._metrics.sends.labels(errcode_label(code)).inc()
        log.info("delivery_failed", delivery=str(claimed.key.delivery), status=failure.status, errcode=code)
        if failure.retry_class is not RetryClass.RETRY:
            await self._finish("fail_delivery", claimed.key, code=code)
            return True
        if failure.failure_class is MatrixFailureClass.RATE_LIMITED:
            seconds = failure.retry_after_seconds or 5.0
            self._pause.extend(seconds)
            self._metrics.rate_limited_seconds.inc(seconds)
        await self._retry_later(claimed, code=code)
        return False

    async def _retry_later(self, claimed: Claimed, *, code: str) -> None:
        async def body(tx: Tx) -> None:
            await self._outbox.retry_later(tx, claimed.key, code=code, delay_seconds=self._pause.seconds_left)

        await self._lease.run("fail_delivery", body)

    async def _finish(self, transaction: str, key: DeliveryKey, *, code: str) -> None:
        async def body(tx: Tx) -> None:
            if transaction == "retire_delivery":
                await self._outbox.retire(tx, key, code=code)
            else:
                await self._outbox.fail(tx, key, code=code)

        await self._lease.run(transaction, body)


async def freeze_fitting(gateway: DeliveryGateway, row: Delivery, content: JsonObject) -> WirePayload | None:
    """Freeze `content` as a new message, or as an edit of the visible INITIAL; smaller and smaller until it fits."""
    candidate: JsonObject | None = content
    while candidate is not None:
        final_edit = row.key.stage is Stage.FINAL and row.initial_event is not None
        shaped = (
            as_edit(candidate, row.initial_event, newly_mentioned=row.notify)
            if final_edit and row.initial_event is not None
            else candidate
        )
        try:
            return await gateway.freeze(OutgoingEvent(row.room, "m.room.message", shaped, row.key.txn_id))
        except MatrixDeliveryFailure as failure:
            if failure.failure_class is not MatrixFailureClass.TOO_LARGE:
                raise
            candidate = smaller(candidate, reference=str(row.turn))
    return None

"""OutboxWorker: says what is owed. A service of one principal under one lease.

Every payload is frozen and committed before it leaves (E1). What is done with a row is decided in `rules`, when in
`lanes`: a FINAL never overtakes a claimed INITIAL (E3), and nothing that fails delays another conversation.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from mindroom.core.backoff import Backoff
from mindroom.core.blame import blame
from mindroom.core.clock import Clock
from mindroom.core.content import read_marker, relation
from mindroom.core.errors import DependencyError, FenceLost, MatrixDeliveryFailure, MatrixFailure, RetryClass
from mindroom.core.ids import DeliveryId, EventId
from mindroom.core.metrics import Metrics
from mindroom.core.ports import DeliveryGateway, OutgoingEvent, PresentationPort, RoomReader, WirePayload
from mindroom.core.slots import RoomSlots
from mindroom.core.values import Stage
from mindroom.db.engine import Tx
from mindroom.db.lease import Lease
from mindroom.outbox.fitting import freeze_fitting, plain
from mindroom.outbox.gate import Permission, SendGate
from mindroom.outbox.lanes import DeliveryLanes, Waiting
from mindroom.outbox.limits import SendLimits
from mindroom.outbox.records import Claimed, Delivery, DeliveryKey, DeliveryState, NewDelivery, OwedDelivery, Purpose
from mindroom.outbox.rules import TOMBSTONED, Facts, Next, Remedy, Step, Tried, absent, next_step, remedy
from mindroom.outbox.store import Outbox

log = structlog.get_logger(__name__)

IN_FLIGHT = 8
"""Sends of one principal at a time."""
IN_FLIGHT_IN_ROOM = 4
"""Of these one room may have so many: a room whose sends hang delays no other (E6)."""
SWEEP_SECONDS = 10.0
ASK_AGAIN_SECONDS = 5.0
"""How often a row is looked at that waits for sync."""
ASK_RARELY_SECONDS = 300.0
"""How often a row is looked at whose fate the room would not tell, or that waits for a successor."""
FIRST_RETRY_SECONDS = 0.25
RETRY_CAP_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class _Rest:
    """The lane leaves the delivery: for ever, or until it looks again."""

    again_seconds: float | None = None


OVER = _Rest()


class OutboxWorker:
    """The only caller of DeliveryGateway for INITIAL and FINAL."""

    def __init__(
        self,
        lease: Lease,
        *,
        outbox: Outbox,
        gateway: DeliveryGateway,
        reader: RoomReader,
        gate: SendGate,
        presentation: PresentationPort,
        limits: SendLimits,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._lease = lease
        self._outbox = outbox
        self._gateway = gateway
        self._reader = reader
        self._gate = gate
        self._presentation = presentation
        self._limits = limits
        self._clock = clock
        self._metrics = metrics
        self._lanes = DeliveryLanes(self._serve, clock=clock)
        self._slots = RoomSlots(total=IN_FLIGHT, per_room=IN_FLIGHT_IN_ROOM)
        self._said = 0

    # ---- offers, all from after_commit hooks ------------------------------------------------------------------------
    def is_free(self, new: NewDelivery) -> bool:
        """True when it may go out at once: nothing of its conversation is being said and nothing has to wait."""
        permission = self._gate.permission(new.room, epoch=new.epoch, purpose=new.purpose)
        may_go = permission is Permission.SEND and self._limits.seconds_left == 0 and not self._slots.is_full(new.room)
        return may_go and self._lanes.is_idle(new.conversation)

    def offer(self, new: NewDelivery, *, wire: WirePayload | None = None, delay_seconds: float = 0.0) -> None:
        """Say a row, not before `delay_seconds` from now; with `wire` one claimed in the commit that owes it."""
        claimed = None if wire is None else Claimed(new.key, new.turn, wire)
        self._lanes.put(Waiting(new.conversation, new.key, claimed), delay_seconds=delay_seconds)

    def take(self, rows: Iterable[OwedDelivery]) -> None:
        """Say rows as the ledger tells them."""
        for owed in rows:
            self._lanes.put(Waiting(owed.conversation, owed.key), delay_seconds=owed.due_in_seconds)

    def is_being_written(self, delivery: DeliveryId) -> bool:
        """True while the answer is not complete: its progress edits are expected."""
        return self._presentation.is_being_written(delivery)

    def withdraw(self, key: DeliveryKey) -> None:
        """The row was dropped before it was claimed."""
        self._lanes.withdraw(key)

    def acknowledged(self, keys: Iterable[tuple[DeliveryKey, EventId]]) -> None:
        """Sync showed that these were said (A6)."""
        for key, event in keys:
            self._became_visible(key, event)

    def _became_visible(self, key: DeliveryKey, event: EventId) -> None:
        if key.stage is Stage.INITIAL:
            self._presentation.initial_visible(key.delivery, event)

    # ---- service ----------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Take up what is owed once the gate opens, then serve offers until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._lanes.open(tasks)
            try:
                await self._gate.opened()
                await self._take_up(overdue_seconds=None)
                while True:
                    await self._clock.sleep(SWEEP_SECONDS)
                    await self._sweep()
            finally:
                self._lanes.close()

    async def drain(self, *, seconds: float) -> None:
        """Wait until every lane is empty, at most `seconds`; what is left stays owed."""
        await self._lanes.drain(seconds=seconds)

    async def _sweep(self) -> None:
        try:
            await self._take_up(overdue_seconds=SWEEP_SECONDS)
            summary = await self._outbox.summary()
        except DependencyError:
            return
        self._metrics.outbox_unacked.labels(self._lease.name).set(summary.owed)
        self._metrics.outbox_oldest_seconds.labels(self._lease.name).set(summary.oldest_seconds)

    async def _take_up(self, *, overdue_seconds: float | None) -> None:
        """All that is owed, or what nobody noticed for so long: a row may fall due just before its offer comes."""
        for owed in await self._outbox.owed():
            if self._lanes.holds(owed.key):
                continue
            if overdue_seconds is not None:
                if owed.due_in_seconds > -overdue_seconds:
                    continue
                self._metrics.sweep_found.labels("delivery").inc()
            self.take([owed])

    # ---- one delivery -----------------------------------------------------------------------------------------------
    async def _serve(self, entry: Waiting) -> float | None:
        """Until this delivery is said, can never be said, or has to wait for sync."""
        backoff, tried, broken = Backoff(FIRST_RETRY_SECONDS, RETRY_CAP_SECONDS), Tried(), ""
        claimed = None if self._slots.is_full(entry.conversation.room) else entry.claimed
        while True:
            if (pause := self._limits.seconds_left) > 0:
                claimed = None  # before each further attempt row and gate are asked again
                await self._clock.sleep(pause)
            try:
                if broken:
                    await self._end(entry.key, Next(Step.FAIL, broken))
                    return None
                async with self._slots.taken(entry.conversation.room):
                    ready = claimed or await self._prepare(entry.key, tried)
                    claimed = None
                    rest = await self._attempt(ready, tried) if isinstance(ready, Claimed) else ready
                if rest is not None:
                    return rest.again_seconds
            except FenceLost:
                raise
            except DependencyError as error:
                log.info("delivery_waits", delivery=str(entry.key.delivery), code=error.code)
                if error.retry_class is RetryClass.PERMANENT:
                    broken = error.code
            except Exception as error:
                # One row that cannot be read or frozen must not end the service of its principal.
                log.error("delivery_broken", delivery=str(entry.key.delivery), error=blame(error))
                broken = type(error).__name__
            await self._clock.sleep(backoff.next_seconds())

    async def _prepare(self, key: DeliveryKey, tried: Tried) -> Claimed | _Rest | None:
        """Bring a row as far as it can go out; a rest when there is nothing to say now, None when the lane waits."""
        row = await self._outbox.load(key)
        if row is None:
            return OVER
        if tried.freeze_anew and row.state is DeliveryState.CLAIMED:
            permission = self._gate.permission(row.room, epoch=row.epoch, purpose=row.purpose)
            if permission is Permission.SEND:
                return await self._claim(row, tried)
        todo = next_step(row, self._facts(row))
        if todo.step is Step.ASK_ROOM:
            return await self._ask_room(row, tried)
        return await self._do(row, todo, tried)

    def _facts(self, row: Delivery) -> Facts:
        heard_at = self._gate.heard_up_to(row.room)
        return Facts(
            permission=self._gate.permission(row.room, epoch=row.epoch, purpose=row.purpose),
            device_id=self._gateway.device_id,
            is_tombstoned=self._gate.is_tombstoned(row.room),
            heard_seconds=None if heard_at is None else self._clock.boottime() - heard_at,
        )

    async def _do(self, row: Delivery, todo: Next, tried: Tried) -> Claimed | _Rest | None:
        match todo.step:
            case Step.CLAIM:
                return await self._claim(row, tried)
            case Step.RESEND:
                if row.wire is None or not await self._again(row.key):
                    return OVER
                return Claimed(row.key, row.turn, row.wire)
            case Step.WAIT:
                return None
            case Step.LATER:
                log.info("delivery_waits", delivery=str(row.key.delivery), stage=row.key.stage.value, code=todo.code)
                return _Rest(ASK_RARELY_SECONDS if todo.code == TOMBSTONED else ASK_AGAIN_SECONDS)
            case Step.NOTHING:
                return OVER
            case _:
                await self._end(row.key, todo)
                return _Rest(ASK_AGAIN_SECONDS) if todo.step is Step.FOR_SUCCESSOR else OVER

    async def _ask_room(self, row: Delivery, tried: Tried) -> Claimed | _Rest | None:
        """A truncated gap hides what happened since the claim, so our own events since then are read (E4)."""
        try:
            event = await self._find(row)
        except MatrixFailure as failure:
            log.warning("delivery_unknown", delivery=str(row.key.delivery), code=failure.errcode or failure.code)
            known = failure.retry_class is RetryClass.RETRY
            return _Rest(ASK_AGAIN_SECONDS if known else ASK_RARELY_SECONDS)
        if event is None:
            return await self._do(row, absent(row), tried)
        await self._acknowledge(row.key, event)
        return OVER

    async def _find(self, row: Delivery) -> EventId | None:
        start = row.claim_token
        while start is not None:
            page = await self._reader.said_since(row.room, start=start)
            for event in page.events:
                marker = read_marker(event.get("content") or {})
                if marker and (marker.delivery, marker.stage) == (row.key.delivery, row.key.stage):
                    return EventId(str(event.get("event_id")))
            start = page.end
        return None

    async def _claim(self, row: Delivery, tried: Tried) -> Claimed | _Rest:
        wire = await self._freeze(row, tried)
        if wire is None:
            await self._end(row.key, Next(Step.FAIL, "too_large"))
            return OVER

        async def body(tx: Tx) -> bool:
            if row.state is DeliveryState.CLAIMED:
                await self._outbox.reopen(tx, row.key, code=None)
            return await self._outbox.claim(tx, row.key, wire, edit_target=row.initial_event)

        if await self._lease.run("claim_delivery", body):
            tried.freeze_anew = False
            return Claimed(row.key, row.turn, wire)
        await self._end(row.key, Next(Step.RETIRE, "epoch"))
        return OVER

    async def _freeze(self, row: Delivery, tried: Tried) -> WirePayload | None:
        if row.purpose is Purpose.WITHDRAWAL:
            redaction = {"redacts": row.initial_event}
            return await self._gateway.freeze(OutgoingEvent(row.room, "m.room.redaction", redaction, row.key.txn_id))
        content = row.content or {}
        if row.key.stage is Stage.INITIAL:
            content = self._presentation.draft_content(row.key.delivery) or content
        return await freeze_fitting(
            self._gateway,
            plain(content) if tried.plain else content,
            key=row.key,
            room=row.room,
            edits=None if tried.plain else row.initial_event,
            notify=row.notify,
            reference=str(row.turn),
            halvings=tried.halvings,
        )

    # ---- one send ---------------------------------------------------------------------------------------------------
    async def _attempt(self, claimed: Claimed, tried: Tried) -> _Rest | None:
        """One send. OVER when the delivery has ended, however; None when it is tried again."""
        self._limits.spend()
        try:
            async with asyncio.timeout(self._lease.effect_seconds()):
                event = await self._gateway.send(claimed.wire)
        except TimeoutError:
            await self._failed(claimed.key, code="network")
            return None
        except MatrixDeliveryFailure as failure:
            return await self._refused(claimed, failure, tried)
        self._said += 1
        self._limits.said()
        await self._acknowledge(claimed.key, event)
        return OVER

    async def _refused(self, claimed: Claimed, failure: MatrixDeliveryFailure, tried: Tried) -> _Rest | None:
        code = failure.errcode or failure.failure_class.value
        log.info("delivery_failed", delivery=str(claimed.key.delivery), status=failure.status, errcode=code)
        self._limits.refused(failure)
        self._count(failure, tried)
        match remedy(failure, stage=claimed.key.stage, content=claimed.wire.content, tried=tried):
            case Remedy.FAIL:
                await self._end(claimed.key, Next(Step.FAIL, code))
                return OVER
            case Remedy.SAID:
                await self._end(claimed.key, Next(Step.RETIRE, code))
                return OVER
            case Remedy.LOOK_UP:
                await self._failed(claimed.key, code=code)
                return _Rest(ASK_AGAIN_SECONDS)
            case Remedy.FETCH_RELATED:
                tried.fetched = True
                await self._fetch_related(claimed.wire)
            case Remedy.PLAIN:
                tried.plain = tried.freeze_anew = True
            case Remedy.SMALLER:
                tried.halvings, tried.freeze_anew = tried.halvings + 1, True
            case Remedy.AGAIN:
                pass
        await self._failed(claimed.key, code=code)
        return None

    def _count(self, failure: MatrixDeliveryFailure, tried: Tried) -> None:
        if failure.status < 500:
            tried.server_errors = 0
            return
        if tried.server_errors == 0:
            tried.said_before = self._said
        tried.server_errors += 1
        tried.said_by_others = self._said - tried.said_before

    async def _fetch_related(self, wire: WirePayload) -> None:
        """A server that has not the event takes no relation to it; asking makes it look for it."""
        try:
            await self._reader.event(wire.room, EventId(str(relation(wire.content).get("event_id"))))
        except MatrixFailure as failure:
            log.info("related_event_unknown", room=wire.room, code=failure.errcode or failure.code)

    # ---- what becomes of the row -------------------------------------------------------------------------------------
    async def _acknowledge(self, key: DeliveryKey, event: EventId) -> None:
        self._became_visible(key, event)

        async def body(tx: Tx) -> None:
            await self._outbox.ack(tx, key, event)

        await self._lease.run("ack_delivery", body)

    async def _again(self, key: DeliveryKey) -> bool:
        async def body(tx: Tx) -> bool:
            return await self._outbox.note_attempt(tx, key)

        return await self._lease.run("claim_delivery", body)

    async def _failed(self, key: DeliveryKey, *, code: str) -> None:
        async def body(tx: Tx) -> None:
            await self._outbox.retry_later(tx, key, code=code, delay_seconds=self._limits.seconds_left)

        await self._lease.run("fail_delivery", body)

    async def _end(self, key: DeliveryKey, ending: Next) -> None:
        async def body(tx: Tx) -> None:
            if ending.step is Step.RETIRE:
                await self._outbox.retire(tx, key, code=ending.code)
            elif ending.step is Step.FOR_SUCCESSOR:
                await self._outbox.reopen(tx, key, code=ending.code)
            else:
                await self._outbox.fail(tx, key, code=ending.code)

        await self._lease.run("retire_delivery" if ending.step is Step.RETIRE else "fail_delivery", body)

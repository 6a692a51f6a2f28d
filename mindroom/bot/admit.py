"""T admit: one sync response, one transaction, over all three ledgers (A1, A8).

Own echoes first, then departures, membership, state, then receipts, projection and checkpoint, then gaps. A statement
is skipped when it has nothing to write; their number never depends on the number of events.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from mindroom.bot.forget import Forgetting
from mindroom.core.content import DeliveryMarker, JsonObject, message_content
from mindroom.core.errors import DatabaseUnavailable, FenceLost
from mindroom.core.ids import THREAD_MAIN, EventId, RoomId, SyncToken
from mindroom.core.metrics import Metrics
from mindroom.core.values import Action, MessageTarget, OrderKey, Reason, Stage, Verdict
from mindroom.db.engine import Tx
from mindroom.db.lease import Lease
from mindroom.journal.classify import classify_sync
from mindroom.journal.projection import MessageProjection
from mindroom.journal.records import Admission, Admitted, Checkpoint, Echo, Hearer, Redaction
from mindroom.journal.recovery import Recovery
from mindroom.journal.reduce import plain_originals
from mindroom.journal.rooms import RoomBook
from mindroom.journal.store import Journal
from mindroom.outbox.records import DeliveryKey, NewDelivery, Purpose, notice_delivery_id
from mindroom.outbox.store import EchoRow, Outbox
from mindroom.outbox.worker import OutboxWorker
from mindroom.turns.release import TurnRelease
from mindroom.turnstore.store import TurnStore

CANNOT_READ = "This room is encrypted and I cannot read it yet."
"""The one sentence that is ever said in plain in an encrypted room (A7)."""

_LATE = Verdict(Action.IGNORE, Reason.LATE).outcome


class _Undo(Exception):
    """Ends a trial whose commit is not wanted."""


@dataclass(frozen=True, slots=True)
class AdmissionHooks:
    """Who is woken by what a commit brought."""

    pending: Callable[[OrderKey], None]
    held: Callable[[Iterable[RoomId]], None]
    """Told of rooms with a new gap before any of their sources is fed (B7)."""
    gaps: Callable[[], None]
    rooms: Sequence[Callable[[], None]]
    """Told when our membership changed or a room was upgraded."""


@dataclass(frozen=True, slots=True)
class Admitter:
    """Admits responses and gap pages of one principal."""

    lease: Lease
    hearer: Hearer
    book: RoomBook
    journal: Journal
    projection: MessageProjection
    recovery: Recovery
    turns: TurnStore
    outbox: Outbox
    worker: OutboxWorker
    release: TurnRelease
    forgetting: Forgetting
    metrics: Metrics
    hooks: AdmissionHooks

    def classify(self, raw: JsonObject, *, since: SyncToken | None, certified_ms: int | None) -> Admission:
        """What the response means for this principal."""
        admission = classify_sync(raw, hearer=self.hearer, book=self.book, since=since, certified_ms=certified_ms)
        # Edits of answers that are being written here have no FINAL yet.
        admission.progress = [p for p in admission.progress if not self.worker.is_being_written(p.delivery)]
        return admission

    async def admit(self, admission: Admission, checkpoint: Checkpoint) -> int | None:
        """Commit a response with its token. Raises DatabaseUnavailable when nothing of it is stored, FenceLost.

        Returns when the checkpoint was last certified, in Matrix milliseconds.
        """

        async def body(tx: Tx) -> int | None:
            admitted = await self._write(tx, admission, checkpoint)
            tx.after_commit(lambda: self._admitted(admission, admitted))
            return admitted.certified_ms

        with self.metrics.admit_seconds.time():
            return await self.lease.run("admit", body)

    async def fits(self, admission: Admission, checkpoint: Checkpoint) -> bool:
        """Whether `admit` would commit; everything is undone. Raises DatabaseUnavailable, FenceLost."""

        async def body(tx: Tx) -> None:
            await self._write(tx, admission, checkpoint)
            raise _Undo

        try:
            await self.lease.run("admit", body)
        except (DatabaseUnavailable, FenceLost):
            raise
        except Exception as error:
            return isinstance(error, _Undo)
        raise AssertionError("unreachable")

    async def _write(self, tx: Tx, admission: Admission, checkpoint: Checkpoint) -> Admitted:
        silenced = await self.silenced(tx, admission)
        if admission.echoes:
            await self._echoes(tx, admission.echoes)
        await self._rooms(tx, admission)
        floor = await self.recovery.draw_floor(tx) if admission.gaps else 0
        admitted = await self.hear(tx, admission, silenced=silenced, checkpoint=checkpoint)
        if admission.gaps:
            await self.recovery.open_gaps(tx, admission.gaps, floor=floor)
        if admission.encrypted_asks:
            await self._say_unreadable(tx, admission)
        return admitted

    async def save_token(self, checkpoint: Checkpoint) -> int | None:
        """A token whose responses brought nothing to store; returns what `admit` does."""

        async def body(tx: Tx) -> int | None:
            return await self.journal.move_checkpoint(tx, checkpoint.token, checkpoint.trust)

        return await self.lease.run("save_token", body)

    async def silenced(self, tx: Tx, admission: Admission) -> list[Redaction]:
        """What is stored of people who are removed with all their events; read before a departure forgets it (A4)."""
        return await self.projection.said_by(tx, admission.silenced) if admission.silenced else []

    async def hear(
        self, tx: Tx, admission: Admission, *, silenced: Sequence[Redaction], checkpoint: Checkpoint | None = None
    ) -> Admitted:
        """Receipts and projection of a batch, and what redactions in it put an end to (A4)."""
        plain = plain_originals(admission.projection)
        admitted = await self.journal.hear(tx, admission.heard, plain=plain, checkpoint=checkpoint)
        withdrawn = await self.projection.apply(
            tx,
            [*silenced, *admission.projection],
            keys=admitted.keys,
            shown=admitted.shown,
        )
        if withdrawn is not None:
            await self.forgetting.forget(tx, withdrawn)
        if admission.progress:
            seen = [(p.delivery, p.revision.timestamp_ms, p.revision.event_id) for p in admission.progress]
            again = await self.outbox.say_again(tx, seen)
            tx.after_commit(lambda: self.worker.take(again))
        return admitted

    async def echoes_of(self, tx: Tx, echoes: Sequence[Echo]) -> None:
        """For gap pages: what we see ourselves say was said."""
        if echoes:
            await self._echoes(tx, echoes)

    async def _rooms(self, tx: Tx, admission: Admission) -> None:
        if admission.departures:
            owed = await self.journal.depart(tx, admission.departures)
            await self.outbox.retire_rooms(tx, admission.departures)
            await self.release.sources_gone(tx, owed, outcome="departed")
        if admission.memberships:
            await self.journal.write_memberships(tx, admission.memberships)
        if admission.state:
            await self.journal.write_state(tx, list(admission.state.values()))

    async def _echoes(self, tx: Tx, echoes: Sequence[Echo]) -> None:
        """Acknowledge rows; only a FINAL answers, and it answers every source it names (A6)."""
        rows = {
            (echo.delivery, echo.stage): EchoRow(
                DeliveryKey(echo.delivery, echo.stage),
                echo.marker.turn if echo.marker else None,
                echo.marker.generation if echo.marker else 1,
                echo.room,
                echo.thread,
                echo.epoch,
                echo.event_id,
            )
            for echo in reversed(echoes)
        }
        fresh = await self.outbox.acknowledge_echoes(tx, list(rows.values()))
        # A redacted FINAL names nothing any more; its turn is found by the delivery.
        redacted = [echo.delivery for echo in echoes if echo.stage is Stage.FINAL and echo.marker is None]
        answered = await self.turns.answered_by(tx, redacted) if redacted else {}
        for echo in echoes:
            if echo.stage is Stage.FINAL and echo.marker is not None:
                answered.update(dict.fromkeys(echo.marker.sources, echo.marker.turn))
        if answered:
            gone = await self.journal.mark_answered(tx, answered)
            finished = [turn for turn in dict.fromkeys(answered.values()) if turn is not None]
            await self.turns.close_answered(tx, finished)
            await self.release.sources_gone(tx, gone, outcome="answered")
        known = [(row.key, row.event_id) for row in rows.values()]
        tx.after_commit(lambda: self._seen(known, adopted=len(fresh)))

    def _seen(self, known: list[tuple[DeliveryKey, EventId]], *, adopted: int) -> None:
        self.worker.acknowledged(known)
        self.metrics.deliveries_adopted.inc(adopted)

    async def _say_unreadable(self, tx: Tx, admission: Admission) -> None:
        """Once per room, for ever: the delivery id is made of the room (A7)."""
        for room, epoch in admission.encrypted_asks.items():
            key = DeliveryKey(notice_delivery_id("encrypted", self.hearer.user_id, room), Stage.FINAL)
            content = message_content(
                msgtype="m.text",
                body=CANNOT_READ,
                html=None,
                mentions=(),
                marker=DeliveryMarker(key.delivery, None, 1, Stage.FINAL),
                target=MessageTarget(room, None, None),
            )
            new = NewDelivery(key, None, 1, Purpose.NOTICE, room, THREAD_MAIN, epoch, content)
            await self.outbox.queue(tx, new)
            tx.after_commit(partial(self.worker.offer, new))

    def _admitted(self, admission: Admission, admitted: Admitted) -> None:
        """After the commit: memory follows, sleepers wake, counters move."""
        self.book.apply(admission)
        if admission.gaps:
            self.hooks.held(gap.room for gap in admission.gaps)
        self.heard(admission, admitted)
        if admission.gaps:
            self.metrics.sync_limited.labels("gap").inc(len(admission.gaps))
            self.hooks.gaps()
        if admission.moves_us:
            for told in self.hooks.rooms:
                told()

    def heard(self, admission: Admission, admitted: Admitted) -> None:
        """After the commit of a response or of a gap page: the feeder wakes, counters move."""
        if admitted.lowest_pending is not None:
            self.hooks.pending(admitted.lowest_pending)
        if len(admitted.receipts) < len(admission.heard):
            # What was known may come from a commit whose reply was lost, and with it the waking of its sources.
            self.hooks.pending(OrderKey(0))
        for heard in admission.heard:
            if heard.event_id in admitted.receipts:
                self.metrics.admitted_events.labels(heard.kind.value, heard.event_class.value).inc()
                if heard.outcome == _LATE:
                    self.metrics.verdicts.labels(Action.IGNORE.value, Reason.LATE.value).inc()
        self.metrics.duplicates.inc(len(admission.heard) - len(admitted.receipts))

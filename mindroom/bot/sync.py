"""The owned receive loop of one principal: request, classify, admit, again. No callbacks, no token of anybody else.

A response is admitted, or tried again as the same object; it is never fetched a second time (A1). Whatever the
homeserver answers, the loop backs off and goes on; the token never moves past what is stored (B5).
"""

import asyncio
import math

import structlog

from mindroom.bot.admit import Admitter
from mindroom.bot.gate import StartGate
from mindroom.bot.poison import without_poison
from mindroom.core.backoff import Backoff
from mindroom.core.blame import blame
from mindroom.core.clock import Clock, within
from mindroom.core.content import JsonObject
from mindroom.core.errors import DatabaseUnavailable, FenceLost, MatrixFailure, MatrixFailureClass, RetryClass
from mindroom.core.ids import SyncToken
from mindroom.core.metrics import Metrics, errcode_label
from mindroom.core.ports import RoomReader, SyncBatch, SyncPort
from mindroom.core.values import Trust
from mindroom.journal.records import Admission, Checkpoint
from mindroom.journal.trust import CheckpointTrust, StoredCheckpoint, TrustEvent, advance

log = structlog.get_logger(__name__)

LONG_POLL_SECONDS = 30.0
TOKEN_SAVE_SECONDS = 5.0
"""A token of responses that brought nothing to store is saved after this long."""
REJECTIONS = 2
"""So many refusals in a row give up a token (B4)."""
SILENT_SECONDS = 90.0
"""A request that neither returns nor fails this long after its long poll is silent (B6); the port gives up earlier."""
SILENT_RESYNC_SECONDS = 330.0
"""The same without a token, when the server has to build every room."""
LOOK_SECONDS = 10.0
"""Silence is counted in looks of this length, so that a blocked event loop is not taken for a silent server (R10)."""
REPEAT_SECONDS = 1.0
"""The pause after an answer that came at once and said nothing new."""


class SyncLoop:
    """Sole reader of `/sync` and sole mover of the checkpoint of one principal."""

    def __init__(
        self,
        port: SyncPort,
        *,
        reader: RoomReader,
        admitter: Admitter,
        gate: StartGate,
        clock: Clock,
        metrics: Metrics,
        name: str,
    ) -> None:
        self._port = port
        self._reader = reader
        self._admitter = admitter
        self._gate = gate
        self._clock = clock
        self._metrics = metrics
        self._name = name
        self._since: SyncToken | None = None
        self._trust = CheckpointTrust(Trust.COLD, TrustEvent.NO_TOKEN)
        self._certified_ms: int | None = None
        self._rejections = 0
        self._lost: TrustEvent | None = None
        """Why the token is not asked with any more, until a response without one is admitted."""
        self._unsaved_since: float | None = None
        self._backoff = Backoff(0.5, 60.0)

    async def run(self) -> None:
        """Receive until cancelled. Raises FenceLost, and MatrixFailure of class AUTH when the session is gone."""
        await self._load()
        await self._look_back()
        while True:
            asked_at = self._clock.boottime()
            since = None if self._lost else self._since
            try:
                batch = await self._request(since)
            except MatrixFailure as failure:
                self._judge(failure, since)
                await self._failed(failure)
                continue
            self._backoff.reset()
            self._rejections = 0
            if self._lost:
                await self._give_up_token(self._lost)
            took = self._clock.boottime() - asked_at
            is_repeated = self._gate.is_open and batch.next_batch == since and took < REPEAT_SECONDS
            await self._take(batch, since)
            self._lost = None
            self._gate.heard(asked_at=asked_at)
            if is_repeated:
                await self._clock.sleep(REPEAT_SECONDS)

    async def _load(self) -> None:
        stored: StoredCheckpoint = await self._admitter.journal.load_checkpoint()
        self._since, self._certified_ms = stored.token, stored.certified_ms
        self._believe(stored.trust)
        await self._admitter.save_token(Checkpoint(stored.token, stored.trust))

    async def _look_back(self) -> None:
        """A homeserver without our newest acknowledged event went back in time, and the token with it (B4)."""
        newest = await self._admitter.outbox.newest_acked() if self._since is not None else None
        while newest is not None:
            try:
                await self._reader.event(*newest)
                return
            except MatrixFailure as failure:
                if failure.failure_class is MatrixFailureClass.NOT_FOUND:
                    self._lost = TrustEvent.WENT_BACK
                if failure.retry_class is not RetryClass.RETRY:
                    return
                await self._failed(failure)

    # ---- asking ------------------------------------------------------------------------------------------------------
    async def _request(self, since: SyncToken | None) -> SyncBatch:
        """One request; one that stays silent is abandoned alone, nothing else of the principal notices (B6, R11)."""
        poll = LONG_POLL_SECONDS if self._gate.is_open and since is not None else 0.0
        patience = poll + (SILENT_RESYNC_SECONDS if since is None else SILENT_SECONDS)
        request = asyncio.ensure_future(self._port.sync(since, timeout_seconds=poll, full_state=False))
        try:
            for _ in range(math.ceil(patience / LOOK_SECONDS)):
                if await within(self._clock, LOOK_SECONDS, request):
                    return request.result()
            log.warning("matrix_sync_silent", principal=self._name, seconds=patience)
            raise MatrixFailure("sync", MatrixFailureClass.NETWORK)
        finally:
            request.cancel()

    def _judge(self, failure: MatrixFailure, since: SyncToken | None) -> None:
        """Two refusals in a row give the token up, if the same request without it is answered (B4)."""
        refused = failure.status == 400 and failure.failure_class is MatrixFailureClass.BAD_REQUEST
        self._rejections = self._rejections + 1 if refused and since is not None else 0
        if self._rejections >= REJECTIONS:
            self._lost = TrustEvent.TOKEN_REJECTED
        elif refused and self._lost is TrustEvent.TOKEN_REJECTED:
            self._lost = None

    async def _failed(self, failure: MatrixFailure) -> None:
        self._metrics.sync_failures.labels(errcode_label(failure.errcode or failure.failure_class.value)).inc()
        if failure.errcode == "M_UNKNOWN_TOKEN":
            raise failure
        wait = self._backoff.next_seconds(asked_seconds=failure.retry_after_seconds)
        log.warning(
            "matrix_sync_failed",
            failure=failure.failure_class.value,
            status=failure.status,
            errcode=failure.errcode,
            wait_seconds=round(wait, 1),
        )
        await self._clock.sleep(wait)

    async def _give_up_token(self, reason: TrustEvent) -> None:
        """Say so, in the database too when it is there; the token stays stored until the next one is admitted."""
        self._believe(advance(self._trust, reason))
        log.warning("matrix_sync_token_given_up", principal=self._name, reason=reason.value)
        try:
            await self._admitter.save_token(Checkpoint(self._since, self._trust))
        except DatabaseUnavailable:
            log.warning("matrix_sync_certification_uncertain", code=DatabaseUnavailable.code)

    # ---- admitting ---------------------------------------------------------------------------------------------------
    async def _take(self, batch: SyncBatch, since: SyncToken | None) -> None:
        """Admit one response, however long the database takes; an event that it cannot take is made unreadable (A7).

        Raises what the admission raises when the fault is in no event: the token stays, the supervisor backs off.
        """
        backoff, raw, is_refused = Backoff(0.25, 20.0), batch.raw, False
        while True:
            try:
                if is_refused:
                    raw = await without_poison(batch.raw, fits=lambda trial: self._fits(trial, batch, since))
                await self._commit(raw, batch, since)
                return
            except DatabaseUnavailable as error:
                self._believe(advance(self._trust, TrustEvent.ADMISSION_FAILED))
                wait = backoff.next_seconds()
                log.warning("matrix_sync_certification_uncertain", code=error.code, wait_seconds=round(wait, 1))
                await self._clock.sleep(wait)
            except FenceLost:
                raise
            except Exception as error:
                if is_refused:
                    raise
                is_refused = True
                log.error("sync_response_not_admitted", principal=self._name, error=blame(error))

    def _classify(self, raw: JsonObject, since: SyncToken | None) -> Admission:
        return self._admitter.classify(raw, since=since, certified_ms=self._certified_ms)

    def _moved(self, batch: SyncBatch) -> Checkpoint:
        event = TrustEvent.RESYNCED if self._lost else TrustEvent.ADMITTED
        return Checkpoint(batch.next_batch, advance(self._trust, event))

    async def _fits(self, raw: JsonObject, batch: SyncBatch, since: SyncToken | None) -> bool:
        try:
            admission = self._classify(raw, since)
        except Exception:
            return False
        return await self._admitter.fits(admission, self._moved(batch))

    async def _commit(self, raw: JsonObject, batch: SyncBatch, since: SyncToken | None) -> None:
        admission = self._classify(raw, since)
        if admission.dropped:
            log.warning("journal_event_row_unreadable", events=admission.dropped)
        if admission.is_empty and self._gate.is_open and not self._lost and not self._is_due():
            self._since = batch.next_batch
            self._note_success()
            return
        checkpoint = self._moved(batch)
        if admission.is_empty:
            self._certified_ms = await self._admitter.save_token(checkpoint)
        else:
            self._certified_ms = await self._admitter.admit(admission, checkpoint)
        self._since, self._unsaved_since = batch.next_batch, None
        self._believe(checkpoint.trust)
        self._note_success()
        if not self._gate.is_open:
            log.info("gate_opened", principal=self._name)
            self._gate.open()

    def _believe(self, trust: CheckpointTrust) -> None:
        known, self._trust = self._trust, trust
        gauge = self._metrics.checkpoint_trust
        gauge.labels(self._name, known.state.value, known.reason.value).set(0)
        gauge.labels(self._name, trust.state.value, trust.reason.value).set(1)
        if known.state is not trust.state:
            self._metrics.checkpoint_trust_since_timestamp.labels(self._name).set(self._clock.now().timestamp())

    def _is_due(self) -> bool:
        now = self._clock.boottime()
        if self._unsaved_since is None:
            self._unsaved_since = now
        return now - self._unsaved_since >= TOKEN_SAVE_SECONDS

    def _note_success(self) -> None:
        self._metrics.sync_last_success_timestamp.labels(self._name).set(self._clock.now().timestamp())

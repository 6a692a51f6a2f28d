"""The owned receive loop of one principal: request, classify, admit, again. No callbacks, no token of anybody else.

A response is admitted, or tried again as the same object; it is never fetched a second time (A1). Whatever the
homeserver answers, the loop backs off and goes on; the token never moves past what is stored (B5).
"""

import structlog

from mindroom.bot.admit import Admitter
from mindroom.bot.gate import StartGate
from mindroom.core.backoff import Backoff
from mindroom.core.clock import Clock
from mindroom.core.errors import DatabaseUnavailable, MatrixFailure, MatrixFailureClass
from mindroom.core.ids import SyncToken
from mindroom.core.metrics import Metrics, errcode_label
from mindroom.core.ports import SyncBatch, SyncPort
from mindroom.core.values import Trust
from mindroom.journal.trust import CheckpointTrust, TrustEvent, advance

log = structlog.get_logger(__name__)

LONG_POLL_SECONDS = 30.0
TOKEN_SAVE_SECONDS = 5.0
"""A token of responses that brought nothing to store is saved after this long."""


class SyncLoop:
    """Sole reader of `/sync` and sole mover of the checkpoint of one principal."""

    def __init__(
        self, port: SyncPort, *, admitter: Admitter, gate: StartGate, clock: Clock, metrics: Metrics, name: str
    ) -> None:
        self._port = port
        self._admitter = admitter
        self._gate = gate
        self._clock = clock
        self._metrics = metrics
        self._name = name
        self._since: SyncToken | None = None
        self._trust = CheckpointTrust(Trust.COLD, TrustEvent.NO_TOKEN)
        self._unsaved_since: float | None = None

    async def run(self) -> None:
        """Receive until cancelled. Raises FenceLost, and MatrixFailure of class AUTH when the session is gone."""
        self._since, trust = await self._admitter.journal.load_checkpoint()
        self._believe(trust)
        if self._since is not None:
            await self._admitter.save_token(self._since, trust)
        backoff = Backoff(0.5, 60.0)
        while True:
            asked_at = self._clock.boottime()
            try:
                batch = await self._port.sync(
                    self._since,
                    timeout_seconds=LONG_POLL_SECONDS if self._gate.is_open else 0.0,
                    full_state=False,
                )
            except MatrixFailure as failure:
                await self._failed(failure, backoff)
                continue
            backoff.reset()
            await self._take(batch)
            self._gate.heard(asked_at=asked_at)

    async def _failed(self, failure: MatrixFailure, backoff: Backoff) -> None:
        self._metrics.sync_failures.labels(errcode_label(failure.errcode or failure.failure_class.value)).inc()
        if failure.errcode == "M_UNKNOWN_TOKEN":
            raise failure
        wait = backoff.next_seconds()
        if failure.failure_class is MatrixFailureClass.RATE_LIMITED and failure.retry_after_seconds is not None:
            wait = max(wait, failure.retry_after_seconds)
        log.warning(
            "matrix_sync_failed",
            failure=failure.failure_class.value,
            status=failure.status,
            errcode=failure.errcode,
            wait_seconds=round(wait, 1),
        )
        await self._clock.sleep(wait)

    async def _take(self, batch: SyncBatch) -> None:
        """Admit one response, however long the database takes."""
        admission = self._admitter.classify(batch, since=self._since)
        if admission.dropped:
            log.warning("journal_event_row_unreadable", events=admission.dropped)
        if admission.is_empty and self._gate.is_open and not self._is_due():
            self._since = batch.next_batch
            self._note_success()
            return
        backoff = Backoff(0.25, 20.0)
        while True:
            certified = advance(self._trust, TrustEvent.ADMITTED)
            try:
                if admission.is_empty:
                    await self._admitter.save_token(batch.next_batch, certified)
                else:
                    await self._admitter.admit(admission, token=batch.next_batch, trust=certified)
            except DatabaseUnavailable as error:
                self._believe(advance(self._trust, TrustEvent.ADMISSION_FAILED))
                wait = backoff.next_seconds()
                log.warning("matrix_sync_certification_uncertain", code=error.code, wait_seconds=round(wait, 1))
                await self._clock.sleep(wait)
            else:
                break
        self._since, self._unsaved_since = batch.next_batch, None
        self._believe(certified)
        self._note_success()
        if not self._gate.is_open:
            log.info("gate_opened", principal=self._name)
            self._gate.open()

    def _believe(self, trust: CheckpointTrust) -> None:
        self._trust = trust
        for state in Trust:
            self._metrics.checkpoint_trust.labels(self._name, state.value).set(state is trust.state)

    def _is_due(self) -> bool:
        now = self._clock.boottime()
        if self._unsaved_since is None:
            self._unsaved_since = now
        return now - self._unsaved_since >= TOKEN_SAVE_SECONDS

    def _note_success(self) -> None:
        self._metrics.sync_last_success_timestamp.labels(self._name).set(self._clock.now().timestamp())

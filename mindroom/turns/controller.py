"""TurnController: takes one source from its lane to its verdict, and one batch from its queue to its answer.

precheck -> normalize -> resolve -> decide happens while the lane's slot is held; execution happens in the task of the
conversation, one answer at a time, under the lock that the queue itself is (ResponseLifecycleKey). A failure gives the
source back to the feeder with a back-off on its row (C2).
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from mindroom.config import ThreadMode
from mindroom.core.backoff import backoff_seconds
from mindroom.core.blame import blame
from mindroom.core.cancel import CancelScope
from mindroom.core.clock import Clock
from mindroom.core.errors import (
    DependencyError,
    FenceLost,
    MindRoomError,
    RetryClass,
    TransactionRefused,
)
from mindroom.core.ids import Receipt
from mindroom.core.metrics import Metrics
from mindroom.core.slots import RoomSlots
from mindroom.core.values import Action, OrderKey, Reason, ResponseLifecycleKey, Verdict
from mindroom.db.engine import Tx
from mindroom.db.lease import Lease
from mindroom.journal.records import Hearer, ParkedAs, PendingSource
from mindroom.journal.store import Journal
from mindroom.responses.runner import ResponseRunner
from mindroom.turns.coalescing import Batch, ConversationQueue
from mindroom.turns.ignores import IgnoredSources
from mindroom.turns.ingress import PreparedIngress
from mindroom.turns.intents import IntentBuilder
from mindroom.turns.normalizer import InboundTurnNormalizer
from mindroom.turns.parking import Parking, parked_as
from mindroom.turns.policy import TurnPolicy
from mindroom.turns.resolver import ConversationResolver
from mindroom.turns.running import RunningTurns

log = structlog.get_logger(__name__)

MAX_RUNNING_TURNS = 32
"""Turns of one principal that hold a model call at a time (C3)."""
MAX_RUNNING_IN_ROOM = 16
"""Of these one room may have so many: whatever hangs in it, others go on (C3)."""
RESUME_GATHER_SECONDS = 0.25
"""An open turn is taken up when what was written since has had the time to be decided and to join it (R19)."""
FIRST_RETRY_SECONDS = 1.0
RETRY_CAP_SECONDS = 60.0

_Sources = Sequence[PendingSource | PreparedIngress]

Returned = Callable[[Receipt, OrderKey, float | None], None]
"""(receipt, its order key, seconds until it is due again or None when it is settled)."""


@dataclass
class _Conversation:
    queue: ConversationQueue = field(default_factory=ConversationQueue)
    task: asyncio.Task[None] | None = None


class TurnController:
    """Decides and executes for one principal."""

    def __init__(
        self,
        lease: Lease,
        *,
        hearer: Hearer,
        journal: Journal,
        normalizer: InboundTurnNormalizer,
        resolver: ConversationResolver,
        policy: TurnPolicy,
        intents: IntentBuilder,
        runner: ResponseRunner,
        ignored: IgnoredSources,
        running: RunningTurns,
        parking: Parking,
        thread_mode: ThreadMode,
        clock: Clock,
        metrics: Metrics,
        returned: Returned,
    ) -> None:
        self._lease = lease
        self._hearer = hearer
        self._journal = journal
        self._normalizer = normalizer
        self._resolver = resolver
        self._policy = policy
        self._intents = intents
        self._runner = runner
        self._ignored = ignored
        self._running = running
        self._parking = parking
        self._thread_mode = thread_mode
        self._clock = clock
        self._metrics = metrics
        self._returned = returned
        self._conversations: dict[ResponseLifecycleKey, _Conversation] = {}
        self._slots = RoomSlots(total=MAX_RUNNING_TURNS, per_room=MAX_RUNNING_IN_ROOM)
        self._rng = random.Random()
        self._tasks: asyncio.TaskGroup | None = None
        self._refusing = False

    # ---- deciding, in the lane -----------------------------------------------------------------------------------
    async def decide(self, source: PendingSource) -> None:
        """Give a source its verdict; one that is to be answered stands in its conversation's queue afterwards.

        Errors are dealt with here: the slot is free when this returns. Raises FenceLost.
        """
        try:
            await self._decide(source)
        except FenceLost:
            raise
        except DependencyError as error:
            await self._give_back([source], error)
        except Exception as error:
            log.error("decision_failed", receipt=source.receipt, error=blame(error))
            await self._give_back([source], error)

    async def _decide(self, source: PendingSource) -> None:
        started = self._clock.boottime()
        if source.sender not in self._hearer.authorized:
            self._ignore(source, Verdict(Action.IGNORE, Reason.UNAUTHORIZED))
            return
        replied = await self._resolver.replied(source)
        prepared = self._normalizer.prepare(source, mode=self._thread_mode, replied=replied)
        if isinstance(prepared, Verdict):
            self._ignore(source, prepared)
            return
        if source.open_turn is None:
            verdict = self._policy.decide(prepared, await self._resolver.snapshot(prepared))
            self._metrics.dispatch_seconds.observe(self._clock.boottime() - started)
            if verdict.action is Action.IGNORE:
                self._ignore(source, verdict)
                return
            self._metrics.verdicts.labels(verdict.action.value, verdict.reason.value).inc()
            reason = verdict.reason
        else:
            reason = Reason.MENTION  # an open turn keeps the reason of its own row
        self._enqueue(prepared, reason)

    def _ignore(self, source: PendingSource, verdict: Verdict) -> None:
        self._metrics.verdicts.labels(verdict.action.value, verdict.reason.value).inc()
        log.info("source_ignored", receipt=source.receipt, reason=verdict.reason.value)
        self._ignored.add(source, verdict)

    # ---- executing, in the conversation --------------------------------------------------------------------------
    async def run(self) -> None:
        """Host the conversations' tasks until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                await self._ignored.run()
            finally:
                self._tasks = None

    async def drain(self, *, seconds: float) -> None:
        """Start nothing new and let running answers finish, at most `seconds`; the rest stays owed."""
        self._refusing = True
        deadline = self._clock.boottime() + seconds
        while busy := [c.task for c in self._conversations.values() if c.task is not None]:
            left = deadline - self._clock.boottime()
            if left <= 0:
                return
            await asyncio.wait(busy, timeout=left)

    def _enqueue(self, ingress: PreparedIngress, reason: Reason) -> None:
        key = ResponseLifecycleKey(self._lease.principal, ingress.conversation)
        conversation = self._conversations.setdefault(key, _Conversation())
        conversation.queue.put(ingress, reason=reason)
        if conversation.task is None and self._tasks is not None:
            conversation.task = self._tasks.create_task(self._converse(key, conversation))

    async def _converse(self, key: ResponseLifecycleKey, conversation: _Conversation) -> None:
        try:
            if conversation.queue.is_resuming:
                await self._clock.sleep(RESUME_GATHER_SECONDS)
            while not self._refusing and (batch := conversation.queue.start()) is not None:
                async with self._slots.taken(key.conversation.room):
                    await self._answer(batch)
                conversation.queue.finish()
        except FenceLost:
            log.info("conversation_stopped", room=key.conversation.room)
        finally:
            conversation.task = None
            if self._conversations.get(key) is conversation:
                del self._conversations[key]

    async def _answer(self, batch: Batch) -> None:
        """Run one batch; whatever happens, its sources are settled or given back."""
        sources = [decided.ingress for decided in batch.sources]
        scope = CancelScope()
        run = asyncio.ensure_future(self._execute(batch, scope))
        try:
            with self._running.entered(batch.anchor.ingress.conversation, [s.event_id for s in sources], scope):
                await run
        except FenceLost:
            raise
        except TransactionRefused as refused:
            log.info("turn_refused", reason=refused.reason)
            await self._defer(sources, code=refused.code, retry_class=RetryClass.RETRY, at_once=True)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if scope.cause is None or (current is not None and current.cancelling()):
                run.cancel()
                await asyncio.gather(run, return_exceptions=True)
                raise
            log.info("turn_cancelled", cause=scope.cause.value)
            self._hand_back(sources, delay_seconds=0.0)
        except DependencyError as error:
            await self._give_back(sources, error)
        except Exception as error:
            log.error("turn_failed", error=blame(error))
            await self._give_back(sources, error)
        else:
            self._hand_back(sources, delay_seconds=None)

    async def _execute(self, batch: Batch, scope: CancelScope) -> None:
        anchor = batch.anchor.ingress
        if anchor.requester not in self._hearer.authorized:
            raise TransactionRefused("execute", "the requester is no longer authorized")
        intent = await self._intents.build(batch)
        await self._runner.run(intent, scope=scope)

    # ---- giving back ---------------------------------------------------------------------------------------------
    async def _give_back(self, sources: _Sources, error: Exception) -> None:
        """Back-off on the rows, or rest: only an error of the source's own counts as an attempt (C2)."""
        retry_class = error.retry_class if isinstance(error, MindRoomError) else RetryClass.PERMANENT
        code = error.code if isinstance(error, MindRoomError) else type(error).__name__
        # What joined an open turn is not to blame for how that turn fails (R19), and each has attempts of its own.
        blamed = [source for source in sources if source.open_turn is not None] or sources
        rest = parked_as(error, attempts=max(source.attempts for source in blamed))
        resting = [s for s in blamed if rest is not None and parked_as(error, attempts=s.attempts) is rest]
        if rest is not None:
            await self._rest(resting, code=code, parked_as=rest)
        if others := [source for source in sources if source not in resting]:
            await self._defer(others, code=code, retry_class=retry_class)

    async def _rest(self, sources: _Sources, *, code: str, parked_as: ParkedAs) -> None:
        try:
            await self._parking.park([source.event_id for source in sources], code=code, parked_as=parked_as)
        except DependencyError:
            self._hand_back(sources, delay_seconds=self._delay(sources))
        else:
            self._hand_back(sources, delay_seconds=None)

    async def _defer(self, sources: _Sources, *, code: str, retry_class: RetryClass, at_once: bool = False) -> None:
        """Try again later; `at_once` for what may be right again already, unless it failed before."""
        is_first = max(source.failures for source in sources) == 0
        delay = 0.0 if at_once and is_first else self._delay(sources)
        log.warning("sources_deferred", code=code, delay_seconds=round(delay, 1))

        async def body(tx: Tx) -> None:
            await self._journal.record_failure(
                tx, [s.event_id for s in sources], code=code, retry_class=retry_class, delay_seconds=delay
            )

        try:
            await self._lease.run("record_failure", body)
        except DependencyError:
            log.warning("failure_not_recorded")
        self._hand_back(sources, delay_seconds=delay)

    def _delay(self, sources: _Sources) -> float:
        failures = 1 + max(source.failures for source in sources)
        return backoff_seconds(failures, first=FIRST_RETRY_SECONDS, cap=RETRY_CAP_SECONDS, rng=self._rng)

    def _hand_back(self, sources: _Sources, *, delay_seconds: float | None) -> None:
        """The feeder may read them again after so many seconds; None: they are not owed any more."""
        for source in sources:
            self._returned(source.receipt, source.order_key, delay_seconds)

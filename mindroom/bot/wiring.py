"""How the services of one principal are put together. Reads like a wiring diagram; decides nothing."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from mindroom.bot.admit import AdmissionHooks, Admitter
from mindroom.bot.edges import Edges
from mindroom.bot.feeder import Feeder
from mindroom.bot.forget import Forgetting
from mindroom.bot.gaps import GapWorker
from mindroom.bot.gate import StartGate
from mindroom.bot.hydrate import Hydrator
from mindroom.bot.invites import JoinWorker
from mindroom.bot.lanes import Lanes
from mindroom.bot.restore import RevisionRestorer
from mindroom.bot.rooms import RoomProvisioner
from mindroom.bot.sync import SyncLoop
from mindroom.bot.upgrades import Upgrades
from mindroom.config import EffectiveAgent, EffectiveConfig
from mindroom.core.clock import Clock
from mindroom.core.ids import RoomId
from mindroom.core.metrics import Metrics
from mindroom.core.ports import ModelPort
from mindroom.core.seams import Seams
from mindroom.db.lease import Lease
from mindroom.journal.hydration import Hydration
from mindroom.journal.projection import MessageProjection
from mindroom.journal.records import Hearer
from mindroom.journal.recovery import Recovery
from mindroom.journal.rooms import RoomBook
from mindroom.journal.store import Journal
from mindroom.outbox.limits import SendLimits
from mindroom.outbox.store import Outbox
from mindroom.outbox.worker import OutboxWorker
from mindroom.responses.assembly import Responder
from mindroom.responses.attempt import ResponseAttemptRunner
from mindroom.responses.payload import ResponsePayloadPreparer
from mindroom.responses.runner import ResponseRunner
from mindroom.responses.streaming import Streaming
from mindroom.responses.transitions import TurnTransitions
from mindroom.responses.working import WorkingSigns
from mindroom.turns.controller import TurnController
from mindroom.turns.ignores import IgnoredSources
from mindroom.turns.intents import IntentBuilder
from mindroom.turns.normalizer import InboundTurnNormalizer
from mindroom.turns.parking import Parking
from mindroom.turns.policy import TurnPolicy
from mindroom.turns.release import TurnRelease
from mindroom.turns.resolver import ConversationResolver
from mindroom.turns.running import RunningTurns
from mindroom.turnstore.store import TurnStore


@dataclass(frozen=True, slots=True)
class BotNeeds:
    """What every bot of a process shares."""

    config: EffectiveConfig
    config_generation: str
    version: str
    """Of the program."""
    model: ModelPort
    new_seams: Callable[[], Seams]
    clock: Clock
    metrics: Metrics
    drain_seconds: float = 20.0


@dataclass(frozen=True, slots=True)
class Ledgers:
    """The three ledgers of one principal, and its book of rooms."""

    journal: Journal
    projection: MessageProjection
    recovery: Recovery
    hydration: Hydration
    turns: TurnStore
    outbox: Outbox
    book: RoomBook

    @classmethod
    async def load(cls, lease: Lease) -> "Ledgers":
        """Handles bound to the principal of the lease (I4)."""
        principal, database = lease.principal, lease.database
        journal = Journal(principal, database)
        return cls(
            journal,
            MessageProjection(principal, database),
            Recovery(principal, database),
            Hydration(principal, database),
            TurnStore(principal, database),
            Outbox(principal, database),
            await journal.load_book(),
        )


@dataclass(frozen=True, slots=True)
class Services:
    """What runs while a principal is served."""

    gate: StartGate
    sync: SyncLoop
    feeder: Feeder
    lanes: Lanes
    controller: TurnController
    parking: Parking
    worker: OutboxWorker
    gaps: GapWorker
    restorer: RevisionRestorer
    joins: JoinWorker
    upgrades: Upgrades
    rooms: RoomProvisioner
    signs: WorkingSigns


@dataclass(frozen=True, slots=True)
class _Saying:
    worker: OutboxWorker
    runner: ResponseRunner
    signs: WorkingSigns
    release: TurnRelease
    forgetting: Forgetting
    hydrator: Hydrator


def wire(agent: EffectiveAgent, lease: Lease, *, ledgers: Ledgers, edges: Edges, needs: BotNeeds) -> Services:
    """All services of one principal under one lease."""
    config, clock, metrics = needs.config, needs.clock, needs.metrics
    hearer = Hearer(agent.user_id, frozenset(other.user_id for other in config.agents), config.authorized_users)
    gate = StartGate(ledgers.book)
    running, configured, gap_found = RunningTurns(), set[RoomId](), asyncio.Event()
    saying = _saying(agent, lease, ledgers=ledgers, edges=edges, hearer=hearer, gate=gate, running=running, needs=needs)
    lanes = Lanes(lease.principal, metrics=metrics, name=agent.name)
    feeder = Feeder(ledgers.journal, gate=gate, put=lanes.put, clock=clock, metrics=metrics, name=agent.name)
    parking = Parking(lease, ledgers.journal, ledgers.turns, ledgers.outbox, saying.worker, needs.version)
    controller = _controller(
        agent,
        lease,
        ledgers=ledgers,
        hearer=hearer,
        configured=configured,
        saying=saying,
        running=running,
        parking=parking,
        feeder=feeder,
        needs=needs,
    )
    joins = JoinWorker(lease, ledgers.recovery, hearer, ledgers.book, edges.membership, gate, clock)
    upgrades = Upgrades(
        lease,
        agent.user_id,
        ledgers.journal,
        ledgers.outbox,
        ledgers.book,
        saying.worker,
        edges.membership,
        gate,
        configured,
        clock,
    )
    admitter = Admitter(
        lease=lease,
        hearer=hearer,
        book=ledgers.book,
        journal=ledgers.journal,
        projection=ledgers.projection,
        recovery=ledgers.recovery,
        turns=ledgers.turns,
        outbox=ledgers.outbox,
        worker=saying.worker,
        release=saying.release,
        forgetting=saying.forgetting,
        metrics=metrics,
        hooks=AdmissionHooks(
            pending=feeder.wake, held=gate.hold_also, gaps=gap_found.set, rooms=[joins.wake, upgrades.wake]
        ),
    )
    return Services(
        gate=gate,
        sync=SyncLoop(
            edges.sync,
            reader=edges.reader,
            admitter=admitter,
            gate=gate,
            clock=clock,
            metrics=metrics,
            name=agent.name,
        ),
        feeder=feeder,
        lanes=lanes,
        controller=controller,
        parking=parking,
        worker=saying.worker,
        gaps=GapWorker(
            admitter,
            history=edges.history,
            gate=gate,
            found=gap_found,
            released=feeder.wake_all,
            clock=clock,
            metrics=metrics,
        ),
        restorer=RevisionRestorer(lease, hearer, ledgers.projection, saying.forgetting, edges.history, gate, clock),
        joins=joins,
        upgrades=upgrades,
        rooms=RoomProvisioner(
            agent, config.agents, sorted(config.authorized_users), edges, gate, configured, lease, clock
        ),
        signs=saying.signs,
    )


def _saying(
    agent: EffectiveAgent,
    lease: Lease,
    *,
    ledgers: Ledgers,
    edges: Edges,
    hearer: Hearer,
    gate: StartGate,
    running: RunningTurns,
    needs: BotNeeds,
) -> _Saying:
    """Outbox, presentation, the runner that feeds both, and the reader of what prompts need."""
    clock, metrics = needs.clock, needs.metrics
    seams, limits = needs.new_seams(), SendLimits(clock, metrics=metrics, name=lease.name)
    streaming = Streaming(
        lease, gateway=edges.gateway, gate=gate, limits=limits, seams=seams, clock=clock, metrics=metrics
    )
    worker = OutboxWorker(
        lease,
        outbox=ledgers.outbox,
        gateway=edges.gateway,
        reader=edges.reader,
        gate=gate,
        presentation=streaming,
        limits=limits,
        clock=clock,
        metrics=metrics,
    )
    release = TurnRelease(ledgers.turns, ledgers.outbox, worker, running)
    forgetting = Forgetting(ledgers.journal, ledgers.turns, ledgers.outbox, release)
    hydrator = Hydrator(
        lease,
        hearer,
        ledgers.book,
        ledgers.hydration,
        ledgers.projection,
        forgetting,
        edges.history,
        clock,
        metrics,
    )
    responder = _responder(agent, needs)
    signs = WorkingSigns(edges.attention, effect_seconds=lease.effect_seconds, clock=clock)
    runner = ResponseRunner(
        responder=responder,
        transitions=TurnTransitions(
            lease, ledgers.journal, ledgers.turns, ledgers.outbox, worker, ledgers.book, responder
        ),
        payloads=ResponsePayloadPreparer(responder, ledgers.projection, ledgers.turns, ledgers.book, hydrator, clock),
        attempts=ResponseAttemptRunner(needs.model, seams, metrics),
        streaming=streaming,
        signs=signs,
        gateway=edges.gateway,
        clock=clock,
        metrics=metrics,
    )
    return _Saying(worker, runner, signs, release, forgetting, hydrator)


def _controller(
    agent: EffectiveAgent,
    lease: Lease,
    *,
    ledgers: Ledgers,
    hearer: Hearer,
    configured: set[RoomId],
    saying: _Saying,
    running: RunningTurns,
    parking: Parking,
    feeder: Feeder,
    needs: BotNeeds,
) -> TurnController:
    agents = needs.config.agents
    return TurnController(
        lease,
        hearer=hearer,
        journal=ledgers.journal,
        normalizer=InboundTurnNormalizer({other.name: other.user_id for other in agents}),
        resolver=ConversationResolver(
            hearer,
            {other.user_id: other.answers for other in agents},
            configured,
            ledgers.projection,
            ledgers.book,
            saying.hydrator,
        ),
        policy=TurnPolicy(),
        intents=IntentBuilder(ledgers.turns, ledgers.projection),
        runner=saying.runner,
        ignored=IgnoredSources(
            lease, journal=ledgers.journal, release=saying.release, clock=needs.clock, settled=feeder.settled
        ),
        running=running,
        parking=parking,
        thread_mode=agent.thread_mode,
        clock=needs.clock,
        metrics=needs.metrics,
        returned=feeder.returned,
    )


def _responder(agent: EffectiveAgent, needs: BotNeeds) -> Responder:
    agents = needs.config.agents
    return Responder(
        name=agent.name,
        user_id=agent.user_id,
        display_name=agent.display_name,
        role=agent.role,
        model=agent.model,
        config_generation=needs.config_generation,
        hosted_names={other.name: other.user_id for other in agents},
        hosted_display_names={other.user_id: other.display_name for other in agents},
    )

"""compose(settings) -> Runtime: the one assembly path. CLI, demo and tests all boot through it."""

import asyncio
import gc
import os
import random
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import structlog

from mindroom import __version__
from mindroom.app.database import find_database, owned
from mindroom.app.faultplan import read_fault_plan
from mindroom.bot.edges import HomeserverConnect
from mindroom.bot.sessions import Sessions
from mindroom.bot.supervisor import Supervisor
from mindroom.bot.wiring import BotNeeds
from mindroom.config import Config, EffectiveConfig, config_generation, effective_config, resolve_secret
from mindroom.config.schema import OpenAILikeModel
from mindroom.core import faults
from mindroom.core.clock import Clock, SystemClock
from mindroom.core.metrics import Metrics
from mindroom.core.seams import Seams
from mindroom.db.address import open_session
from mindroom.db.engine import Database, connect, database_errors
from mindroom.db.folder import DataFolder
from mindroom.db.instance import Instance, init_instance
from mindroom.db.lease import LeaseKeeper, LeaseTimes, register_process
from mindroom.db.principals import PrincipalStore
from mindroom.db.schema import EXPECTED_REVISION
from mindroom.matrix.sync import TIMELINE_LIMIT
from mindroom.models.configured import ConfiguredModels
from mindroom.models.settings import ModelProvider, ModelSettings
from mindroom.ops.http import OperatorServer
from mindroom.ops.loop_watch import LoopWatch
from mindroom.responses.loop import MODEL_ATTEMPT, RetryListener

log = structlog.get_logger(__name__)

LEASE_VARIABLE = "MINDROOM_LEASE_TTL_SECONDS"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def _silent(_line: str) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """What a process is started with."""

    config: Config
    data: Path
    progress: Callable[[str], None] = _silent


@dataclass(frozen=True, slots=True)
class Runtime:
    """A composed process; `run` is all of its life."""

    config: EffectiveConfig
    generation: str
    folder: DataFolder
    clock: Clock
    metrics: Metrics
    times: LeaseTimes
    progress: Callable[[str], None]
    timeline_limit: int = TIMELINE_LIMIT

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Serve until `stop`, then drain. `ready` is set once every principal has admitted its first response."""
        async with AsyncExitStack() as stack:
            dsn = await stack.enter_async_context(owned(find_database(self.folder), progress=self.progress))
            instance = await self._init_instance(dsn)
            database = await self._connect(dsn, pool_size=8)
            stack.push_async_callback(database.close)
            beats = await self._connect(dsn, pool_size=1, command_seconds=self.times.renewal_seconds)
            stack.push_async_callback(beats.close)
            models = ConfiguredModels(_model_settings(self.config))
            stack.push_async_callback(models.close)
            await self._serve(stop, ready, database=database, beats=beats, instance=instance, models=models)

    async def _connect(self, dsn: str, *, pool_size: int, command_seconds: float = 60.0) -> Database:
        return await connect(
            dsn,
            metrics=self.metrics,
            pool_size=pool_size,
            lease_ttl_seconds=self.times.ttl_seconds,
            acquire_seconds=min(10.0, command_seconds),
            command_seconds=command_seconds,
            clock=self.clock,
        )

    async def _init_instance(self, dsn: str) -> Instance:
        async with database_errors():
            connection = await open_session(dsn)
        try:
            return await init_instance(
                connection, key_path=self.folder.key_file, instance_path=self.folder.path / "instance.id"
            )
        finally:
            await connection.close()

    async def _serve(
        self,
        stop: asyncio.Event,
        ready: asyncio.Event | None,
        *,
        database: Database,
        beats: Database,
        instance: Instance,
        models: ConfiguredModels,
    ) -> None:
        process = await register_process(
            database,
            host=socket.gethostname(),
            pid=os.getpid(),
            boot_id=_boot_id(),
            data_folder=str(self.folder.path.resolve()),
            version=__version__,
        )
        keeper = LeaseKeeper(database, process=process, clock=self.clock, times=self.times, beat_database=beats)
        homeserver = HomeserverConnect(self.config.homeserver, self.clock, self.metrics, self.timeline_limit)
        supervisor = Supervisor(
            keeper=keeper,
            sessions=Sessions(PrincipalStore(database, instance.sealer), homeserver),
            connect=homeserver,
            needs=BotNeeds(
                config=self.config,
                config_generation=self.generation,
                version=__version__,
                model=models,
                new_seams=self._new_seams,
                clock=self.clock,
                metrics=self.metrics,
            ),
            ready=ready or asyncio.Event(),
        )
        server = OperatorServer(metrics=self.metrics, statuses=supervisor.statuses)
        await server.start(self.config.http.host, self.config.http.port)
        log.info("serving", process=process, http_port=server.port, version=__version__)
        background = [
            asyncio.ensure_future(keeper.beat()),
            asyncio.ensure_future(LoopWatch(self.metrics).run()),
            asyncio.ensure_future(_warm_up(models)),
        ]
        try:
            await supervisor.run(stop)
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await server.stop()

    def _new_seams(self) -> Seams:
        """Seams of one principal with the listeners every run has; retry stands outermost."""
        seams = Seams(
            clock=self.clock,
            count_fault=lambda name, _fault: self.metrics.listener_failures.labels(name).inc(),
        )
        seams.wrap(
            MODEL_ATTEMPT,
            RetryListener(
                clock=self.clock,
                rng=random.Random(),
                count_failure=lambda kind: self.metrics.model_failures.labels(kind.value).inc(),
            ),
        )
        return seams


def compose(settings: RuntimeSettings) -> Runtime:
    """Everything a process needs, from its settings. Raises UserError for what cannot work."""
    faults.install(read_fault_plan())
    metrics = Metrics()
    metrics.build_info.labels(__version__, EXPECTED_REVISION).set(1)
    return Runtime(
        config=effective_config(settings.config),
        generation=config_generation(settings.config),
        folder=DataFolder(settings.data),
        clock=SystemClock(),
        metrics=metrics,
        times=LeaseTimes(float(os.environ.get(LEASE_VARIABLE, "15"))),
        progress=settings.progress,
    )


def _model_settings(config: EffectiveConfig) -> list[ModelSettings]:
    found: list[ModelSettings] = []
    for name in dict.fromkeys(agent.model for agent in config.agents):
        model = config.models[name]
        if isinstance(model, OpenAILikeModel):
            found.append(
                ModelSettings(
                    name=name,
                    provider=ModelProvider.OPENAI_LIKE,
                    id=model.id,
                    base_url=model.base_url,
                    api_key=resolve_secret(model.api_key_env) if model.api_key_env else "",
                    timeout_seconds=model.timeout_seconds,
                )
            )
        else:
            found.append(ModelSettings(name=name, provider=ModelProvider.OFFLINE, id="offline"))
    return found


async def _warm_up(models: ConfiguredModels) -> None:
    """Import providers while the first sync runs; what is loaded by then need not be scanned by the collector again."""
    await models.warm_up()
    gc.collect()
    gc.freeze()


def _boot_id() -> str:
    """Together with the file lock this proves that the earlier owner of a data folder is dead."""
    return _BOOT_ID.read_text().strip()

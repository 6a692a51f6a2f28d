"""One installation's `mindroom run` as a real process, started again whenever it ends by itself.

Plays the service manager of the machine, and holds the control file of the fault plan: a plan is taken back as soon as
a process has ended, so that what starts afterwards is not struck again.
"""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import aiohttp

from mindroom.app.compose import LEASE_VARIABLE
from mindroom.app.faultplan import VARIABLE
from mindroom.core.faults import Strike
from tests.faults.births import Child, Midwife
from tests.faults.cases import SCENE_ENDS, Case, has_fired

LEASE_TTL_SECONDS = 3
_STOP_SECONDS = 40.0
_RESTARTS = 20
"""More ends in one run than this are a fault of their own."""
_INHERITED = ("PATH", "HOME", "LANG", "PYTHONPATH")


def patience_seconds(seconds: float = 30.0) -> float:
    """What 30 s (K1) are on this machine now: longer when more than twice as much wants to run as there are cores."""
    return seconds * max(1.0, os.getloadavg()[0] / (2 * (os.cpu_count() or 1)))


class NotServing(AssertionError):
    """The process does not come up."""


class RuntimeProcess:
    """`mindroom run` on `folder`, which holds config.yaml; its log is folder/runtime.log."""

    def __init__(
        self, folder: Path, *, midwife: Midwife, environ: dict[str, str], session: aiohttp.ClientSession
    ) -> None:
        self.log = folder / "runtime.log"
        self.log.touch()
        self.record = folder / "record"
        self.exits: list[int] = []
        """Exit codes since the last `arm`; negative for a signal."""
        self._folder = folder
        self._midwife = midwife
        self._session = session
        self._control = folder / "control.json"
        self._environ = environ | {VARIABLE: str(self._control), LEASE_VARIABLE: str(LEASE_TTL_SECONDS)}
        self._process: Child | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._log_start = 0
        self._ready_since: float | None = None
        self._run = 0

    # ---- plan -----------------------------------------------------------------------------------------------------
    def arm(self, case: Case | None, *, trouble: Sequence[Strike] = ()) -> None:
        """Count from here on; strike as the case says, or only record with None. `trouble` comes in both."""
        self._run += 1
        self.exits.clear()
        self.record.write_text("")
        self._write(case, trouble)

    def disarm(self) -> None:
        """Go on recording, strike no more."""
        self._write(None, ())

    def end_scene(self) -> None:
        """What is passed from here on is not what the scenario is about."""
        with self.record.open("a") as out:
            out.write(f"{SCENE_ENDS}\n")

    @property
    def has_fired(self) -> bool:
        """Whether the plan has struck."""
        return has_fired(self.record.read_text())

    def _write(self, case: Case | None, trouble: Sequence[Strike]) -> None:
        plan = {
            "run": str(self._run),
            "point": case.point if case else "",
            "moment": case.moment if case else "before",
            "hit_number": case.hit_number if case else 1,
            "fault": (case.fault if case else "error"),
            "record": str(self.record),
            "trouble": [(strike.point, strike.moment, strike.hit_number, strike.fault) for strike in trouble],
        }
        draft = self._control.with_suffix(".new")
        draft.write_text(json.dumps(plan))
        draft.replace(self._control)

    # ---- life -----------------------------------------------------------------------------------------------------
    @property
    def is_running(self) -> bool:
        """True between `start` and `stop` or `kill`, whatever happened meanwhile."""
        return self._keeper is not None

    async def start(self) -> None:
        """Start; does not wait until it serves."""
        if self._keeper is None:
            await self._spawn()
            self._keeper = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """SIGTERM, and wait for the end. A plan may strike on the way."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """SIGKILL."""
        await self._end(signal.SIGKILL)

    def strike(self, number: signal.Signals) -> None:
        """A signal out of the blue; nothing when the process is just between two lives."""
        self.exits.clear()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _end(self, number: signal.Signals) -> None:
        keeper, self._keeper, self._ready_since = self._keeper, None, None
        if keeper is not None:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
        try:
            code = await asyncio.wait_for(self._process.wait(), patience_seconds(_STOP_SECONDS))
        except TimeoutError:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()
            raise NotServing(f"the process did not end after {number.name}") from None
        self._process = None
        self.exits.append(code)

    async def _spawn(self) -> None:
        self._ready_since = None
        self._log_start = self.log.stat().st_size
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        self._process = await self._midwife.start(folder=self._folder, log=self.log, environ=inherited | self._environ)

    async def _keep(self) -> None:
        while self._process is not None:
            self.exits.append(await self._process.wait())
            self._process = None
            self.disarm()
            if len(self.exits) > _RESTARTS:
                return
            await self._spawn()

    # ---- readiness ------------------------------------------------------------------------------------------------
    async def ready_since(self) -> float | None:
        """Loop time at which this process was first seen ready; None while it is not."""
        if self._ready_since is None and await self._asks_ready():
            self._ready_since = asyncio.get_running_loop().time()
        return self._ready_since

    async def wait_ready(self) -> None:
        """Return once every principal has admitted its first response. Raises NotServing."""
        await until(self.ready_since, failure=lambda: NotServing(self.log_tail()))

    async def metric_sum(self, name: str) -> float:
        """Sum over the labels of a metric of the running process."""
        async with self._session.get(f"http://127.0.0.1:{self._port()}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0].partition(" ")[0] == name)

    def log_tail(self, *, lines: int = 15) -> str:
        """The end of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _port(self) -> int | None:
        with self.log.open("rb") as source:
            source.seek(self._log_start)
            for line in source:
                if b'"serving"' in line:
                    port: int = json.loads(line)["http_port"]
                    return port
        return None

    async def _asks_ready(self) -> bool:
        port = self._port()
        if port is None:
            return False
        try:
            async with self._session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False


async def until(probe: Callable[[], Awaitable[object]], *, failure: Callable[[], Exception]) -> None:
    """Ask `probe` until it says something true. Raises `failure()` when patience ends."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    while not await probe():
        if loop.time() - started > patience_seconds():
            raise failure()
        await asyncio.sleep(0.05)

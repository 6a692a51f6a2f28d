"""How a process of the program comes to be: executed, or forked from a nursery that has loaded its modules.

Loading takes two seconds of a core, which hundreds of starts would mostly consist of. A forked process runs the same
`main`; it differs only in not having loaded its modules itself.

    python -m tests.faults.births       is the nursery: orders come in as JSON lines, births and ends go out as such
"""

import asyncio
import contextlib
import ctypes
import json
import os
import select
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

ARGUMENTS = ("run", "-c", "config.yaml", "--data", "data")
"""What the program is told; it works in its installation's folder."""
_PR_SET_PDEATHSIG = 1
_REAP_SECONDS = 0.01
_libc = ctypes.CDLL(None)


class Child(Protocol):
    """A process that was started."""

    def send_signal(self, signal: int) -> None:
        """Raises ProcessLookupError when it has ended."""
        ...

    async def wait(self) -> int:
        """Its exit code, negative for the signal that ended it."""
        ...


class Midwife(Protocol):
    """Starts processes of the program."""

    async def start(self, *, folder: Path, log: Path, environ: Mapping[str, str]) -> Child:
        """One more, working in `folder`, writing to the end of `log`, with exactly this environment."""
        ...


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Executing:
    """`python -m mindroom`, as a service manager starts it."""

    async def start(self, *, folder: Path, log: Path, environ: Mapping[str, str]) -> Child:
        with log.open("ab") as sink:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "mindroom", *ARGUMENTS),
                cwd=folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=environ,
                preexec_fn=_die_with_parent,
                start_new_session=True,
            )


# ---- the nursery, seen from the driver -------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Forked:
    pid: int
    end: "asyncio.Future[int]"

    def send_signal(self, signal: int) -> None:
        if self.end.done():
            raise ProcessLookupError(self.pid)
        os.kill(self.pid, signal)

    async def wait(self) -> int:
        return await asyncio.shield(self.end)


class Nursery:
    """Orders processes from the nursery program."""

    def __init__(self, program: asyncio.subprocess.Process) -> None:
        self._program = program
        self._births: list[asyncio.Future[_Forked]] = []
        self._alive: dict[int, _Forked] = {}

    async def start(self, *, folder: Path, log: Path, environ: Mapping[str, str]) -> Child:
        assert self._program.stdin is not None
        birth = asyncio.get_running_loop().create_future()
        self._births.append(birth)
        order = {"folder": str(folder), "log": str(log), "environ": dict(environ)}
        self._program.stdin.write(json.dumps(order).encode() + b"\n")
        return await asyncio.shield(birth)

    async def listen(self) -> None:
        """Take the nursery's news until it ends."""
        assert self._program.stdout is not None
        async for line in self._program.stdout:
            news = json.loads(line)
            if "code" in news:
                self._alive.pop(news["pid"]).end.set_result(news["code"])
                continue
            child = _Forked(news["pid"], asyncio.get_running_loop().create_future())
            self._alive[child.pid] = child
            self._births.pop(0).set_result(child)


@asynccontextmanager
async def open_nursery() -> AsyncIterator[Nursery]:
    """A nursery, ready; its children end with it."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.faults.births"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        preexec_fn=_die_with_parent,
    )
    nursery = Nursery(program)
    listening = asyncio.create_task(nursery.listen())
    try:
        yield nursery
    finally:
        program.kill()
        await program.wait()
        listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listening


# ---- the nursery's own process ---------------------------------------------------------------------------------------
def _be_the_program(order: dict[str, Any]) -> NoReturn:
    """In the fork: become what `python -m mindroom` would be."""
    code = 1
    try:
        os.setsid()
        _die_with_parent()
        sink = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (sink, 1), (sink, 2)):
            os.dup2(source, target)
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environ"])
        sys.argv = ["mindroom", *ARGUMENTS]
        from mindroom.cli import main

        code = main()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _load() -> None:
    """Everything that a run with an OpenAI-like model loads."""
    import mindroom.app
    import mindroom.cli.run
    import mindroom.models.openai_like
    import mindroom.ops.logs  # noqa: F401


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            _say(pid=ended[0], code=os.waitstatus_to_exitcode(ended[1]))


def _say(**news: int) -> None:
    os.write(1, json.dumps(news).encode() + b"\n")


def _main() -> None:
    _load()
    waiting = b""
    while True:
        if select.select([0], [], [], _REAP_SECONDS)[0]:
            if not (read := os.read(0, 1 << 16)):
                return
            *orders, waiting = (waiting + read).split(b"\n")
            for order in orders:
                if (pid := os.fork()) == 0:
                    _be_the_program(json.loads(order))
                _say(pid=pid)
        _reap()


if __name__ == "__main__":
    _main()

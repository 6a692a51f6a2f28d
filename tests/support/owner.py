"""Another process that owns a server on a data folder, to be killed by tests."""

import asyncio
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

_FRAME = """
import asyncio, sys
from pathlib import Path
from mindroom.db.folder import DataFolder

async def own():
    folder = DataFolder(Path(sys.argv[1]))
{body}
    print(server.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(own())
"""


class Owner:
    """Runs the body (it sets `server`, given `folder`) and waits; `server_pid` is the server's."""

    def __init__(self, body: str, path: Path) -> None:
        script = _FRAME.format(body=textwrap.indent(body, "    "))
        self._process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.strip().isdigit(), "the owner ended before its server ran; see its error output above"
        self.server_pid = int(line)

    @property
    def pid(self) -> int:
        """The owner's own pid."""
        return self._process.pid

    def kill(self, number: int) -> None:
        """Send the signal and wait for the end."""
        self._process.send_signal(number)
        self._process.wait(timeout=20)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(timeout=20)
        if self._process.stdout is not None:
            self._process.stdout.close()


async def wait_until(holds: Callable[[], bool], *, timeout_seconds: float = 10) -> None:
    """Return once it holds. Raises AssertionError: for facts of the operating system, which no clock moves."""
    deadline = time.monotonic() + timeout_seconds
    while not holds():
        assert time.monotonic() < deadline, "did not come true in time"
        await asyncio.sleep(0.01)


def ended(pid: int) -> bool:
    """Whether that process is over, reaped or not: an orphan of a killed owner is reaped by whoever inherits it."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return status.rpartition(")")[2].split()[0] == "Z"


def user_of(pid: int) -> int:
    """The user a process runs as, seen from here."""
    return Path(f"/proc/{pid}").stat().st_uid

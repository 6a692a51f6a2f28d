"""The data folder: where its parts lie, who holds it, and the server processes that live and die with their owner.

Owns the layout, the folder lock and the tie between a child process and us. Must never know what PostgreSQL or a
homeserver is, and must never remove anything it did not make itself.
"""

import fcntl
import hashlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from mindroom.core.clock import Clock, SystemClock
from mindroom.core.errors import UserError

SOCKET_PATH_LIMIT_BYTES = 107  # sockaddr_un.sun_path holds 108 with its closing NUL
_SOCKET_NAME = ".s.PGSQL.65535"  # the longest name PostgreSQL gives a socket
NOBODY = 65534
"""The user a root owner lends to servers that refuse to run as root."""

_POLL_SECONDS = 0.02
_REAP_SECONDS = 5.0  # after SIGKILL only the kernel is waited for
_LOG_ROTATE_BYTES = 8 * 2**20


class DataFolder:
    """One installation's files on this machine. Making it creates what is missing, private to this user (0700)."""

    def __init__(self, path: Path) -> None:
        """Raises UserError when `path` cannot be a data folder: not a folder, or not writable."""
        self.path = _own_folder(path.expanduser().absolute())
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise UserError(f"The data folder {self.path} is not writable; change its owner or choose another.")
        self.logs = _own_folder(self.path / "logs")

    @classmethod
    def existing(cls, path: Path) -> Self:
        """The folder at `path` for a command that only reads. Raises UserError when there is none."""
        if not path.expanduser().is_dir():
            raise UserError(f"There is no data folder at {path}; check the path, or start MindRoom there once.")
        return cls(path)

    @property
    def postgres(self) -> Path:
        """PostgreSQL's own folder; exists only complete."""
        return self.path / "postgres"

    @property
    def homeserver(self) -> Path:
        """The local homeserver's folder; made by whoever starts one."""
        return self.path / "homeserver"

    @property
    def key_file(self) -> Path:
        """The instance key, readable by this user alone."""
        return self.path / "instance.key"

    @property
    def lock_file(self) -> Path:
        """Holds the flock and, as text, who has it."""
        return self.path / "lock"

    def socket_folder(self) -> Path:
        """Where the database socket lies, made if missing.

        Inside the data folder, or under the temp folder when that path is too long for a socket. Raises UserError when
        the place under the temp folder belongs to somebody else.
        """
        inside = self.path / "socket"
        if len(os.fsencode(inside / _SOCKET_NAME)) <= SOCKET_PATH_LIMIT_BYTES:
            return _own_folder(inside)
        digest = hashlib.sha256(os.fsencode(self.path.resolve())).hexdigest()[:16]
        return _private_folder(Path(tempfile.gettempdir()) / f"mindroom-{digest}")

    def lock(self, *, timeout_seconds: float, clock: Clock | None = None) -> "FolderLock":
        """An unheld lock on this folder; enter it (async) or call `acquire`."""
        return FolderLock(self, timeout_seconds=timeout_seconds, clock=clock or SystemClock())

    def holder(self) -> "LockHolder | None":
        """Who holds the folder now, as far as the lock file says; None when nobody does."""
        try:
            handle = os.open(self.lock_file, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            if _try_flock(handle, fcntl.LOCK_SH):
                return None
            return _read_holder(handle)
        finally:
            os.close(handle)


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The process that holds a data folder; pid 0 while it has not yet written its name."""

    pid: int
    command: str


class FolderLock:
    """The right to be the one runtime of a data folder. The kernel drops it with the process, so it is never stale."""

    def __init__(self, folder: DataFolder, *, timeout_seconds: float, clock: Clock) -> None:
        self._folder = folder
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._handle: int | None = None

    async def acquire(self) -> None:
        """Wait up to the timeout. Raises UserError that names the holder; doing it twice is harmless."""
        if self._handle is not None:
            return
        handle = os.open(self._folder.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = self._clock.boottime() + self._timeout_seconds
            while not _try_flock(handle, fcntl.LOCK_EX):
                if self._clock.boottime() >= deadline:
                    raise UserError(_held_text(self._folder, _read_holder(handle)))
                await self._clock.sleep(_POLL_SECONDS)
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n{' '.join(sys.argv)}\n".encode(errors="replace"), 0)
        except BaseException:
            os.close(handle)
            raise
        self._handle = handle

    def release(self) -> None:
        """Let go; harmless when not held. The file stays, since removing it would let two processes hold two files."""
        if self._handle is not None:
            os.ftruncate(self._handle, 0)
            os.close(self._handle)
            self._handle = None

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


_ENVIRONMENT = frozenset({"PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH"})
_LAUNCHER = """
import ctypes, os, sys
owner, death_signal, user = map(int, sys.argv[1:4])
libc = ctypes.CDLL(None, use_errno=True)
if user:
    os.setgroups([]); os.setgid(user); os.setuid(user)
if libc.prctl(1, death_signal, 0, 0, 0):
    sys.exit("prctl(PR_SET_PDEATHSIG) failed")
if os.getppid() != owner:
    sys.exit("the owner is gone")
os.execvp(sys.argv[4], sys.argv[4:])
"""


class OwnedProcess:
    """A server that ends when we do, also when we are killed -9; deaf to the terminal's Ctrl-C, told no secret (I3).

    The kernel sends the death signal when the *thread* that forked ends, hence the main-thread rule. Not bound to an
    event loop: it may be started in one and stopped in another.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        log: Path,
        death_signal: signal.Signals,
        user_id: int = 0,
        stdin: IO[bytes] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Start `command`. `user_id` 0 keeps our user. Raises RuntimeError off the main thread."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a server process must be started from the main thread")
        self._clock = clock or SystemClock()
        self._log = log
        self._log_start = _rotate(log)
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), str(int(death_signal)), str(user_id)]
        with log.open("ab") as sink:
            self._process = subprocess.Popen(
                [*launcher, *command],
                cwd=cwd,
                stdin=stdin or subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The server's own pid: the launcher replaces itself."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs; reaps it when not."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        return self._process.poll()

    def log_tail(self, *, lines: int = 12) -> str:
        """The last lines it wrote since this start, for an error message."""
        with self._log.open("rb") as source:
            source.seek(self._log_start)
            text = source.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:]) or "(its log is empty)"

    async def wait(self, *, timeout_seconds: float) -> bool:
        """Whether it ended within the time."""
        deadline = self._clock.boottime() + timeout_seconds
        while self.alive:
            if self._clock.boottime() >= deadline:
                return False
            await self._clock.sleep(0.005)
        return True

    async def stop(self, *signals: signal.Signals, patience_seconds: float) -> None:
        """Send each signal in turn with that patience, then SIGKILL. Bounded; harmless when it already ended."""
        for number in signals:
            if not self.alive:
                return
            self._process.send_signal(number)
            if await self.wait(timeout_seconds=patience_seconds):
                return
        if self.alive:
            self._process.kill()
            await self.wait(timeout_seconds=_REAP_SECONDS)


def processes_in(folder: Path, *, program: str) -> tuple[int, ...]:
    """Pids of the processes called `program…` that work in `folder`; a pid alone may have been given anew."""
    wanted = str(folder.resolve())
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if os.readlink(entry / "cwd") == wanted and (entry / "comm").read_text().startswith(program):
                found.append(int(entry.name))
        except OSError:  # it ended meanwhile, or belongs to another user
            continue
    return tuple(sorted(found))


async def wait_for_leftover(folder: Path, *, program: str, server: str, patience_seconds: float, clock: Clock) -> None:
    """Return once no server of an earlier owner runs on `folder`; it ends by itself when its owner has died.

    `server` begins the sentence of the UserError that names the one that stays.
    """
    deadline = clock.boottime() + patience_seconds
    while servers := processes_in(folder, program=program):
        if clock.boottime() >= deadline:
            raise UserError(
                f"{server} already runs on {folder} (pid {servers[0]}) for another process; "
                "stop that process first, or choose another data folder."
            )
        await clock.sleep(0.02)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name in _ENVIRONMENT or name.startswith("LC_")}


def _own_folder(path: Path) -> Path:
    try:
        if not path.is_dir():
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f"{path} is not a folder; choose another place for the data folder.") from error
    except OSError as error:
        raise UserError(f"The folder {path} cannot be made: {error.strerror}; choose another data folder.") from error
    return path


def _private_folder(path: Path) -> Path:
    """In a folder everybody writes to, so what is found is believed only after a look that follows no links."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        found = path.lstat()
        owners = {os.geteuid(), NOBODY} if os.geteuid() == 0 else {os.geteuid()}
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners or stat.S_IMODE(found.st_mode) & 0o077:
            raise UserError(f"{path} exists and is not ours alone; remove it, or use a shorter data folder.") from None
    except OSError as error:
        raise UserError(f"The folder {path} cannot be made: {error.strerror}; use a shorter data folder.") from error
    return path


def _try_flock(handle: int, operation: int) -> bool:
    try:
        fcntl.flock(handle, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_holder(handle: int) -> LockHolder:
    pid, _, command = os.pread(handle, 4096, 0).decode(errors="replace").partition("\n")
    return LockHolder(int(pid) if pid.isdigit() else 0, command.strip())


def _held_text(folder: DataFolder, holder: LockHolder) -> str:
    who = f"process {holder.pid} ({holder.command})" if holder.pid else "another process"
    remedy = f"stop it (kill {holder.pid})" if holder.pid else "stop it"
    return f"The data folder {folder.path} is in use by {who}; {remedy} or choose another data folder."


def _rotate(log: Path) -> int:
    size = log.stat().st_size if log.exists() else 0
    if size < _LOG_ROTATE_BYTES:
        return size
    log.replace(log.with_name(log.name + ".1"))
    return 0

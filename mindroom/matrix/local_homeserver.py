"""A local Synapse for the demo and the tests, as a separate process on a data folder.

Owns its configuration, secrets, port, start and stop. Synapse's code is never imported here (it is a separate program
under its own licence) and nothing here speaks Matrix beyond asking whether it is up. Loopback only, no federation.
"""

import base64
import importlib.util
import json
import os
import secrets
import signal
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import yaml

from mindroom.core.clock import Clock, SystemClock
from mindroom.core.errors import UserError
from mindroom.db.files import replace_whole
from mindroom.db.folder import DataFolder, OwnedProcess, wait_for_leftover

SERVER_NAME = "localhost"
_START_TIMEOUT_SECONDS = 60.0
_STOP_PATIENCE_SECONDS = 10.0
_PORT_HELD_SECONDS = 1.0  # how long the sockets of a server that has just ended may keep its port
# Garbage collection while a thousand modules load only costs: a fifth of the start.
_BOOT = "import gc; gc.disable(); from synapse.app.homeserver import main; gc.enable(); main()"
_LOG_FORMAT = "%(asctime)s - %(name)s - %(lineno)d - %(levelname)s - %(request)s - %(message)s"
_PORTS = range(18_000, 28_000)  # below the ports the kernel lends to outgoing connections, so it stays ours
_UNLIMITED = {"per_second": 1_000_000, "burst_count": 1_000_000}


@dataclass(frozen=True, slots=True)
class _Identity:
    """What must stay the same from start to start."""

    port: int
    signing_key: str
    registration_shared_secret: str
    macaroon_secret_key: str
    form_secret: str


class LocalHomeserver:
    """One Synapse with SQLite on `folder`; it ends with this process, also on kill -9."""

    def __init__(self, folder: DataFolder, *, port: int | None = None, clock: Clock | None = None) -> None:
        """`port` None keeps the folder's port, or picks a free one the first time. Raises UserError without Synapse."""
        if importlib.util.find_spec("synapse") is None:
            raise UserError(
                "The local homeserver is not installed; run `pip install 'mindroom[local]'`, "
                "or name your own homeserver in the configuration."
            )
        self._folder = folder.homeserver
        self._clock = clock or SystemClock()
        self._process: OwnedProcess | None = None
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._identity = _load_identity(self._folder, port)

    @property
    def url(self) -> str:
        """Base address of its client API."""
        return f"http://127.0.0.1:{self._identity.port}"

    @property
    def server_name(self) -> str:
        """The part after the colon of its user ids."""
        return SERVER_NAME

    @property
    def registration_shared_secret(self) -> str:
        """Opens the shared-secret register API, the only way to make an account here."""
        return self._identity.registration_shared_secret

    @property
    def access_log(self) -> Path:
        """One line per finished request."""
        return self._folder / "access.log"

    @property
    def pid(self) -> int | None:
        """The server process; None before `start` and after `stop`."""
        return self._process.pid if self._process else None

    async def start(self, *, leftover_patience_seconds: float = 10.0) -> None:
        """Start and wait until *this* process answers `/versions`. Main thread only.

        A server left by a killed owner is on its way out and is waited for. Raises UserError when the port or the
        folder is in use by another process, or with Synapse's last words.
        """
        if self._process is not None and self._process.alive:
            return
        await wait_for_leftover(
            self._folder,
            program="python",
            server="A homeserver",
            patience_seconds=leftover_patience_seconds,
            clock=self._clock,
        )
        await self._check_port()
        config = self._write_config()
        self._process = OwnedProcess(
            [sys.executable, "-P", "-c", _BOOT, "--config-path", str(config)],
            cwd=self._folder,
            log=self._folder / "homeserver.log",
            death_signal=signal.SIGKILL,  # SQLite survives it, and the next start finds the port free at once
            clock=self._clock,
        )
        try:
            await self._wait_until_ready(self._process)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Orderly shutdown; bounded, harmless to repeat."""
        process, self._process = self._process, None
        if process is not None:
            await process.stop(signal.SIGTERM, patience_seconds=_STOP_PATIENCE_SECONDS)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _check_port(self) -> None:
        deadline = self._clock.boottime() + _PORT_HELD_SECONDS
        while not _port_is_free(self._identity.port):
            if self._clock.boottime() >= deadline:
                raise UserError(
                    f"Port {self._identity.port} of the local homeserver is in use by another program; stop that "
                    f"program, or choose another port: it is `port` in {_identity_file(self._folder)}."
                )
            await self._clock.sleep(0.05)

    async def _wait_until_ready(self, process: OwnedProcess) -> None:
        deadline = self._clock.boottime() + _START_TIMEOUT_SECONDS
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            while not (_listens(process.pid, self._identity.port) and await _answers(session, self.url)):
                if not process.alive or self._clock.boottime() >= deadline:
                    raise UserError(f"The local homeserver did not start on {self._folder}:\n{process.log_tail()}")
                await self._clock.sleep(0.01)

    def _write_config(self) -> Path:
        """Written anew at each start, so that a newer release brings its settings to an old folder."""
        replace_whole(self._folder / "log.yaml", yaml.safe_dump(_log_config(self.access_log)).encode())
        config = self._folder / "homeserver.yaml"
        replace_whole(config, yaml.safe_dump(_config(self._folder, self._identity)).encode())
        return config


def _config(folder: Path, identity: _Identity) -> dict[str, Any]:
    """Synapse ignores an unknown key silently; a test compares these with what it read."""
    listener = {
        "port": identity.port,
        "bind_addresses": ["127.0.0.1"],
        "type": "http",
        "resources": [{"names": ["client"], "compress": False}],
    }
    return {
        "server_name": SERVER_NAME,
        "public_baseurl": f"http://127.0.0.1:{identity.port}/",
        "listeners": [listener],
        "database": {"name": "sqlite3", "args": {"database": str(folder / "homeserver.db")}},
        "log_config": str(folder / "log.yaml"),
        "media_store_path": str(folder / "media"),
        "signing_key": identity.signing_key,
        "registration_shared_secret": identity.registration_shared_secret,
        "macaroon_secret_key": identity.macaroon_secret_key,
        "form_secret": identity.form_secret,
        "enable_registration": False,
        "bcrypt_rounds": 4,
        "federation_domain_whitelist": [],
        "trusted_key_servers": [],
        "report_stats": False,
        "presence": {"enabled": False},
        "url_preview_enabled": False,
        "caches": {"sync_response_cache_duration": 0},
        "filter_timeline_limit": 5000,
        **_rate_limits(),
    }


def _rate_limits() -> dict[str, Any]:
    plain = (
        *("rc_message", "rc_registration", "rc_registration_token_validity", "rc_admin_redaction"),
        *("rc_joins_per_room", "rc_key_requests", "rc_3pid_validation", "rc_third_party_invite", "rc_media_create"),
        *("rc_delayed_event_mgmt", "rc_room_creation", "rc_reports", "rc_user_directory", "rc_profile"),
    )
    nested = {
        "rc_login": ("address", "account", "failed_attempts"),
        "rc_joins": ("local", "remote"),
        "rc_invites": ("per_room", "per_user", "per_issuer"),
        "rc_presence": ("per_user",),
    }
    return {name: dict(_UNLIMITED) for name in plain} | {
        name: {part: dict(_UNLIMITED) for part in parts} for name, parts in nested.items()
    }


def _log_config(access_log: Path) -> dict[str, Any]:
    """Warnings to the process's own log; requests to their file, one line each, as load measurements read them."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"format": _LOG_FORMAT}},
        "handlers": {
            "console": {"class": "logging.StreamHandler", "formatter": "line"},
            "access": {
                "class": "logging.handlers.RotatingFileHandler",
                "formatter": "line",
                "filename": str(access_log),
                "maxBytes": 64 * 2**20,
                "backupCount": 1,
                "encoding": "utf8",
            },
        },
        "loggers": {"synapse.access": {"level": "INFO", "handlers": ["access"], "propagate": False}},
        "root": {"level": "WARNING", "handlers": ["console"]},
    }


# ---- identity --------------------------------------------------------------------------------------------------------
def _identity_file(folder: Path) -> Path:
    return folder / "identity.json"


def _load_identity(folder: Path, port: int | None) -> _Identity:
    file = _identity_file(folder)
    try:
        stored = json.loads(file.read_text())
        identity = _Identity(**(stored | {"port": port or stored["port"]}))
    except FileNotFoundError:
        identity = _new_identity(port or _free_port())
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{file} is damaged; restore it, or remove {folder} to begin anew.") from error
    replace_whole(file, json.dumps(asdict(identity), indent=1).encode())
    return identity


def _new_identity(port: int) -> _Identity:
    seed = base64.b64encode(secrets.token_bytes(32)).decode().rstrip("=")
    return _Identity(
        port=port,
        signing_key=f"ed25519 a_{secrets.token_hex(2)} {seed}",
        registration_shared_secret=secrets.token_urlsafe(32),
        macaroon_secret_key=secrets.token_urlsafe(32),
        form_secret=secrets.token_urlsafe(32),
    )


# ---- port ------------------------------------------------------------------------------------------------------------
def _free_port() -> int:
    while True:
        port = secrets.choice(_PORTS)
        if _port_is_free(port):
            return port


def _port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Synapse will: TIME_WAIT is no obstacle
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _listens(pid: int, port: int) -> bool:
    """Whether the listening socket of that port is the process's own; an answer alone may come from a stranger."""
    wanted = f"0100007F:{port:04X}"
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    inodes = {f"socket:[{row[9]}]" for row in rows if row[1] == wanted and row[3] == "0A"}
    if not inodes:
        return False
    try:
        return any(os.readlink(handle) in inodes for handle in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # the process ended, or closed that file meanwhile
        return False


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"{url}/_matrix/client/versions") as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False

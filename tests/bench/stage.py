"""What the end-to-end benches run on: PostgreSQL, a homeserver, a model server and the runtime, each a process."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from mindroom.db.embedded import EmbeddedPostgres
from mindroom.db.folder import DataFolder
from mindroom.db.schema import upgrade
from mindroom.matrix.local_homeserver import LocalHomeserver
from tests.support.matrix_human import MatrixHuman

RIG = Path(__file__).parent / "rig"
AGENT = "@mindroom_assistant:localhost"
ALIAS = "#mindroom_bench:localhost"
PASSWORD = "bench-password"

CONFIG = """\
matrix:
  homeserver: {homeserver}
  server_name: localhost
  registration: {{shared_secret_env: MINDROOM_REGISTRATION_SECRET}}
models:
  default: {{provider: openai_like, id: bench, base_url: "http://127.0.0.1:{model_port}/v1"}}
agents:
  assistant: {{display_name: Assistant, role: Helps with anything, model: default, rooms: [bench]}}
rooms:
  bench: {{display_name: Bench}}
authorization:
  users: ["@human:localhost"]
http: {{port: {http_port}}}
"""


def free_port() -> int:
    """A port that nobody listens on now."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Stage:
    """Addresses and processes of one bench."""

    folder: Path
    postgres: EmbeddedPostgres
    homeserver: LocalHomeserver
    dsn: str
    model_port: int
    http_port: int
    runtime: subprocess.Popen[bytes] | None = None
    starts: int = 0

    @property
    def log(self) -> Path:
        return self.folder / f"runtime-{self.starts}.log"

    @property
    def pid_file(self) -> Path:
        return self.folder / "runtime.pid"

    def beside(self) -> "Stage":
        """Another process' place on the same database: a folder of its own with the same key, and a port of its own."""
        folder = self.folder / "beside"
        (folder / "data").mkdir(parents=True, exist_ok=True)
        shutil.copy(DataFolder(self.folder / "data").key_file, DataFolder(folder / "data").key_file)
        port = free_port()
        config = (self.folder / "config.yaml").read_text()
        (folder / "config.yaml").write_text(config.replace(f"port: {self.http_port}", f"port: {port}"))
        return Stage(folder, self.postgres, self.homeserver, self.dsn, self.model_port, port, starts=self.starts)

    def start_runtime(self, *, environ: Mapping[str, str] = MappingProxyType({})) -> None:
        """Start `mindroom run` on the stage's database, with more variables in its environment."""
        self.starts += 1
        environment = {
            **os.environ,
            "DATABASE_URL": self.dsn,
            "MINDROOM_REGISTRATION_SECRET": self.homeserver.registration_shared_secret,
            **environ,
        }
        command = [sys.executable, "-m", "mindroom", "run", "-c", str(self.folder / "config.yaml")]
        with self.log.open("wb") as out:
            self.runtime = subprocess.Popen(
                [*command, "--data", str(self.folder / "data")], env=environment, stdout=out, stderr=out
            )
        self.pid_file.write_text(str(self.runtime.pid))

    def stop_runtime(self) -> None:
        """SIGTERM, and wait for the drain."""
        if self.runtime is not None:
            self.runtime.send_signal(signal.SIGTERM)
            self.runtime.wait(timeout=60)
            self.runtime = None

    async def wait_ready(self, *, seconds: float = 60) -> None:
        """Until /readyz says so."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if await asyncio.to_thread(self._is_ready):
                return
            await asyncio.sleep(0.01)
        raise RuntimeError(f"the runtime did not become ready:\n{self.log.read_text()[-3000:]}")

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/readyz", timeout=2) as answer:
                return bool(json.load(answer)["ready"])
        except OSError:
            return False

    def metric(self, name: str) -> dict[str, float]:
        """All series of one metric, by their label text."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        return {m[1] or "": float(m[2]) for m in re.finditer(rf"^{name}(\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)}


@asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    """All servers, a human that has joined the room, and the runtime serving it."""
    database_port = free_port()
    postgres = EmbeddedPostgres(DataFolder(folder / "pg"), tcp_port=database_port)
    homeserver = LocalHomeserver(DataFolder(folder / "hs"))
    await asyncio.gather(postgres.start(), homeserver.start())
    model_port = free_port()
    model = await asyncio.create_subprocess_exec(sys.executable, str(RIG / "fakellm.py"), "--port", str(model_port))
    dsn = f"postgresql://mindroom@127.0.0.1:{database_port}/mindroom"
    found = Stage(folder, postgres, homeserver, dsn, model_port, free_port())
    try:
        await upgrade(dsn)
        _extend(found)
        (folder / "config.yaml").write_text(
            CONFIG.format(homeserver=homeserver.url, model_port=model_port, http_port=found.http_port)
        )
        async with await MatrixHuman.register(
            homeserver.url,
            shared_secret=homeserver.registration_shared_secret,
            username="human",
            password=PASSWORD,
        ) as human:
            found.start_runtime()
            await found.wait_ready()
            await _join(human)
        yield found
        found.stop_runtime()
    finally:
        if found.runtime is not None:
            found.runtime.kill()
            found.runtime.wait()
        model.terminate()
        await model.wait()
        await homeserver.stop()
        await postgres.stop()


def _extend(stage_: Stage) -> None:
    subprocess.run(
        ["psql", "-X", "-q", stage_.dsn, "-c", "CREATE EXTENSION IF NOT EXISTS pg_stat_statements"], check=True
    )


async def _join(human: MatrixHuman) -> None:
    from tests.support.matrix_human import MatrixRefused

    deadline = time.monotonic() + 30
    while True:
        try:
            await human.join(ALIAS)
            return
        except MatrixRefused:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)

"""The demo: an embedded PostgreSQL, a local homeserver, a person's account and a configuration, in one data folder.

Owns that folder's `config.yaml` (written once, then only its homeserver address is kept in step) and `human.json`. The
agents run by the same `compose` as everywhere else.
"""

import asyncio
import json
import os
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mindroom.app.compose import Runtime, RuntimeSettings, compose
from mindroom.app.database import URL_VARIABLE, find_database, owned
from mindroom.config import Config, effective_config, load_config
from mindroom.core.clock import SystemClock
from mindroom.core.errors import UserError
from mindroom.core.ids import DeviceId, EventId, UserId
from mindroom.db.files import create_whole, replace_whole
from mindroom.db.folder import DataFolder
from mindroom.matrix.accounts import AccountSession, Credentials, ensure_account
from mindroom.matrix.client import MatrixClient
from mindroom.matrix.local_homeserver import SERVER_NAME, LocalHomeserver
from mindroom.ops.console import Conversation
from mindroom.ops.human import HumanClient

SECRET_VARIABLE = "MINDROOM_DEMO_REGISTRATION_SECRET"
"""Names the local homeserver's registration secret inside this process; nobody else needs to set it."""
_HUMAN = UserId(f"@human:{SERVER_NAME}")
_LOCK_PATIENCE_SECONDS = 2.0  # a read command holds the folder for about one
_ADDRESS = re.compile(r"^(\s+homeserver:[ \t]*)[^\s#]+", re.MULTILINE)
_CONFIG = f"""\
# The demo's team. This file is written once and yours from then on; only the homeserver's address below is kept in
# step. Start the demo again after a change. All keys: docs/reference/configuration.md.

matrix:
  homeserver: $url
  server_name: {SERVER_NAME}
  registration:
    shared_secret_env: {SECRET_VARIABLE}

models:
  # Answers without network or key. For a real model use any endpoint that speaks the OpenAI chat protocol:
  #   provider: openai_like
  #   id: name-of-the-model
  #   base_url: https://models.example.org/v1
  #   api_key_env: MODEL_API_KEY
  default:
    provider: offline

agents:
  assistant:
    display_name: Assistant
    role: Helps with anything
    rooms: [lobby]
  critic:
    display_name: Critic
    role: Finds the weak point of a plan
    rooms: [lobby]
    answers: mentioned

rooms:
  lobby:
    display_name: Lobby

authorization:
  users: ["{_HUMAN}"]

http:
  port: 0
"""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class HumanAccount:
    """The person's login and the thread they were in; stands in a file only this user can read."""

    user_id: str
    password: str
    device_id: str
    thread: str | None = None

    def __repr__(self) -> str:
        return f"HumanAccount({self.user_id})"


@dataclass(frozen=True, slots=True)
class DemoRoom:
    """What a person needs to know to talk to the demo, here or with another Matrix client."""

    url: str
    user_id: str
    password: str
    alias: str
    config_file: Path
    conversation: Conversation

    def __repr__(self) -> str:
        return f"DemoRoom({self.url}, {self.alias})"


Talk = Callable[[DemoRoom], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Demo:
    """A composed demo; `run` is all of its life."""

    folder: DataFolder
    homeserver: LocalHomeserver
    progress: Progress

    async def run(self, stop: asyncio.Event, *, talk: Talk) -> None:
        """Start everything, `talk`, and drain when it returned or `stop` is set. Raises UserError for what cannot work.

        Main thread only, since the servers are tied to the thread that starts them.
        """
        await _until_first(self._live(talk), _wait(stop))

    async def _live(self, talk: Talk) -> None:
        await self._refuse_second_owner()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.homeserver.stop)
            config = load_config(_config_in_step(self._config_file, self.homeserver.url))
            is_new = not self.folder.postgres.exists()
            self.progress("starting PostgreSQL and the homeserver" if is_new else "starting the homeserver")
            # What the database needs once costs as much as the homeserver's start: both at once.
            await _together(self.homeserver.start(), *([self._prepare_database()] if is_new else []))
            os.environ[SECRET_VARIABLE] = self.homeserver.registration_shared_secret
            serving = await stack.enter_async_context(_served(compose(self._settings(config))))
            await _until_first(self._talk(config, talk), serving)

    async def _refuse_second_owner(self) -> None:
        """The runtime takes the lock for good; asked here so that nothing is started beside another owner."""
        async with self.folder.lock(timeout_seconds=_LOCK_PATIENCE_SECONDS):
            pass

    async def _prepare_database(self) -> None:
        async with owned(find_database(self.folder), progress=_silent):
            pass

    def _settings(self, config: Config) -> RuntimeSettings:
        return RuntimeSettings(config, self.folder.path, self.progress)

    async def _talk(self, config: Config, talk: Talk) -> None:
        self.progress("registering accounts")
        effective = effective_config(config)
        room = next((room for agent in effective.agents for room in agent.rooms), None)
        if room is None:
            raise UserError(f"No agent in {self._config_file} has a room; the demo needs one to talk in.")
        account = _load_account(self._account_file)
        session = await self._log_in(account)
        async with HumanClient(
            self.homeserver.url, session.user_id, clock=SystemClock(), access_token=session.access_token
        ) as client:
            self.progress("waiting for the room")
            conversation = Conversation(
                client,
                await client.enter(room.alias),
                agents={agent.user_id: agent.display_name for agent in effective.agents},
                keep_thread=self._keep_thread,
                thread=EventId(account.thread) if account.thread else None,
            )
            await talk(
                DemoRoom(
                    self.homeserver.url,
                    account.user_id,
                    account.password,
                    room.alias,
                    self._config_file,
                    conversation,
                )
            )

    async def _log_in(self, account: HumanAccount) -> AccountSession:
        user, device = UserId(account.user_id), DeviceId(account.device_id)
        client = MatrixClient(
            self.homeserver.url,
            user_id=user,
            device_id=device,
            access_token=None,
            clock=SystemClock(),
            observe=_unobserved,
        )
        try:
            return await ensure_account(
                client,
                Credentials(user, device, account.password),
                shared_secret=self.homeserver.registration_shared_secret,
            )
        finally:
            await client.close()

    def _keep_thread(self, thread: EventId | None) -> None:
        _save_account(self._account_file, replace(_load_account(self._account_file), thread=thread))

    @property
    def _config_file(self) -> Path:
        return self.folder.path / "config.yaml"

    @property
    def _account_file(self) -> Path:
        return self.folder.path / "human.json"


def compose_demo(data: Path, *, progress: Progress) -> Demo:
    """A demo on the data folder `data`, made when missing. Raises UserError when it cannot be one.

    The demo always uses its own PostgreSQL; a DATABASE_URL in the environment is for other commands and dropped here.
    """
    if os.environ.pop(URL_VARIABLE, None) is not None:
        progress(f"{URL_VARIABLE} is set; the demo uses its own PostgreSQL all the same")
    folder = DataFolder(data)
    return Demo(folder, LocalHomeserver(folder), progress)


# ---- files -----------------------------------------------------------------------------------------------------------
def _config_in_step(file: Path, url: str) -> Path:
    """Write the configuration the first time; later only correct the address, whose port may have been changed."""
    try:
        create_whole(file, _CONFIG.replace("$url", url).encode())
    except FileExistsError:
        text = file.read_text(encoding="utf-8")
        current = _ADDRESS.sub(lambda found: f"{found[1]}{url}", text, count=1)
        if current != text:
            replace_whole(file, current.encode())
    return file


def _load_account(file: Path) -> HumanAccount:
    try:
        return HumanAccount(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        account = HumanAccount(_HUMAN, secrets.token_urlsafe(12), f"DEMO{secrets.token_hex(4).upper()}")
        _save_account(file, account)
        return account
    except (ValueError, TypeError) as error:
        raise UserError(f"{file} is damaged; restore it, or remove {file.parent} to begin anew.") from error


def _save_account(file: Path, account: HumanAccount) -> None:
    replace_whole(file, json.dumps(asdict(account), indent=1).encode())


# ---- life ------------------------------------------------------------------------------------------------------------
@asynccontextmanager
async def _served(runtime: Runtime) -> AsyncIterator[Awaitable[None]]:
    """The runtime at work; drained at the end. Yields its end."""
    stop = asyncio.Event()
    serving = asyncio.create_task(runtime.run(stop))
    try:
        yield asyncio.shield(serving)
    finally:
        stop.set()
        await serving


async def _until_first(*works: Awaitable[Any]) -> None:
    """Run all until one ends; cancel and await the others. Raises what failed first."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _cancel(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()


async def _together(*works: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        await _cancel(tasks)


async def _cancel(tasks: list[asyncio.Future[Any]] | list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def _silent(_line: str) -> None:
    """Told already."""


def _unobserved(_call: str, _outcome: str, _seconds: float) -> None:
    """The person's login is no measurement of the runtime."""

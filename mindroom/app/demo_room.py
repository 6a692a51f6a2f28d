"""The demo once its homeserver answers: the runtime at work, and the person in the room.

Owns `human.json`, the person's account and thread. Kept apart from `app.demo` since what is imported here loads while
the servers start.
"""

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mindroom.app.compose import RuntimeSettings, compose
from mindroom.app.tasks import stoppable, until_first
from mindroom.config import Config, effective_config, load_config
from mindroom.core.clock import SystemClock
from mindroom.core.errors import UserError
from mindroom.core.ids import DeviceId, EventId, RoomId, UserId
from mindroom.db.embedded import running_dsn
from mindroom.db.files import replace_whole
from mindroom.db.folder import DataFolder
from mindroom.matrix.accounts import AccountSession, Credentials, ensure_account
from mindroom.matrix.client import MatrixClient
from mindroom.matrix.local_homeserver import LocalHomeserver
from mindroom.ops.console import Conversation
from mindroom.ops.human import HumanClient
from mindroom.ops.status import JournalState, read_journal

_ROOM_PATIENCE_SECONDS = 60.0
_PENDING_LOOKED_AT = 1000

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
    last_error: Callable[[EventId], Awaitable[str | None]]
    """The code of what last hindered the answer to an event; None when nothing did."""

    def __repr__(self) -> str:
        return f"DemoRoom({self.url}, {self.alias})"


Talk = Callable[[DemoRoom], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class DemoTeam:
    """The agents of `config_file` on a homeserver that answers, and `human`, who is registered there when missing."""

    folder: DataFolder
    homeserver: LocalHomeserver
    config_file: Path
    human: UserId
    progress: Progress

    async def serve(self, talk: Talk) -> None:
        """Serve the agents, `talk`, and drain when it returned. Raises UserError for what cannot work."""
        config = load_config(self.config_file)
        runtime = compose(RuntimeSettings(config, self.folder.path, self.progress))
        async with stoppable(runtime.run) as serving:
            await until_first(self._talk(config, talk), serving)

    async def _talk(self, config: Config, talk: Talk) -> None:
        self.progress("registering accounts")
        effective = effective_config(config)
        room = next((room for agent in effective.agents for room in agent.rooms), None)
        if room is None:
            raise UserError(f"No agent in {self.config_file} has a room; the demo needs one to talk in.")
        account = self._load_account()
        session = await self._log_in(account)
        async with HumanClient(
            self.homeserver.url, session.user_id, clock=SystemClock(), access_token=session.access_token
        ) as client:
            conversation = Conversation(
                client,
                await self._enter(client, room.alias),
                agents={agent.user_id: agent.display_name for agent in effective.agents},
                keep_thread=lambda thread: self._save_account(replace(account, thread=thread)),
                thread=EventId(account.thread) if account.thread else None,
            )
            await talk(
                DemoRoom(
                    self.homeserver.url,
                    account.user_id,
                    account.password,
                    room.alias,
                    self.config_file,
                    conversation,
                    self._last_error,
                )
            )

    async def _last_error(self, event: EventId) -> str | None:
        dsn = running_dsn(self.folder)
        rows = await read_journal(dsn, limit=_PENDING_LOOKED_AT, state=JournalState.PENDING) if dsn else ()
        return next((str(row["last_error"]) for row in rows if row["event_id"] == event and row["last_error"]), None)

    async def _enter(self, client: HumanClient, alias: str) -> RoomId:
        self.progress("waiting for the room")
        try:
            async with asyncio.timeout(_ROOM_PATIENCE_SECONDS):
                return await client.enter(alias)
        except TimeoutError as error:
            log = self.folder.logs / "mindroom.log"
            raise UserError(
                f"{client.user_id} was not invited to {alias} within {_ROOM_PATIENCE_SECONDS:.0f} s. Is that user "
                f"among authorization.users in {self.config_file}? {log} tells what happened."
            ) from error

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

    def _load_account(self) -> HumanAccount:
        try:
            return HumanAccount(**json.loads(self._account_file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            account = HumanAccount(self.human, secrets.token_urlsafe(12), f"DEMO{secrets.token_hex(4).upper()}")
            self._save_account(account)
            return account
        except (ValueError, TypeError) as error:
            raise UserError(
                f"{self._account_file} is damaged; restore it, or remove {self.folder.path} to begin anew."
            ) from error

    def _save_account(self, account: HumanAccount) -> None:
        replace_whole(self._account_file, json.dumps(asdict(account), indent=1).encode())

    @property
    def _account_file(self) -> Path:
        return self.folder.path / "human.json"


def _unobserved(_call: str, _outcome: str, _seconds: float) -> None:
    """The person's login is no measurement of the runtime."""

"""The demo: an embedded PostgreSQL, a local homeserver and a team of agents, in one data folder.

Owns that folder's `config.yaml` (written once, then only its homeserver address is kept in step) and the order of the
start. The agents run by the same `compose` as everywhere else, through `app.demo_room`.
"""

import asyncio
import os
import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mindroom.app.database import URL_VARIABLE, find_database, owned
from mindroom.app.tasks import together, until_first
from mindroom.core.ids import UserId
from mindroom.db.files import create_whole, replace_whole
from mindroom.db.folder import DataFolder
from mindroom.matrix.local_homeserver import SERVER_NAME, LocalHomeserver

if TYPE_CHECKING:
    from mindroom.app.demo_room import Talk

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
class Demo:
    """A composed demo; `run` is all of its life."""

    folder: DataFolder
    homeserver: LocalHomeserver
    progress: Progress

    async def run(self, stop: asyncio.Event, *, talk: "Talk") -> None:
        """Start everything, `talk`, and drain when it returned or `stop` is set. Raises UserError for what cannot work.

        Main thread only, since the servers are tied to the thread that starts them.
        """
        await until_first(self._live(talk), _wait(stop))

    async def _live(self, talk: "Talk") -> None:
        await self._refuse_second_owner()
        config_file = _config_in_step(self.folder.path / "config.yaml", self.homeserver.url)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.homeserver.stop)
            await self._start_servers()
            from mindroom.app.demo_room import DemoTeam  # loaded meanwhile

            os.environ[SECRET_VARIABLE] = self.homeserver.registration_shared_secret
            await DemoTeam(self.folder, self.homeserver, config_file, _HUMAN, self.progress).serve(talk)

    async def _refuse_second_owner(self) -> None:
        """The runtime takes the lock for good; asked here so that nothing is started beside another owner."""
        async with self.folder.lock(timeout_seconds=_LOCK_PATIENCE_SECONDS):
            pass

    async def _start_servers(self) -> None:
        """The homeserver; beside it the database's first setup and the loading of the runtime, which take as long."""
        if self.folder.postgres.exists():
            self.progress("starting the homeserver")
            await together(self.homeserver.start(), _load_runtime())
        else:
            self.progress("starting the homeserver and setting up PostgreSQL")
            await together(self.homeserver.start(), self._set_up_database(), _load_runtime())

    async def _set_up_database(self) -> None:
        async with owned(find_database(self.folder), progress=_untold):
            pass


def compose_demo(data: Path, *, progress: Progress) -> Demo:
    """A demo on the data folder `data`, made when missing. Raises UserError when it cannot be one.

    The demo always uses its own PostgreSQL; a DATABASE_URL in the environment is for other commands and dropped here.
    """
    if os.environ.pop(URL_VARIABLE, None) is not None:
        progress(f"{URL_VARIABLE} is set; the demo uses its own PostgreSQL all the same")
    folder = DataFolder(data)
    return Demo(folder, LocalHomeserver(folder), progress)


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


async def _load_runtime() -> None:
    """Blocks this loop for a while, which nobody needs while the servers, which are other processes, start."""
    import mindroom.app.demo_room  # noqa: F401


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def _untold(_line: str) -> None:
    """The start of the servers is told as one."""

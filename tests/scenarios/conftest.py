"""Houses that several tests of a module share; each test makes rooms of its own."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from mindroom.db.embedded import EmbeddedPostgres
from mindroom.matrix.local_homeserver import LocalHomeserver
from tests.support.runtime import AgentSetup, House, fresh_database, open_house


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(synapse: LocalHomeserver, postgres_server: EmbeddedPostgres) -> AsyncIterator[House]:
    """A running team: `assistant` and `helper` answer by themselves, `plain` in room mode and when mentioned."""
    agents = [
        AgentSetup("assistant"),
        AgentSetup("helper"),
        AgentSetup("quiet", answers="mentioned"),
        AgentSetup("plain", thread_mode="room"),
    ]
    with tempfile.TemporaryDirectory(prefix="mindroom-", ignore_cleanup_errors=True) as path:
        async with (
            fresh_database(postgres_server) as dsn,
            open_house(
                synapse,
                dsn,
                Path(path),
                agents=agents,
                people=("alice", "bob", "mallory"),
                authorized=("alice", "bob"),
            ) as house,
        ):
            await house.start()
            yield house

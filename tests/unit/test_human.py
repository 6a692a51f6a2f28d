"""The demo person's client: enters when invited, says once whatever happens to the reply, hears messages only."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from mindroom.core.clock import SystemClock
from mindroom.core.errors import MatrixFailure, MatrixFailureClass
from mindroom.core.ids import EventId, RoomId, UserId
from mindroom.ops.human import HumanClient
from tests.support.homeserver_world import Login
from tests.support.scripted_homeserver import (
    Misbehaviour,
    ScriptedHomeserver,
    error,
    html,
    lost_reply,
    reset,
    truncated,
)

HUMAN, AGENT = UserId("@human:scripted.test"), "@agent:scripted.test"
ALIAS = "#lobby:scripted.test"


class Hasty(SystemClock):
    """Waits for nobody."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedHomeserver]:
    async with ScriptedHomeserver() as started:
        started.world.tokens["secret"] = Login(HUMAN, "DEMO")
        yield started


@pytest.fixture
async def client(server: ScriptedHomeserver) -> AsyncIterator[HumanClient]:
    async with HumanClient(server.url, HUMAN, clock=Hasty(), access_token="secret") as opened:
        yield opened


async def entered(server: ScriptedHomeserver, client: HumanClient) -> RoomId:
    server.world.create_room(AGENT, {"room_alias_name": "lobby", "invite": [HUMAN]})
    return await client.enter(ALIAS)


async def test_entering_waits_for_the_room_and_the_invitation(server: ScriptedHomeserver, client: HumanClient) -> None:
    server.world.tokens["agent"] = Login(AGENT, "AGENT")
    entering = asyncio.ensure_future(client.enter(ALIAS))
    await server.arrival("join")
    async with aiohttp.ClientSession(server.url, headers={"Authorization": "Bearer agent"}) as agent:
        body = {"room_alias_name": "lobby", "invite": [HUMAN]}
        async with agent.post("/_matrix/client/v3/createRoom", json=body) as response:
            room = (await response.json())["room_id"]

    assert await entering == room
    assert server.world.rooms[room].membership(HUMAN)[1] == "join"
    assert await client.enter(ALIAS) == room


@pytest.mark.parametrize(
    "misbehaviour", [reset(), lost_reply(), truncated(), html(502), error(429, "M_LIMIT_EXCEEDED")]
)
async def test_a_message_is_sent_once_whatever_happens_to_the_reply(
    server: ScriptedHomeserver, client: HumanClient, misbehaviour: Misbehaviour
) -> None:
    room = await entered(server, client)
    server.script("send", misbehaviour)
    server.script("sync", misbehaviour)

    event = await client.say(room, "hello", thread=EventId("$root"))
    while not (heard := await client.hear(room)):
        pass

    (message,) = heard
    assert (message.event_id, message.sender, message.content["body"]) == (event, HUMAN, "hello")
    assert message.content["m.relates_to"]["event_id"] == "$root"
    assert len({seen.path for seen in server.calls("send")}) == 1


async def test_outside_a_thread_a_message_has_no_relation(server: ScriptedHomeserver, client: HumanClient) -> None:
    room = await entered(server, client)
    await client.say(room, "hello", thread=None)
    assert server.calls("send")[0].body == {"msgtype": "m.text", "body": "hello"}


@pytest.mark.parametrize(
    ("status", "errcode", "expected"),
    [(401, "M_UNKNOWN_TOKEN", MatrixFailureClass.AUTH), (403, "M_FORBIDDEN", MatrixFailureClass.FORBIDDEN)],
)
async def test_a_refusal_is_raised(
    server: ScriptedHomeserver, client: HumanClient, status: int, errcode: str, expected: MatrixFailureClass
) -> None:
    room = await entered(server, client)
    server.script("send", error(status, errcode))
    with pytest.raises(MatrixFailure) as refused:
        await client.say(room, "hello", thread=None)
    assert refused.value.failure_class is expected


async def test_other_events_are_not_heard(server: ScriptedHomeserver, client: HumanClient) -> None:
    room = await entered(server, client)
    world = server.world
    world.append(world.rooms[room], AGENT, "m.reaction", {"body": "no message"})
    world.append(world.rooms[room], AGENT, "m.room.message", {"body": "a message"})
    assert [message.content["body"] for message in await client.hear(room)] == ["a message"]


def test_the_token_is_not_shown() -> None:
    assert "secret" not in repr(HumanClient("http://x", HUMAN, clock=SystemClock(), access_token="secret"))

"""matrix.gateway: what is frozen is what every attempt sends (E1), canonical and within the limit (E7)."""

import json
from collections.abc import AsyncIterator

import pytest

from mindroom.core.content import JsonObject
from mindroom.core.errors import MatrixDeliveryFailure, RetryClass
from mindroom.core.errors import MatrixFailureClass as C
from mindroom.core.ids import EventId, RoomId, TxnId
from mindroom.core.ports import OutgoingEvent, WirePayload
from mindroom.matrix.client import MatrixClient
from mindroom.matrix.gateway import CONTENT_LIMIT_BYTES, MatrixGateway
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


@pytest.fixture
def room(server: ScriptedHomeserver, client: MatrixClient) -> RoomId:
    return RoomId(server.world.create_room(client.user_id, {}))


def event(room: RoomId, content: JsonObject) -> OutgoingEvent:
    return OutgoingEvent(room=room, event_type="m.room.message", content=content, txn_id=TxnId("final.1"))


async def test_e7_frozen_content_is_storable_and_independent_of_what_it_was_made_of(
    client: MatrixClient, room: RoomId
) -> None:
    content: JsonObject = {"body": "a\x00\ud800", "list": ("x",), "n": 2**53 - 1}
    wire = await MatrixGateway(client).freeze(event(room, content))
    content["body"] = "changed"
    assert wire.content == {"body": "a\ufffd\ufffd", "list": ["x"], "n": 2**53 - 1}
    assert (wire.room, wire.event_type, wire.txn_id) == (room, "m.room.message", "final.1")
    assert wire.device_id == client.device_id == MatrixGateway(client).device_id


@pytest.mark.parametrize("value", [1.5, 2**53, b"raw"])
async def test_e7_what_is_not_canonical_json_is_refused_for_good_and_its_place_named(
    client: MatrixClient, room: RoomId, value: object
) -> None:
    with pytest.raises(MatrixDeliveryFailure) as caught:
        await MatrixGateway(client).freeze(event(room, {"a": {"b": value}}))
    assert caught.value.failure_class is C.BAD_REQUEST
    assert caught.value.retry_class is RetryClass.PERMANENT
    assert str(caught.value.__cause__).startswith("content.a.b: ")


@pytest.mark.parametrize("letter", ["a", "é", "😀", "\n"])
async def test_e7_the_limit_counts_the_bytes_that_are_sent(client: MatrixClient, room: RoomId, letter: str) -> None:
    gateway = MatrixGateway(client)
    weight = len(json.dumps(letter, ensure_ascii=False).encode()) - 2
    fitting = "x" * ((CONTENT_LIMIT_BYTES - len('{"body":""}')) % weight)
    fitting += letter * ((CONTENT_LIMIT_BYTES - len('{"body":""}')) // weight)
    await gateway.freeze(event(room, {"body": fitting}))
    with pytest.raises(MatrixDeliveryFailure) as caught:
        await gateway.freeze(event(room, {"body": fitting + "x"}))
    assert caught.value.failure_class is C.TOO_LARGE
    assert caught.value.retry_class is RetryClass.PERMANENT


async def test_e1_every_attempt_sends_the_same_bytes_in_whatever_order_the_keys_come_back(
    server: ScriptedHomeserver, client: MatrixClient, room: RoomId
) -> None:
    gateway = MatrixGateway(client)
    wire = await gateway.freeze(event(room, {"b": 1, "a": {"d": "é", "c": []}}))
    reordered = WirePayload(
        room=wire.room,
        event_type=wire.event_type,
        content={"a": {"d": "é", "c": []}, "b": 1},
        txn_id=wire.txn_id,
        device_id=wire.device_id,
    )
    await gateway.send(wire)
    await gateway.send(reordered)
    first, second = server.calls("send")
    assert first.raw == second.raw == '{"a":{"c":[],"d":"é"},"b":1}'.encode()
    assert first.path == second.path


@pytest.mark.parametrize("shape", [lost_reply(), truncated(), reset()])
async def test_k2_a_send_whose_reply_was_lost_is_one_event_after_the_next_attempt(
    server: ScriptedHomeserver, client: MatrixClient, room: RoomId, shape: Misbehaviour
) -> None:
    gateway = MatrixGateway(client)
    wire = await gateway.freeze(event(room, {"body": "x"}))
    server.script("send", shape)
    with pytest.raises(MatrixDeliveryFailure) as caught:
        await gateway.send(wire)
    assert caught.value.failure_class is C.NETWORK
    event_id = await gateway.send(wire)
    messages = [sent for _, sent in server.world.rooms[room].timeline if sent["type"] == "m.room.message"]
    assert [sent["event_id"] for sent in messages] == [event_id]


@pytest.mark.parametrize(
    ("shape", "expected", "seconds"),
    [
        (error(429, "M_LIMIT_EXCEEDED", retry_after_ms=2500), C.RATE_LIMITED, 2.5),
        (error(403, "M_FORBIDDEN"), C.FORBIDDEN, None),
        (error(413, "M_TOO_LARGE"), C.TOO_LARGE, None),
        (html(504), C.SERVER, None),
        (answer(200, {}), C.NOT_JSON, None),
        (answer(200, {"event_id": 7}), C.NOT_JSON, None),
    ],
)
async def test_e6_a_refused_send_is_a_delivery_failure_of_the_same_class(
    server: ScriptedHomeserver,
    client: MatrixClient,
    room: RoomId,
    shape: Misbehaviour,
    expected: C,
    seconds: float | None,
) -> None:
    gateway = MatrixGateway(client)
    wire = await gateway.freeze(event(room, {"body": "x"}))
    server.script("send", shape)
    with pytest.raises(MatrixDeliveryFailure) as caught:
        await gateway.send(wire)
    assert (caught.value.call, caught.value.failure_class) == ("send", expected)
    assert caught.value.retry_after_seconds == seconds
    assert await gateway.send(wire) == EventId(server.world.rooms[room].timeline[-1][1]["event_id"])

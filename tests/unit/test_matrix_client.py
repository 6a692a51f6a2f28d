"""matrix.client: one attempt a call, every bad shape a MatrixFailure, nothing private in a log (B5, E6, I2, I3)."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator

import pytest

from mindroom.core import faults
from mindroom.core.clock import SystemClock
from mindroom.core.errors import MatrixFailure, RetryClass
from mindroom.core.errors import MatrixFailureClass as C
from mindroom.core.faults import Fault, FaultPlan
from mindroom.core.ids import DeviceId, UserId
from mindroom.matrix.client import MatrixCall, MatrixClient
from mindroom.matrix.paths import client_path
from tests.support.matrix_clients import Observed, open_client, register
from tests.support.scripted_homeserver import (
    Misbehaviour,
    ScriptedHomeserver,
    answer,
    error,
    hang,
    html,
    lost_reply,
    reset,
    truncated,
)

WHOAMI = client_path("account", "whoami")


@pytest.fixture
async def server() -> AsyncIterator[ScriptedHomeserver]:
    async with ScriptedHomeserver() as server:
        yield server


@pytest.fixture
def observed() -> Observed:
    return Observed()


@pytest.fixture
async def client(server: ScriptedHomeserver, observed: Observed) -> AsyncIterator[MatrixClient]:
    session = await register(
        server.url, server_name=server.server_name, secret=server.registration_shared_secret, name="ada"
    )
    client = open_client(server.url, session=session, observe=observed)
    yield client
    await client.close()


@pytest.fixture
def fault_plan() -> Iterator[None]:
    yield
    faults.install(None)


async def whoami(client: MatrixClient, *, timeout_seconds: float = 5) -> dict[str, object]:
    return await client.request(MatrixCall.WHOAMI, method="GET", path=WHOAMI, timeout_seconds=timeout_seconds)


@pytest.mark.parametrize(
    ("shape", "expected", "status", "label"),
    [
        (reset(), C.NETWORK, 0, "network"),
        (truncated(), C.NETWORK, 0, "network"),
        (lost_reply(), C.NETWORK, 0, "network"),
        (html(200), C.NOT_JSON, 200, "not_json"),
        (html(401), C.NOT_JSON, 401, "not_json"),
        (html(404), C.NOT_JSON, 404, "not_json"),
        (html(502), C.SERVER, 502, "server"),
        (html(429, Retry_After="3"), C.RATE_LIMITED, 429, "rate_limited"),
        (html(413), C.TOO_LARGE, 413, "too_large"),
        (answer(200, b""), C.NOT_JSON, 200, "not_json"),
        (answer(200, b"[]"), C.NOT_JSON, 200, "not_json"),
        (answer(200, b'"text"'), C.NOT_JSON, 200, "not_json"),
        (answer(200, b"null"), C.NOT_JSON, 200, "not_json"),
        (answer(200, b'{"cut": '), C.NOT_JSON, 200, "not_json"),
        (answer(200, b'{"latin": "\xe9"}'), C.NOT_JSON, 200, "not_json"),
        (answer(200, b"[" * 100_000), C.NOT_JSON, 200, "not_json"),
        (answer(400, {"message": "no route"}), C.NOT_JSON, 400, "not_json"),
        (error(401, "M_UNKNOWN_TOKEN", soft_logout=True), C.AUTH, 401, "M_UNKNOWN_TOKEN"),
        (error(403, "M_FORBIDDEN"), C.FORBIDDEN, 403, "M_FORBIDDEN"),
        (error(404, "M_NOT_FOUND"), C.NOT_FOUND, 404, "M_NOT_FOUND"),
        (error(429, "M_LIMIT_EXCEEDED", retry_after_ms=3000), C.RATE_LIMITED, 429, "M_LIMIT_EXCEEDED"),
        (error(500, "M_UNKNOWN"), C.SERVER, 500, "M_UNKNOWN"),
        (error(400, "M_BAD_JSON"), C.BAD_REQUEST, 400, "M_BAD_JSON"),
    ],
)
async def test_e6_every_bad_answer_is_a_failure_of_its_class_after_one_attempt(
    server: ScriptedHomeserver,
    client: MatrixClient,
    observed: Observed,
    shape: Misbehaviour,
    expected: C,
    status: int,
    label: str,
) -> None:
    server.script("whoami", shape)
    with pytest.raises(MatrixFailure) as caught:
        await whoami(client)
    assert (caught.value.failure_class, caught.value.status) == (expected, status)
    assert caught.value.retry_after_seconds == (3.0 if expected is C.RATE_LIMITED else None)
    assert observed.calls == [("whoami", label)]
    assert len(server.calls("whoami")) == 1
    assert (await whoami(client))["user_id"] == client.user_id


async def test_a_connection_that_broke_while_kept_alive_is_not_silently_tried_again(
    server: ScriptedHomeserver, client: MatrixClient
) -> None:
    await whoami(client)
    server.script("whoami", reset())
    with pytest.raises(MatrixFailure) as caught:
        await whoami(client)
    assert caught.value.failure_class is C.NETWORK
    assert len(server.calls("whoami")) == 2


async def test_b5_a_server_that_hangs_is_left_in_time(server: ScriptedHomeserver, client: MatrixClient) -> None:
    server.script("whoami", hang())
    with pytest.raises(MatrixFailure) as caught:
        await whoami(client, timeout_seconds=0.05)
    assert caught.value.failure_class is C.NETWORK
    assert isinstance(caught.value.__cause__, TimeoutError)


async def test_a_call_without_time_left_is_not_sent(server: ScriptedHomeserver, client: MatrixClient) -> None:
    with pytest.raises(MatrixFailure):
        await whoami(client, timeout_seconds=0)
    assert server.calls("whoami") == []


async def test_b5_nobody_listening_and_unknown_hosts_are_network_failures(unused_tcp_port: int) -> None:
    for url in (f"http://127.0.0.1:{unused_tcp_port}", "http://no-such-host.invalid"):
        client = open_client(url)
        with pytest.raises(MatrixFailure) as caught:
            await whoami(client)
        assert caught.value.failure_class is C.NETWORK
        await client.close()


async def test_after_close_calls_in_flight_and_later_ones_are_network_failures(
    server: ScriptedHomeserver, client: MatrixClient
) -> None:
    server.script("whoami", hang())
    flying = asyncio.create_task(whoami(client))
    await server.arrival("whoami")
    await client.close()
    await client.close()
    for call in (flying, whoami(client)):
        with pytest.raises(MatrixFailure) as caught:
            await call
        assert caught.value.failure_class is C.NETWORK


async def test_cancelling_a_call_is_observed_and_passes_through(
    server: ScriptedHomeserver, client: MatrixClient, observed: Observed
) -> None:
    server.script("whoami", hang())
    flying = asyncio.create_task(whoami(client))
    await server.arrival("whoami")
    flying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flying
    assert observed.calls == [("whoami", "cancelled")]


@pytest.mark.parametrize(("moment", "arrived"), [("before", 0), ("after", 1)])
async def test_k2_a_fault_point_before_is_not_sent_and_one_after_was(
    server: ScriptedHomeserver,
    client: MatrixClient,
    observed: Observed,
    fault_plan: None,
    moment: faults.Moment,
    arrived: int,
) -> None:
    faults.install(FaultPlan(point="hs.whoami", moment=moment, fault=Fault.LOST_REPLY))
    with pytest.raises(MatrixFailure) as caught:
        await whoami(client)
    assert caught.value.failure_class is C.NETWORK
    assert caught.value.retry_class is RetryClass.RETRY
    assert len(server.calls("whoami")) == arrived
    assert observed.calls == [("whoami", "network")]


async def test_a7_an_integer_longer_than_python_parses_does_not_spoil_the_answer(
    server: ScriptedHomeserver, client: MatrixClient
) -> None:
    server.script("whoami", answer(200, b'{"user_id": "@ada:x", "long": ' + b"9" * 6000 + b', "short": 7}'))
    document = await whoami(client)
    assert document["short"] == 7
    assert document["long"] == "9" * 1000


async def test_i3_the_token_travels_in_a_header_and_never_in_a_url(
    server: ScriptedHomeserver, client: MatrixClient
) -> None:
    await whoami(client)
    seen = server.calls("whoami")[0]
    assert seen.headers["Authorization"].startswith("Bearer ")
    assert "access_token" not in seen.query


async def test_i2_i3_nothing_logs_a_body_or_a_token_at_any_level(
    server: ScriptedHomeserver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    client = MatrixClient(
        server.url,
        user_id=UserId("@ada:scripted.test"),
        device_id=DeviceId("D"),
        access_token="token-of-ada",
        clock=SystemClock(),
        observe=Observed(),
    )
    body = {"body": "-".join(("secret", "words"))}
    shapes = (reset(), truncated(), html(500), error(400, "M_BAD_JSON", **body), answer(200, body))
    server.script("whoami", *shapes)
    for _ in shapes:
        try:
            await client.request(MatrixCall.WHOAMI, method="GET", path=WHOAMI, body=body)
        except MatrixFailure as failure:
            logging.getLogger("test").exception("failed", exc_info=failure)
    for name in ("nio", "nio.responses", "nio.rooms", "nio.crypto.log", "nio.client.async_client", "nio.http"):
        assert not logging.getLogger(name).isEnabledFor(logging.CRITICAL)
    await client.close()
    assert "token-of-ada" not in caplog.text
    assert "secret-words" not in caplog.text


async def test_path_segments_are_encoded_so_that_no_id_can_leave_its_place() -> None:
    assert client_path("rooms", "!a/b?c#d:e", "send", query=[("via", "x&y")]) == (
        "/_matrix/client/v3/rooms/%21a%2Fb%3Fc%23d%3Ae/send?via=x%26y"
    )

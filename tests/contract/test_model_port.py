"""ModelPort: every implementation keeps the same promises, over real HTTP where it speaks HTTP."""

import asyncio
import logging
import socket
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from mindroom.core.errors import ModelFailure, ModelFailureKind, RetryClass, UserError
from mindroom.core.ports import ModelDone, ModelRequest, PromptMessage, TextDelta
from mindroom.models import ConfiguredModels, ModelProvider, ModelSettings
from mindroom.models.failures import retry_after_seconds
from tests.support.openai_server import Behaviour, Fault, OpenAIServer

KEY = "key-that-must-not-leak"
SECRET = "tok-secret of the prompt"


def settings(name: str, *, base_url: str = "", timeout_seconds: float = 5.0) -> ModelSettings:
    provider = ModelProvider.OFFLINE if name == "offline" else ModelProvider.OPENAI_LIKE
    return ModelSettings(
        name=name, provider=provider, id=f"{name}-id", base_url=base_url, api_key=KEY, timeout_seconds=timeout_seconds
    )


def request(model: str, text: str = f"hello\n[2026-01-02 12:00] Alice: {SECRET}") -> ModelRequest:
    return ModelRequest(model, (PromptMessage("system", "You are Cook."), PromptMessage("user", text)))


@pytest.fixture
async def server() -> AsyncIterator[OpenAIServer]:
    async with OpenAIServer() as running:
        yield running


@pytest.fixture
async def models(server: OpenAIServer) -> AsyncIterator[ConfiguredModels]:
    configured = ConfiguredModels(
        [
            settings("offline"),
            settings("http", base_url=server.base_url),
            settings("second", base_url=server.base_url),
            settings("impatient", base_url=server.base_url, timeout_seconds=0.2),
        ]
    )
    yield configured
    await configured.close()


async def collect(models: ConfiguredModels, model: str = "http") -> tuple[list[str], ModelDone]:
    events = [event async for event in models.stream(request(model))]
    done = events[-1]
    assert isinstance(done, ModelDone)
    deltas = [event.text for event in events[:-1] if isinstance(event, TextDelta)]
    assert len(deltas) == len(events) - 1
    return deltas, done


async def failure(models: ConfiguredModels, model: str = "http") -> ModelFailure:
    with pytest.raises(ModelFailure) as caught:
        await collect(models, model)
    return caught.value


@pytest.mark.parametrize("model", ["offline", "http"])
async def test_an_answer_is_deltas_and_then_exactly_one_done(models: ConfiguredModels, model: str) -> None:
    deltas, done = await collect(models, model)
    assert len(deltas) > 1
    assert all(deltas)
    assert SECRET in "".join(deltas)
    assert done.model_id == f"{model}-id"
    assert done.input_tokens > 0
    assert done.output_tokens > 0


@pytest.mark.parametrize("model", ["offline", "http"])
async def test_a_stream_left_early_leaves_the_port_usable(models: ConfiguredModels, model: str) -> None:
    async with aclosing(models.stream(request(model))) as events:
        assert isinstance(await anext(events), TextDelta)
    assert await collect(models, model)


async def test_the_offline_model_always_says_the_same(models: ConfiguredModels) -> None:
    first = await collect(models, "offline")
    assert first == await collect(models, "offline")
    assert "".join(first[0]) == f"You said: {SECRET}"


async def test_an_unknown_model_is_a_user_error_that_names_it(models: ConfiguredModels) -> None:
    with pytest.raises(UserError, match="'nobody'"):
        await collect(models, "nobody")


async def test_the_wire_carries_the_prompt_as_given_and_the_key(models: ConfiguredModels, server: OpenAIServer) -> None:
    await collect(models)
    assert server.last_request["messages"] == [
        {"role": "system", "content": "You are Cook."},
        {"role": "user", "content": request("http").messages[1].text},
    ]
    assert server.last_request["stream"] is True
    assert server.last_request["model"] == "http-id"
    assert server.last_headers["Authorization"] == f"Bearer {KEY}"


async def test_text_arrives_while_the_model_still_speaks(models: ConfiguredModels, server: OpenAIServer) -> None:
    server.behaviour.fault = Fault.SILENCE_MID_STREAM
    async with aclosing(models.stream(request("http"))) as events:
        assert isinstance(await anext(events), TextDelta)
        assert server.stats.in_flight == 1


async def test_all_models_share_one_pool_of_connections(models: ConfiguredModels, server: OpenAIServer) -> None:
    for model in ("http", "second", "http"):
        await collect(models, model)
    assert server.stats.connections == 1


@pytest.mark.parametrize("model", ["offline", "http"])
async def test_answers_asked_for_at_once_do_not_mix(models: ConfiguredModels, model: str) -> None:
    async def answer(number: int) -> str:
        events = models.stream(request(model, f"[2026-01-02 12:00] Alice: tok-{number} please"))
        return "".join([event.text async for event in events if isinstance(event, TextDelta)])

    answers = await asyncio.gather(*(answer(number) for number in range(20)))
    assert all(text.endswith(f": tok-{number} please") for number, text in enumerate(answers))


async def test_a_provider_without_usage_counts_nothing(models: ConfiguredModels, server: OpenAIServer) -> None:
    server.behaviour.sends_usage = False
    _, done = await collect(models)
    assert (done.input_tokens, done.output_tokens) == (0, 0)


async def test_an_empty_answer_is_no_failure_of_the_port(models: ConfiguredModels, server: OpenAIServer) -> None:
    server.behaviour.fault = Fault.EMPTY
    deltas, _ = await collect(models)
    assert deltas == []


@pytest.mark.parametrize(
    ("fault", "kind", "status"),
    [
        (Fault.UNAUTHORIZED, ModelFailureKind.AUTH, 401),
        (Fault.RATE_LIMITED, ModelFailureKind.RATE_LIMITED, 429),
        (Fault.SERVER_ERROR, ModelFailureKind.SERVER, 500),
        (Fault.UNAVAILABLE, ModelFailureKind.SERVER, 503),
        (Fault.CONTEXT_LENGTH, ModelFailureKind.CONTEXT_LENGTH, 400),
        (Fault.BAD_REQUEST, ModelFailureKind.BAD_REQUEST, 400),
        (Fault.RESET_BEFORE, ModelFailureKind.NETWORK, 0),
        (Fault.RESET_MID_STREAM, ModelFailureKind.NETWORK, 0),
        (Fault.ENDS_MID_STREAM, ModelFailureKind.NETWORK, 0),
        (Fault.ERROR_MID_STREAM, ModelFailureKind.SERVER, 200),
        (Fault.GARBAGE_MID_STREAM, ModelFailureKind.SERVER, 0),
    ],
)
async def test_each_failure_has_its_kind_from_type_and_status_in_one_attempt(
    models: ConfiguredModels, server: OpenAIServer, fault: Fault, kind: ModelFailureKind, status: int
) -> None:
    server.behaviour.fault = fault
    caught = await failure(models)
    assert (caught.kind, caught.status) == (kind, status)
    assert server.stats.calls == 1


async def test_the_providers_wait_is_handed_on(models: ConfiguredModels, server: OpenAIServer) -> None:
    server.behaviour.update({"fault": "rate_limited", "retry_after_seconds": 7})
    assert (await failure(models)).retry_after_seconds == 7


@pytest.mark.parametrize("behaviour", [Behaviour(delay_seconds=60), Behaviour(fault=Fault.SILENCE_MID_STREAM)])
async def test_a_silent_provider_is_a_timeout(
    models: ConfiguredModels, server: OpenAIServer, behaviour: Behaviour
) -> None:
    server.behaviour = behaviour
    assert (await failure(models, "impatient")).kind is ModelFailureKind.TIMEOUT


async def test_nobody_listening_is_a_network_failure() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        models = ConfiguredModels([settings("http", base_url=url)])
        caught = await failure(models)
        await models.close()
    assert caught.kind is ModelFailureKind.NETWORK
    assert caught.retry_class is RetryClass.RETRY


@pytest.mark.parametrize("fault", [f for f in Fault if f not in (Fault.NONE, Fault.EMPTY, Fault.SILENCE_MID_STREAM)])
async def test_neither_prompt_nor_key_nor_provider_text_reaches_logs_terminal_or_traceback_i2_i3(
    models: ConfiguredModels,
    server: OpenAIServer,
    fault: Fault,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    await models.warm_up()
    caplog.set_level(logging.DEBUG)
    server.behaviour.fault = fault
    caught = await failure(models)
    printed = capfd.readouterr()
    everything = caplog.text + printed.out + printed.err + "".join(traceback.format_exception(caught))
    assert caught.__cause__ is None
    assert caught.__context__ is None
    assert SECRET not in everything
    assert KEY not in everything
    assert "refused:" not in everything


def test_the_key_is_in_no_repr_i3() -> None:
    assert KEY not in repr(settings("http"))


async def test_cancellation_ends_the_request_at_once(models: ConfiguredModels, server: OpenAIServer) -> None:
    server.behaviour.fault = Fault.SILENCE_MID_STREAM
    heard = asyncio.Event()

    async def listen() -> None:
        async for _ in models.stream(request("http")):
            heard.set()

    task = asyncio.create_task(listen())
    await heard.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(5):
        await server.idle.wait()
    assert server.stats.aborted == 1


async def test_closing_twice_or_before_any_use_is_harmless(models: ConfiguredModels) -> None:
    await models.close()
    await models.warm_up()
    await models.close()
    await models.close()


def test_offline_models_load_neither_agno_nor_an_sdk() -> None:
    program = """
import asyncio, sys
from mindroom.core.ports import ModelRequest, PromptMessage
from mindroom.models import ConfiguredModels, ModelProvider, ModelSettings
async def main():
    models = ConfiguredModels([ModelSettings(name="m", provider=ModelProvider.OFFLINE, id="m")])
    await models.warm_up()
    async for _ in models.stream(ModelRequest("m", (PromptMessage("user", "hi"),))): pass
    await models.close()
asyncio.run(main())
print(sorted({"agno", "openai", "httpx"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        (
            {"retry-after": "Fri, 02 Jan 2026 12:00:30 GMT", "date": "Fri, 02 Jan 2026 12:00:00 GMT"},
            30.0,
        ),
        ({"retry-after": "Fri, 02 Jan 2026 12:00:30 GMT"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1e999"}, None),
    ],
)
def test_retry_after_is_read_in_all_its_forms_and_bad_ones_are_ignored(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert retry_after_seconds(headers) == seconds

"""Providers that speak OpenAI's chat completions, through agno's model class: one HTTP attempt, streamed.

Imported only by `configured`, in a thread and after `quiet`: the import costs about half a second and 30 MiB.
All models share one HTTP client, so one TLS context and one connection pool.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final

import openai
from agno.models.message import Message
from agno.models.openai.like import OpenAILike

from mindroom.core.errors import ModelFailure, ModelFailureKind
from mindroom.core.ports import ModelDone, ModelEvent, ModelRequest, TextDelta
from mindroom.models.failures import model_failure
from mindroom.models.settings import ModelSettings

PUBLIC_BASE_URL: Final = "https://api.openai.com/v1"
NO_KEY: Final = "none"
"""Sent to servers that want no key; the SDK refuses an empty one."""
CONNECT_TIMEOUT_SECONDS: Final = 10.0
FINISH_REASON: Final = "finish_reason"


class _Model(OpenAILike):  # type: ignore[misc]  # agno is untyped for us
    """Keeps the finish reason, which agno drops: without it a cut stream looks like a complete answer."""

    def _parse_provider_response_delta(self, response_delta: Any) -> Any:
        response = super()._parse_provider_response_delta(response_delta)
        if response_delta.choices and (reason := response_delta.choices[0].finish_reason):
            response.provider_data = {**(response.provider_data or {}), FINISH_REASON: reason}
        return response


class OpenAILikeModels:
    """A ModelPort over the given models. `close` ends the shared client; closing twice is harmless."""

    def __init__(self, settings: Sequence[ModelSettings]) -> None:
        self._http = openai.DefaultAsyncHttpxClient()
        self._models = {model.name: self._build(model) for model in settings}

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """As ModelPort.stream. An answer that stops without a finish reason or usage is a NETWORK failure."""
        model = self._models[request.model]
        messages = [Message(role=message.role, content=message.text) for message in request.messages]
        usage: Any = None
        finished = False
        failure: ModelFailure | None = None
        try:
            attempt = model.ainvoke_stream(messages=messages, assistant_message=Message(role="assistant"))
            async with aclosing(attempt) as pieces:
                async for piece in pieces:
                    if piece.content:
                        yield TextDelta(piece.content)
                    usage = piece.response_usage or usage
                    finished = finished or FINISH_REASON in (piece.provider_data or {})
        except Exception as error:
            failure = model_failure(error)
        if failure is None and not finished and usage is None:
            failure = ModelFailure(ModelFailureKind.NETWORK)
        if failure is not None:
            raise failure
        yield ModelDone(
            model_id=model.id,
            input_tokens=usage.input_tokens if usage else 0,
            output_tokens=usage.output_tokens if usage else 0,
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    def _build(self, settings: ModelSettings) -> _Model:
        timeout = openai.Timeout(
            settings.timeout_seconds, connect=min(CONNECT_TIMEOUT_SECONDS, settings.timeout_seconds)
        )
        client = openai.AsyncOpenAI(
            api_key=settings.api_key or NO_KEY,
            base_url=settings.base_url or PUBLIC_BASE_URL,
            timeout=timeout,
            max_retries=0,
            http_client=self._http,
        )
        return _Model(id=settings.id, api_key=settings.api_key or NO_KEY, async_client=client, max_retries=0, retries=0)

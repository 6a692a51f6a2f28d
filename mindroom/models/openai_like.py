"""Providers that speak OpenAI's chat completions, through agno's model class: one HTTP attempt, streamed.

Imported only by `configured`, in a thread and after `quiet`: its import is what makes the edge heavy.
All models share one HTTP client, so one TLS context and one connection pool.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from copy import copy
from typing import Any, Final

import openai
from agno.models.message import Message
from agno.models.openai.like import OpenAILike

from mindroom.core.errors import ModelFailure, ModelFailureKind
from mindroom.core.ports import ModelDone, ModelEvent, ModelRequest, TextDelta
from mindroom.models.failures import model_failure
from mindroom.models.settings import ModelSettings

NO_KEY: Final = "none"
"""Sent to servers that want no key; the SDK refuses an empty one."""
CONNECT_TIMEOUT_SECONDS: Final = 10.0
FINISH_REASON: Final = "finish_reason"


class _Attempt(OpenAILike):  # type: ignore[misc]  # agno is untyped for us
    """agno's model for one attempt; copied for each, since it carries the prompt between two calls of its base."""

    def _format_all_messages(self, messages: list[Message], compress_tool_results: bool = False) -> list[Any]:
        # As extra body: the SDK walks `messages` through every type it knows, which costs more than the call itself.
        self.extra_body = {"messages": super()._format_all_messages(messages, compress_tool_results)}
        return []

    def _parse_provider_response_delta(self, response_delta: Any) -> Any:
        # agno drops the finish reason, without which a cut stream looks like a complete answer.
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
        model = copy(self._models[request.model])
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

    def _build(self, settings: ModelSettings) -> _Attempt:
        timeout = openai.Timeout(
            settings.timeout_seconds, connect=min(CONNECT_TIMEOUT_SECONDS, settings.timeout_seconds)
        )
        client = openai.AsyncOpenAI(
            api_key=settings.api_key or NO_KEY,
            base_url=settings.base_url,
            timeout=timeout,
            max_retries=0,
            http_client=self._http,
        )
        return _Attempt(id=settings.id, async_client=client, max_retries=0, retries=0)

"""All configured models behind the one ModelPort; loads a provider's libraries when it is first needed."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from mindroom.core.errors import UserError
from mindroom.core.ports import ModelEvent, ModelRequest
from mindroom.models.offline import OfflineModel
from mindroom.models.quiet import silence_libraries
from mindroom.models.settings import ModelProvider, ModelSettings

if TYPE_CHECKING:
    from mindroom.models.openai_like import OpenAILikeModels


class ConfiguredModels:
    """ModelPort by model name. Owns the HTTP clients of all models until `close`."""

    def __init__(self, settings: Sequence[ModelSettings]) -> None:
        self._offline = {m.name: OfflineModel(m.id) for m in settings if m.provider is ModelProvider.OFFLINE}
        self._openai_settings = {m.name: m for m in settings if m.provider is ModelProvider.OPENAI_LIKE}
        self._openai_models: OpenAILikeModels | None = None
        self._loading = asyncio.Lock()

    async def warm_up(self) -> None:
        """Load what the configured providers need, off the event loop, so that no first answer waits for it."""
        if self._openai_settings:
            await self._openai()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """As ModelPort.stream. Raises UserError when no model of that name is configured."""
        if request.model in self._offline:
            events = self._offline[request.model].stream(request)
        elif request.model in self._openai_settings:
            events = (await self._openai()).stream(request)
        else:
            raise UserError(f"No model named {request.model!r} is configured; add it under `models:`.")
        async with aclosing(events) as open_events:
            async for event in open_events:
                yield event

    async def close(self) -> None:
        """End every connection; closing twice is harmless."""
        async with self._loading:
            if self._openai_models is not None:
                await self._openai_models.close()

    async def _openai(self) -> "OpenAILikeModels":
        if self._openai_models is None:
            async with self._loading:
                if self._openai_models is None:
                    self._openai_models = await asyncio.to_thread(_load, list(self._openai_settings.values()))
        return self._openai_models


def _load(settings: Sequence[ModelSettings]) -> "OpenAILikeModels":
    silence_libraries()
    from mindroom.models.openai_like import OpenAILikeModels

    silence_libraries()  # again: the SDK sets levels from the environment while it is imported
    return OpenAILikeModels(settings)

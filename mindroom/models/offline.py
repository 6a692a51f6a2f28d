"""The offline model: deterministic answers without network, key or agno, streamed like any other.

It repeats the newest message of the newest user turn, so that demo, tests and load runs see whose turn was answered.
It must never look at a clock, at randomness or at anything outside the request.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from mindroom.core.ports import ModelDone, ModelEvent, ModelRequest, PromptMessage, TextDelta

EXCERPT_CHARACTERS: Final = 200
"""So much of the newest message is repeated."""
PIECES: Final = 4
"""An answer is streamed in at most this many deltas."""
CHARACTERS_PER_TOKEN: Final = 4
SPEAKER: Final = re.compile(r"^\[[^\]\n]*\] [^:\n]*: ", re.MULTILINE)
"""How `responses.prompt` opens each message of a person; a test of that module holds the two together."""


class OfflineModel:
    """A ModelPort whose answers depend on the request alone."""

    def __init__(self, model_id: str) -> None:
        self._model_id = model_id

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """As ModelPort.stream; never raises ModelFailure."""
        answer = f"You said: {excerpt(request.messages)}"
        for piece in _pieces(answer):
            yield TextDelta(piece)
            await asyncio.sleep(0)
        characters = sum(len(message.text) for message in request.messages)
        yield ModelDone(
            model_id=self._model_id,
            input_tokens=characters // CHARACTERS_PER_TOKEN,
            output_tokens=len(answer) // CHARACTERS_PER_TOKEN,
        )


def excerpt(messages: Sequence[PromptMessage]) -> str:
    """The newest message of a person in the newest user turn, on one line and bounded; `nothing` when there is none."""
    text = next((message.text for message in reversed(messages) if message.role == "user"), "")
    openings = list(SPEAKER.finditer(text))
    newest = " ".join(text[openings[-1].end() if openings else 0 :].split())
    return newest if len(newest) <= EXCERPT_CHARACTERS else f"{newest[: EXCERPT_CHARACTERS - 1]}…"


def _pieces(answer: str) -> list[str]:
    size = -(-len(answer) // PIECES)
    return [answer[at : at + size] for at in range(0, len(answer), size)]

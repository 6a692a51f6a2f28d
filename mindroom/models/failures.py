"""Turns what a provider SDK raises into ModelFailure, by exception type, status and machine code, never by text.

The failure keeps no reference to the original, whose text may quote a prompt (I2); a note names its class.
"""

import json
import math
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Final

import openai

from mindroom.core.errors import ModelFailure, ModelFailureKind

CONTEXT_LENGTH_CODES: Final = frozenset({"context_length_exceeded", "model_context_window_exceeded"})
RATE_LIMIT_CODES: Final = frozenset({"rate_limit_exceeded", "insufficient_quota"})
BY_STATUS: Final[Mapping[int, ModelFailureKind]] = {
    401: ModelFailureKind.AUTH,
    402: ModelFailureKind.AUTH,
    403: ModelFailureKind.AUTH,
    408: ModelFailureKind.TIMEOUT,
    409: ModelFailureKind.SERVER,
    413: ModelFailureKind.CONTEXT_LENGTH,
    425: ModelFailureKind.SERVER,
    429: ModelFailureKind.RATE_LIMITED,
}


def model_failure(error: Exception) -> ModelFailure:
    """The failure to raise outside of the `except` block that caught `error`."""
    chain = list(_chain(error))
    for origin in chain:
        if isinstance(origin, openai.OpenAIError | json.JSONDecodeError | OSError):
            return _noted(_classified(origin), origin)
    return _noted(ModelFailure(ModelFailureKind.UNKNOWN), chain[-1])


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__


def _noted(failure: ModelFailure, origin: BaseException) -> ModelFailure:
    failure.add_note(f"from {type(origin).__module__}.{type(origin).__qualname__}")
    return failure


def _classified(origin: BaseException) -> ModelFailure:
    match origin:
        case openai.APITimeoutError():
            return ModelFailure(ModelFailureKind.TIMEOUT)
        case openai.APIConnectionError() | OSError():
            return ModelFailure(ModelFailureKind.NETWORK)
        case openai.APIStatusError(status_code=status, code=code, response=response):
            return _from_status(status, code, response.headers)
        case openai.APIError(code=code):
            # An error object inside a stream whose HTTP status was 200; its code is a status with some providers.
            return _from_status(int(code) if code and code.isdecimal() else 500, code, {}, in_stream=True)
        case json.JSONDecodeError():
            return ModelFailure(ModelFailureKind.SERVER)
        case _:
            return ModelFailure(ModelFailureKind.UNKNOWN)


def _from_status(status: int, code: str | None, headers: Mapping[str, str], *, in_stream: bool = False) -> ModelFailure:
    return ModelFailure(
        _kind(status, code), status=200 if in_stream else status, retry_after_seconds=retry_after_seconds(headers)
    )


def _kind(status: int, code: str | None) -> ModelFailureKind:
    if code in CONTEXT_LENGTH_CODES:
        return ModelFailureKind.CONTEXT_LENGTH
    if code in RATE_LIMIT_CODES:
        return ModelFailureKind.RATE_LIMITED
    if status >= 500:
        return ModelFailureKind.SERVER
    return BY_STATUS.get(status, ModelFailureKind.BAD_REQUEST)


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """What `retry-after-ms` or `retry-after` ask for; a date is read against the answer's own `date`, not our clock."""
    asked = headers.get("retry-after", "")
    for seconds in (_number(headers.get("retry-after-ms", ""), scale=0.001), _number(asked, scale=1.0)):
        if seconds is not None:
            return seconds
    try:
        wait = parsedate_to_datetime(asked) - parsedate_to_datetime(headers.get("date", ""))
    except (ValueError, TypeError):
        return None
    return max(0.0, wait.total_seconds())


def _number(text: str, *, scale: float) -> float | None:
    try:
        seconds = float(text) * scale
    except ValueError:
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None

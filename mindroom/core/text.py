"""Text and JSON at our edges: what PostgreSQL can store, what Matrix accepts, what fits on a line.

Pure. Owns no meaning of any field, and never shortens a text on its own; `excerpt` is for labels, not for messages.
"""

import json
import math
import re
from typing import Any, Final, TypeVar, cast

MAX_CANONICAL_INTEGER: Final = 2**53 - 1
"""Matrix canonical JSON allows integers within ±(2⁵³−1) (E7)."""

_REPLACEMENT: Final = "\ufffd"
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_NUL_ESCAPE: Final = "\\u0000"
# Input is a tree out of a JSON parser, so cycles cannot occur; a nesting that is too deep raises either way.
_PLAIN: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False)
_CANONICAL: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True, check_circular=False
)

T = TypeVar("T")


def storable(text: str) -> str:
    """`text` with NUL and lone surrogates replaced by U+FFFD: PostgreSQL refuses them in text and jsonb (E7)."""
    return _UNSTORABLE.sub(_REPLACEMENT, text)


def storable_json(value: T) -> T:
    """`value` as jsonb can hold it; the same object when nothing was wrong, which is found by one C-speed pass.

    Keys are cleaned like strings; a float that is not finite becomes null. Raises ValueError when nested too deeply.
    """
    return value if _clean_text(value) is not None else cast("T", _cleaned(value))


def storable_json_text(value: Any) -> str:
    """JSON text of `storable_json(value)`, for writers that hand text to the database anyway.

    Raises ValueError when nested too deeply.
    """
    text = _clean_text(value)
    return text if text is not None else _PLAIN.encode(_cleaned(value))


def _clean_text(value: Any) -> str | None:
    try:
        text = _PLAIN.encode(value)
        text.encode()
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
    except (ValueError, TypeError):
        return None
    return None if _NUL_ESCAPE in text else text


def _cleaned(value: Any) -> Any:
    try:
        return _walk(value)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def _walk(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable(key) if isinstance(key, str) else key: _walk(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_walk(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def canonical_json(value: Any) -> bytes:
    """Matrix canonical JSON: sorted keys, no spaces, UTF-8 (E7).

    Raises ValueError, naming the place, for floats, integers beyond ±(2⁵³−1), keys that are no strings, lone
    surrogates, values JSON does not have, and nesting that is too deep. NUL is legal in JSON and stays.
    """
    try:
        _check_canonical(value, "content")
        return _CANONICAL.encode(value).encode()
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("JSON holds a lone surrogate, which UTF-8 cannot express") from None


def _check_canonical(value: Any, place: str) -> None:
    if value is None or isinstance(value, str | bool):
        return
    if isinstance(value, int):
        if abs(value) > MAX_CANONICAL_INTEGER:
            raise ValueError(f"{place}: integer is beyond ±(2^53-1); send it as a string")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{place}: key of type {type(key).__name__}; keys are strings")
            _check_canonical(item, f"{place}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_canonical(item, f"{place}[{index}]")
    else:
        raise ValueError(f"{place}: {type(value).__name__} is not canonical JSON; send an integer or a string")


def excerpt(text: str, *, max_chars: int) -> str:
    """`text` on one storable line of at most `max_chars` characters, with `…` where it was cut."""
    line = " ".join(storable(text).split())
    return line if len(line) <= max_chars else line[: max_chars - 1].rstrip() + "…"

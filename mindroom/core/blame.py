"""How an unexpected error appears in a log: its types and places, never its text, which may quote a message (I2)."""

import traceback


def leaf(error: BaseException) -> BaseException:
    """What a group of tasks really failed of: its first error that is no group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def blame(error: BaseException) -> str:
    """`KeyError at resolver.py:12 in snapshot <- ...`, cause by cause."""
    parts: list[str] = []
    current: BaseException | None = error
    while current is not None and len(parts) < 5:
        frames = traceback.extract_tb(current.__traceback__)
        place = ""
        if frames:
            last = frames[-1]
            place = f" at {last.filename.rpartition('/')[2]}:{last.lineno} in {last.name}"
        parts.append(f"{type(current).__name__}{place}")
        current = current.__cause__
    return " <- ".join(parts)

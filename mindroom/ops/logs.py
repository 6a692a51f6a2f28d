"""structlog set-up: human lines on a terminal, JSON elsewhere; bodies and secrets never pass (I2, I3)."""

import logging
import sys
from collections.abc import MutableMapping
from types import TracebackType
from typing import Any

import structlog

from mindroom.core.blame import blame

_FORBIDDEN = frozenset(
    {"body", "content", "source", "text", "formatted_body", "password", "access_token", "token", "secret", "api_key"}
)
REDACTED = "[redacted]"


def redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace the value of every key that could hold a message or a secret."""
    for key in event:
        if key in _FORBIDDEN:
            event[key] = REDACTED
    return event


class BlamingFormatter(logging.Formatter):
    """Level, logger and where an error arose: what a library says, or an error's text, may quote a message (I2)."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(name)s")

    def formatException(self, ei: Any) -> str:
        return blame(ei[1])


def say_why_it_ended(_kind: type[BaseException], error: BaseException, _traceback: TracebackType | None) -> None:
    """The last word of a process that ends by an unforeseen error: never the error's text (I2)."""
    structlog.get_logger(__name__).critical("process_failed", error=blame(error))


def configure_logs(*, quiet_below: int = logging.INFO) -> None:
    """Log to stderr. Libraries log warnings and above, through the standard library, without our processors' trust."""
    sys.excepthook = say_why_it_ended
    human = sys.stderr.isatty()
    renderer: Any = structlog.dev.ConsoleRenderer() if human else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            redact,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(quiet_below),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(BlamingFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])

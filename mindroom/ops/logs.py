"""structlog set-up: human lines on a terminal, JSON elsewhere; bodies and secrets never pass (I2, I3)."""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

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


def configure_logs(*, quiet_below: int = logging.INFO) -> None:
    """Log to stderr. Libraries log warnings and above, through the standard library, without our processors' trust."""
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
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s")

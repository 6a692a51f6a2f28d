"""CancelScope: why a running turn must stop. The first cause wins; it is passed as a parameter, never looked up."""

import asyncio
from enum import StrEnum


class CancelCause(StrEnum):
    """Typed causes; equals the log value."""

    REDACTION = "redaction"
    DEPARTURE = "departure"
    ANSWERED = "answered"


class CancelScope:
    """Cancels one task for one cause."""

    def __init__(self) -> None:
        self.cause: CancelCause | None = None
        self._task: asyncio.Task[object] | None = None

    def attach(self, task: "asyncio.Task[object]") -> None:
        """The task to cancel; when a cause came first it is cancelled at once."""
        self._task = task
        if self.cause is not None:
            task.cancel()

    def cancel(self, cause: CancelCause) -> None:
        """Stop for `cause`; later causes change nothing."""
        if self.cause is None:
            self.cause = cause
            if self._task is not None:
                self._task.cancel()

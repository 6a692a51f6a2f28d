"""Which sources are being answered right now, so that a redaction or departure stops the run at once."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mindroom.core.cancel import CancelCause, CancelScope
from mindroom.core.ids import EventId


class RunningTurns:
    """Running answers of one principal, by source."""

    def __init__(self) -> None:
        self._scopes: dict[EventId, CancelScope] = {}

    @contextmanager
    def entered(self, events: Sequence[EventId], scope: CancelScope) -> Iterator[None]:
        """While the body runs, its sources can be cancelled."""
        for event in events:
            self._scopes[event] = scope
        try:
            yield
        finally:
            for event in events:
                self._scopes.pop(event, None)

    def cancel(self, events: Sequence[EventId], cause: CancelCause) -> None:
        """Stop the runs that answer any of these."""
        for event in events:
            if (scope := self._scopes.get(event)) is not None:
                scope.cancel(cause)

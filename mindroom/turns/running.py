"""Which sources are being answered right now, so that a redaction or departure stops the run at once."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from mindroom.core.cancel import CancelCause, CancelScope
from mindroom.core.ids import EventId
from mindroom.core.values import Conversation


class RunningTurns:
    """Running answers of one principal, by source."""

    def __init__(self) -> None:
        self._scopes: dict[EventId, CancelScope] = {}
        self._readers: dict[Conversation, CancelScope] = {}

    @contextmanager
    def entered(self, conversation: Conversation, events: Sequence[EventId], scope: CancelScope) -> Iterator[None]:
        """While the body runs, its sources can be cancelled, or the reading of its conversation."""
        self._readers[conversation] = scope
        for event in events:
            self._scopes[event] = scope
        try:
            yield
        finally:
            self._readers.pop(conversation, None)
            for event in events:
                self._scopes.pop(event, None)

    def cancel(self, events: Sequence[EventId], cause: CancelCause) -> None:
        """Stop the runs that answer any of these."""
        for event in events:
            if (scope := self._scopes.get(event)) is not None:
                scope.cancel(cause)

    def reread(self, conversations: Iterable[Conversation]) -> None:
        """A text of these was redacted: runs whose prompt may hold it begin anew, their sources stay owed (I2)."""
        for conversation in conversations:
            if (scope := self._readers.get(conversation)) is not None:
                scope.cancel(CancelCause.REDACTION)

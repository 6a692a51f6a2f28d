"""The queue of one conversation: which decided sources become the next turn.

Pure; belongs to one ResponseLifecycleKey. One batch runs at a time. Whatever one requester sends meanwhile becomes one
next batch; a different requester has a batch of their own. Batches start in the order of their oldest source. Never
stored: after a crash the feeder hands the same sources out again.
"""

from bisect import insort
from dataclasses import dataclass

from mindroom.core.content import MAX_SOURCES
from mindroom.core.ids import Receipt, TurnId
from mindroom.core.values import OrderKey, Reason
from mindroom.turns.ingress import PreparedIngress


@dataclass(frozen=True, slots=True)
class DecidedSource:
    """A source that is to be answered, and why."""

    ingress: PreparedIngress
    reason: Reason

    @property
    def order(self) -> tuple[OrderKey, Receipt]:
        """The order of work: by order key, ties by receipt."""
        return self.ingress.order_key, self.ingress.receipt

    def joins(self, first: "DecidedSource") -> bool:
        """Whether it may share the turn of `first`: of the same requester, and held by no other open turn (D2).

        What the requester wrote after an open turn joins it: the answer that a crash interrupted is given where the
        conversation stands now, in the placeholder that stands already (R19).
        """
        same_requester = self.ingress.requester == first.ingress.requester
        return same_requester and self.ingress.open_turn in (None, first.ingress.open_turn)


@dataclass(frozen=True, slots=True)
class Batch:
    """Sources that one turn answers, oldest first; at most MAX_SOURCES (A6)."""

    sources: tuple[DecidedSource, ...]

    @property
    def open_turn(self) -> TurnId | None:
        """The turn that held the first of them before a crash."""
        return self.sources[0].ingress.open_turn

    @property
    def anchor(self) -> DecidedSource:
        """The last source: the answer replies to it and carries its reason."""
        return self.sources[-1]


class ConversationQueue:
    """Decided sources of one conversation that wait behind its running turn."""

    def __init__(self) -> None:
        self._waiting: list[DecidedSource] = []
        self._held: set[Receipt] = set()
        self._running: Batch | None = None

    def put(self, ingress: PreparedIngress, *, reason: Reason) -> None:
        """Add a source; one that already waits or runs is not added again (A2)."""
        if ingress.receipt not in self._held:
            self._held.add(ingress.receipt)
            insort(self._waiting, DecidedSource(ingress, reason), key=lambda source: source.order)

    @property
    def is_resuming(self) -> bool:
        """True when the next batch begins with what an open turn holds."""
        return bool(self._waiting) and self._waiting[0].ingress.open_turn is not None

    def start(self) -> Batch | None:
        """Take the next batch and hold the conversation until `finish`; None while one runs or none waits."""
        if self._running is not None or not self._waiting:
            return None
        first = self._waiting[0]
        taken: list[DecidedSource] = []
        left: list[DecidedSource] = []
        for source in self._waiting:
            (taken if source.joins(first) and len(taken) < MAX_SOURCES else left).append(source)
        self._waiting = left
        self._running = Batch(tuple(taken))
        return self._running

    def finish(self) -> None:
        """The running batch ended, however it did; calling it again does nothing."""
        if self._running is not None:
            self._held.difference_update(source.ingress.receipt for source in self._running.sources)
        self._running = None

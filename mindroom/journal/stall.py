"""Pure: where the walks of a gap end, and when a gap is given up (B2, B3). No clock, no I/O."""

from dataclasses import dataclass, replace

from mindroom.core.errors import MatrixFailureClass
from mindroom.core.ids import SyncToken
from mindroom.core.values import GapState
from mindroom.journal.records import Gap, GapPage

CEILING_EVENTS = 10_000
"""A walk goes no further than this."""
RECOVERY_HORIZON_MS = 7 * 86_400_000
"""A page on which everybody we listen to spoke longer before the gap was found starts nothing."""
MIN_REFUSALS = 3
MIN_REFUSED_SECONDS = 600.0
_REFUSALS = frozenset({MatrixFailureClass.FORBIDDEN, MatrixFailureClass.NOT_FOUND, MatrixFailureClass.BAD_REQUEST})


@dataclass(frozen=True, slots=True)
class SyncRecoveryStallTracker:
    """Judges the walk of one gap; what it counts stands on the gap's row."""

    gap: Gap

    def walked(self, page: GapPage, *, end: SyncToken | None, events: int) -> Gap:
        """The gap after a page: further back, in its second walk, repaired, or truncated."""
        gap = self.gap
        after = replace(gap, cursor=end, page=gap.page + 1, events=gap.events + max(1, events), anchor=page.anchor)
        if page.is_withheld:
            return replace(after, state=GapState.TRUNCATED)
        if page.is_beginning or page.is_known or end is None:
            if gap.walk == 1:
                return replace(after, walk=2, cursor=None, events=0, anchor=None)
            return replace(after, state=GapState.REPAIRED)
        return replace(after, state=GapState.TRUNCATED) if after.events >= CEILING_EVENTS else after

    @staticmethod
    def is_refusal(failure: MatrixFailureClass) -> bool:
        """The server answered, and said no: 403, 404 or 400. Nothing else ever gives a gap up."""
        return failure in _REFUSALS

    def gives_up(self, failure: MatrixFailureClass, *, is_hearing: bool) -> bool:
        """Whether this failure truncates the gap; `is_hearing`: `/sync` of the same account works meanwhile."""
        is_enough = self.gap.refusals + 1 >= MIN_REFUSALS and self.gap.refused_seconds >= MIN_REFUSED_SECONDS
        return self.is_refusal(failure) and is_hearing and is_enough

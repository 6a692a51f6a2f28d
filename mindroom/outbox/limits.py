"""SendLimits: what the homeserver's refusals mean for all sends of one principal (E5, E6)."""

from mindroom.core.clock import Clock
from mindroom.core.errors import MatrixFailure, MatrixFailureClass
from mindroom.core.ids import PrincipalName
from mindroom.core.metrics import Metrics, errcode_label
from mindroom.outbox.budget import SendBudget

UNSAID_PAUSE_SECONDS = 5.0
"""The pause of a 429 that names none."""
ACCOUNT_PAUSE_SECONDS = 30.0
"""Between two attempts while the account itself is refused: locked, suspended, out of consent or logged out."""


class SendLimits:
    """One for each principal, shared by whatever sends messages, edits, reactions and redactions.

    Joins, rooms and logins have limits of their own at a homeserver; each waits as long as its own 429 asks.
    """

    def __init__(self, clock: Clock, *, metrics: Metrics, name: PrincipalName) -> None:
        self._clock = clock
        self._metrics = metrics
        self._name = name
        self._until = 0.0
        self._budget = SendBudget()

    @property
    def seconds_left(self) -> float:
        """How long nothing is sent."""
        return max(0.0, self._until - self._clock.boottime())

    @property
    def progress_seconds(self) -> float:
        """How long no progress edit is sent."""
        return max(self.seconds_left, self._budget.progress_seconds(self._clock.boottime()))

    def spend(self) -> None:
        """Something is sent now."""
        self._budget = self._budget.spent(self._clock.boottime())

    def said(self) -> None:
        """The homeserver took it."""
        self._metrics.sends.labels("ok").inc()
        self._metrics.sends_refused.labels(self._name).set(0)

    def refused(self, failure: MatrixFailure) -> None:
        """A send failed so. 429s that come together are one lesson."""
        self._metrics.sends.labels(errcode_label(failure.errcode or failure.failure_class.value)).inc()
        if failure.failure_class is MatrixFailureClass.RATE_LIMITED:
            asked = failure.retry_after_seconds
            seconds = UNSAID_PAUSE_SECONDS if asked is None else asked
            if self.seconds_left == 0:
                self._budget = self._budget.limited(self._clock.boottime(), pause_seconds=seconds)
                self._metrics.rate_limited_seconds.inc(seconds)
            self._pause(seconds)
        elif failure.failure_class is MatrixFailureClass.AUTH:
            self._metrics.sends_refused.labels(self._name).set(1)
            self._pause(ACCOUNT_PAUSE_SECONDS)

    def _pause(self, seconds: float) -> None:
        self._until = max(self._until, self._clock.boottime() + seconds)

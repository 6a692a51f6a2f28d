"""What the homeserver lets one user send, as its 429s teach it. Pure: moments come in, waits come out (E5).

A bucket of tokens whose rate drops at each 429 and recovers slowly. INITIAL and FINAL take a token and never wait for
one; a progress edit waits until it leaves room for them.
"""

from dataclasses import dataclass, replace
from typing import Final

CAPACITY: Final = 10.0
RESERVE: Final = 3.0
"""Tokens that a progress edit leaves for INITIAL and FINAL."""
TOP_RATE: Final = 50.0
"""Sends in a second before anything is learned: no limit that one would notice."""
LOWEST_RATE: Final = 0.02
DOUBLING_SECONDS: Final = 120.0
"""Without a 429 the rate doubles in this time."""


@dataclass(frozen=True, slots=True)
class SendBudget:
    """The bucket at a moment; seconds are of one monotonic clock."""

    rate_per_second: float = TOP_RATE
    tokens: float = CAPACITY
    at_seconds: float = 0.0

    def now(self, at_seconds: float) -> "SendBudget":
        """The bucket at a later moment."""
        passed = max(0.0, at_seconds - self.at_seconds)
        rate = min(TOP_RATE, self.rate_per_second * 2.0 ** min(passed / DOUBLING_SECONDS, 30.0))
        return SendBudget(rate, min(CAPACITY, self.tokens + passed * self.rate_per_second), self.at_seconds + passed)

    def spent(self, at_seconds: float) -> "SendBudget":
        """After one more send."""
        bucket = self.now(at_seconds)
        return replace(bucket, tokens=bucket.tokens - 1.0)

    def limited(self, at_seconds: float, *, pause_seconds: float) -> "SendBudget":
        """After a 429: half the rate, at most one send in the pause asked for, and one token when that is over."""
        bucket = self.now(at_seconds)
        rate = max(LOWEST_RATE, min(bucket.rate_per_second / 2.0, 1.0 / max(pause_seconds, 0.001)))
        return replace(bucket, rate_per_second=rate, tokens=1.0 - rate * pause_seconds)

    def progress_seconds(self, at_seconds: float) -> float:
        """How long a progress edit waits so that INITIAL and FINAL find room."""
        bucket = self.now(at_seconds)
        return max(0.0, (1.0 + RESERVE - bucket.tokens) / bucket.rate_per_second)

"""Back-off: exponential with jitter and a cap, for work that is owed for ever and therefore never gives up."""

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """Counts failures in a row. Waits lie between half and the whole of first * 2**n, never above the cap (B5)."""

    first_seconds: float
    cap_seconds: float
    rng: random.Random = field(default_factory=random.Random)
    failures: int = 0

    def next_seconds(self, *, asked_seconds: float | None = None) -> float:
        """The wait after one more failure; never shorter than what the other side asked for, whatever the cap (E5)."""
        self.failures += 1
        wait = backoff_seconds(self.failures, first=self.first_seconds, cap=self.cap_seconds, rng=self.rng)
        return max(wait, asked_seconds or 0.0)

    def reset(self) -> None:
        """It worked."""
        self.failures = 0


def backoff_seconds(failures: int, *, first: float, cap: float, rng: random.Random) -> float:
    """The wait after `failures` failures in a row, at least one."""
    whole = min(cap, first * 2.0 ** min(failures - 1, 30))
    return whole * (0.5 + 0.5 * rng.random())

"""When the next progress edit of a streaming answer is due. Pure: times and counts come in, a wait comes out."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Cadence:
    """The rhythm of progress edits: fast at first, slower later, never for a few characters, bounded in number (E8)."""

    first_interval_seconds: float = 0.5
    last_interval_seconds: float = 5.0
    ramp_seconds: float = 15.0
    min_new_characters: int = 48
    max_edits: int = 60


@dataclass(frozen=True, slots=True)
class EditProgress:
    """Where a streaming answer stands."""

    elapsed_seconds: float
    """Since its first text."""
    since_last_edit_seconds: float
    """Since the newest edit, or since the event it edits was sent."""
    new_characters: int
    """Not shown yet."""
    edits: int
    """Sent so far."""


DEFAULT_CADENCE: Final = Cadence()


def interval_seconds(elapsed_seconds: float, *, cadence: Cadence = DEFAULT_CADENCE) -> float:
    """The rest after an edit made at `elapsed_seconds`, growing in a straight line over the ramp."""
    share = min(1.0, max(0.0, elapsed_seconds) / cadence.ramp_seconds)
    return cadence.first_interval_seconds + share * (cadence.last_interval_seconds - cadence.first_interval_seconds)


def wait_seconds(progress: EditProgress, *, cadence: Cadence = DEFAULT_CADENCE) -> float | None:
    """Seconds until an edit is due: 0 means now, None that time alone brings none (too little text, or too many edits).

    The answer stays right until new text arrives or an edit is sent, so a caller sleeps once and then edits.
    """
    if progress.edits >= cadence.max_edits or progress.new_characters < cadence.min_new_characters:
        return None
    edited_at_seconds = progress.elapsed_seconds - progress.since_last_edit_seconds
    return max(0.0, interval_seconds(edited_at_seconds, cadence=cadence) - progress.since_last_edit_seconds)

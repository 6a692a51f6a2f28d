"""SyncCheckpointTrust: how far the stored token may be believed. Pure (B1)."""

from dataclasses import dataclass
from enum import StrEnum

from mindroom.core.values import Trust


class TrustEvent(StrEnum):
    """What moves trust; equals the reason in SQL and metrics."""

    NO_TOKEN = "no_token"
    LOADED = "loaded"
    ADMITTED = "admitted"
    ADMISSION_FAILED = "admission_failed"


@dataclass(frozen=True, slots=True)
class CheckpointTrust:
    """State and the event that led to it."""

    state: Trust
    reason: TrustEvent


_NEXT: dict[TrustEvent, dict[Trust, Trust]] = {
    TrustEvent.NO_TOKEN: {Trust.COLD: Trust.COLD},
    TrustEvent.LOADED: dict.fromkeys(Trust, Trust.PENDING),
    TrustEvent.ADMITTED: dict.fromkeys(Trust, Trust.CERTIFIED),
    TrustEvent.ADMISSION_FAILED: {
        Trust.COLD: Trust.COLD,
        Trust.PENDING: Trust.UNCERTAIN,
        Trust.CERTIFIED: Trust.UNCERTAIN,
        Trust.UNCERTAIN: Trust.UNCERTAIN,
    },
}


def advance(trust: CheckpointTrust, event: TrustEvent) -> CheckpointTrust:
    """The trust after `event`; unchanged, reason included, when the event does not move it."""
    state = _NEXT[event].get(trust.state, trust.state)
    return trust if state is trust.state else CheckpointTrust(state, event)

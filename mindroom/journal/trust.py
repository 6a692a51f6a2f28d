"""SyncCheckpointTrust: how far the stored token may be believed. Pure (B1)."""

from dataclasses import dataclass
from enum import StrEnum

from mindroom.core.ids import SyncToken
from mindroom.core.values import Trust

LATE_MS = 24 * 3600 * 1000
"""An event this much older than the last certified sync before it is history (A3)."""


class TrustEvent(StrEnum):
    """What moves trust; equals the reason in SQL and metrics."""

    NO_TOKEN = "no_token"
    LOADED = "loaded"
    ADMITTED = "admitted"
    ADMISSION_FAILED = "admission_failed"
    TOKEN_REJECTED = "token_rejected"
    """The homeserver refuses the token and answers without one (B4)."""
    WENT_BACK = "homeserver_went_back"
    """It has forgotten an event of ours that it had acknowledged (B4)."""
    RESYNCED = "resynced"
    """A complete response without a token is admitted."""


@dataclass(frozen=True, slots=True)
class CheckpointTrust:
    """State and the event that led to it."""

    state: Trust
    reason: TrustEvent


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """Where the sync of an account stands."""

    token: SyncToken | None
    trust: CheckpointTrust
    certified_ms: int | None
    """When a response was last admitted, in Matrix milliseconds; None for an account without a baseline."""


_DOUBT = {
    Trust.COLD: Trust.COLD,
    Trust.PENDING: Trust.UNCERTAIN,
    Trust.CERTIFIED: Trust.UNCERTAIN,
    Trust.UNCERTAIN: Trust.UNCERTAIN,
}
_NEXT: dict[TrustEvent, dict[Trust, Trust]] = {
    TrustEvent.NO_TOKEN: {Trust.COLD: Trust.COLD},
    TrustEvent.LOADED: dict.fromkeys(Trust, Trust.PENDING),
    TrustEvent.ADMITTED: dict.fromkeys(Trust, Trust.CERTIFIED),
    TrustEvent.RESYNCED: dict.fromkeys(Trust, Trust.CERTIFIED),
    TrustEvent.ADMISSION_FAILED: _DOUBT,
    TrustEvent.TOKEN_REJECTED: _DOUBT,
    TrustEvent.WENT_BACK: _DOUBT,
}


def advance(trust: CheckpointTrust, event: TrustEvent) -> CheckpointTrust:
    """The trust after `event`; unchanged, reason included, when the event does not move it."""
    state = _NEXT[event].get(trust.state, trust.state)
    return trust if state is trust.state else CheckpointTrust(state, event)


def late_before(certified_ms: int | None) -> int | None:
    """Events with an older timestamp are late; None while nothing was ever certified (A3)."""
    return None if certified_ms is None else certified_ms - LATE_MS

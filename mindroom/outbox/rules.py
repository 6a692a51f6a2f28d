"""Pure: what is done with an owed delivery, and what a refused send means. No await, no clock (E3, E4, E6)."""

from dataclasses import dataclass
from enum import StrEnum

from mindroom.core.content import JsonObject, relation
from mindroom.core.errors import MatrixDeliveryFailure, MatrixFailureClass
from mindroom.core.ids import DeviceId
from mindroom.core.values import Stage
from mindroom.outbox.gate import Permission
from mindroom.outbox.records import Delivery, DeliveryState, Purpose

RESEND_WINDOW_SECONDS = 30 * 60.0
"""A homeserver keeps transaction ids for at least this long (E4)."""
SYNC_DECIDES_SECONDS = 60.0
"""A response asked for this long after a send shows its echo, or the send never happened (E4)."""
SUCCESSOR_SECONDS = 24 * 3600.0
"""What a room refuses after its upgrade waits this long for the successor (F4)."""
SERVER_ERRORS = 5
"""So many 5xx in a row for one delivery, while others go out, are its own fault (E6)."""

FORBIDDEN = "M_FORBIDDEN"
TOMBSTONED = "tombstoned"
"""Reason on a queued row that the room refused after its upgrade."""
_NO_RELATION = frozenset({"M_BAD_JSON", "M_NOT_JSON"})


class Step(StrEnum):
    """What the worker does with a row."""

    NOTHING = "nothing"
    CLAIM = "claim"
    RESEND = "resend"
    WAIT = "wait"
    """The room may not be written to yet; the conversation waits with it."""
    LATER = "later"
    """Sync has to show something first; the conversation goes on."""
    ASK_ROOM = "ask_room"
    """Sync has not shown everything since: the room itself is read (E4)."""
    FOR_SUCCESSOR = "for_successor"
    RETIRE = "retire"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Next:
    """A step and the reason that goes into the row or the log."""

    step: Step
    code: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the worker knows besides the row."""

    permission: Permission
    device_id: DeviceId
    is_tombstoned: bool
    heard_seconds: float | None
    """Since the newest admitted response was asked for; None while the room has a gap."""


def next_step(row: Delivery, facts: Facts) -> Next:
    """What is done with the row now."""
    if row.state not in (DeliveryState.QUEUED, DeliveryState.CLAIMED):
        return Next(Step.NOTHING)
    match facts.permission:
        case Permission.RETIRE:
            return Next(Step.RETIRE, "epoch")
        case Permission.REFUSE:
            return Next(Step.FAIL, "encrypted")
        case Permission.WAIT:
            return Next(Step.WAIT, "room_unknown")
        case Permission.SEND:
            return _queued(row, facts) if row.state is DeliveryState.QUEUED else _claimed(row, facts)


def absent(row: Delivery) -> Next:
    """A claimed row whose send never happened: a placeholder is given up, anything else is said now (E3, E4)."""
    return Next(Step.RETIRE, "never_sent") if row.key.stage is Stage.INITIAL else Next(Step.CLAIM)


def _queued(row: Delivery, facts: Facts) -> Next:
    if row.key.stage is Stage.FINAL and row.initial_state is DeliveryState.CLAIMED:
        return Next(Step.LATER, "initial_unknown")
    if row.purpose is Purpose.WITHDRAWAL and row.initial_event is None:
        return Next(Step.RETIRE, "nothing_visible")
    if row.last_error == TOMBSTONED and facts.is_tombstoned:
        return Next(Step.FAIL if row.queued_seconds >= SUCCESSOR_SECONDS else Step.LATER, TOMBSTONED)
    return Next(Step.CLAIM)


def _claimed(row: Delivery, facts: Facts) -> Next:
    heard = facts.heard_seconds
    sync_decides = heard is not None and row.attempted_seconds - heard >= SYNC_DECIDES_SECONDS
    if row.last_error == FORBIDDEN:
        # A departure or tombstone that explains the refusal stands in a response asked for after it.
        if facts.is_tombstoned:
            return Next(Step.FOR_SUCCESSOR, TOMBSTONED)
        return Next(Step.FAIL if sync_decides else Step.LATER, FORBIDDEN)
    if row.device_id == facts.device_id and row.claimed_seconds < RESEND_WINDOW_SECONDS:
        return Next(Step.RESEND)
    if not sync_decides:
        return Next(Step.LATER, "outcome_unknown")
    return Next(Step.ASK_ROOM, "outcome_unknown") if row.in_truncated_gap else absent(row)


class Remedy(StrEnum):
    """What follows a refused send."""

    AGAIN = "again"
    """The same later; a pause of the whole principal is the limits' business."""
    LOOK_UP = "look_up"
    """Membership and tombstone decide, as sync shows them."""
    FETCH_RELATED = "fetch_related"
    PLAIN = "plain"
    SMALLER = "smaller"
    SAID = "said"
    FAIL = "fail"


@dataclass(slots=True)
class Tried:
    """What one delivery went through since its lane took it up."""

    server_errors: int = 0
    said_before: int = 0
    """Sends of the principal that had gone out at the first of these server errors."""
    said_by_others: int = 0
    """Those that went out since."""
    fetched: bool = False
    plain: bool = False
    halvings: int = 0
    freeze_anew: bool = False
    """The homeserver refused the frozen payload as it is, so it was never said."""


def remedy(failure: MatrixDeliveryFailure, *, stage: Stage, content: JsonObject, tried: Tried) -> Remedy:
    """What a refused send means, by class, status and errcode alone (E6); a refused placeholder is given up (E3)."""
    match failure.failure_class:
        case MatrixFailureClass.SERVER if failure.status >= 500:
            stuck = tried.server_errors >= SERVER_ERRORS and tried.said_by_others > 0
            return Remedy.FAIL if stuck else Remedy.AGAIN
        case (
            MatrixFailureClass.SERVER
            | MatrixFailureClass.NETWORK
            | MatrixFailureClass.NOT_JSON
            | MatrixFailureClass.RATE_LIMITED
            | MatrixFailureClass.AUTH
        ):
            return Remedy.AGAIN
        case MatrixFailureClass.FORBIDDEN if failure.errcode == FORBIDDEN and stage is Stage.FINAL:
            return Remedy.LOOK_UP
        case MatrixFailureClass.TOO_LARGE:
            return Remedy.SMALLER
        case MatrixFailureClass.BAD_REQUEST if failure.errcode == "M_DUPLICATE_ANNOTATION":
            return Remedy.SAID
        case MatrixFailureClass.BAD_REQUEST if failure.status == 400 and failure.errcode not in _NO_RELATION:
            if stage is Stage.INITIAL or not relation(content).get("rel_type"):
                return Remedy.FAIL
            return Remedy.PLAIN if tried.fetched else Remedy.FETCH_RELATED
        case _:
            return Remedy.FAIL

"""Shared values of the vocabulary: order, conversations, classes, verdicts, stages."""

from dataclasses import dataclass
from enum import StrEnum

from mindroom.core.ids import THREAD_MAIN, EventId, PrincipalId, RoomId, UserId


class EventClass(StrEnum):
    """How an event reached us (A3). LIVE and RECOVERED may start work; HISTORY is context only."""

    LIVE = "live"
    RECOVERED = "recovered"
    HISTORY = "history"


class EventKind(StrEnum):
    """What an event is; equals the SQL value and the metric label."""

    MESSAGE = "message"
    EDIT = "edit"
    MEDIA = "media"
    REACTION = "reaction"
    ROOM_LIFECYCLE = "room_lifecycle"
    REDACTION = "redaction"
    ENCRYPTED = "encrypted"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, order=True, slots=True)
class OrderKey:
    """The order of work, compared as a row; timestamps never order anything.

    Live: (receipt, 0, 0). From a gap: (floor, 2**31 - page, place on the page), so older pages sort first; what only
    the second walk finds stands just before the next newer event of the room. Read for a prompt: (floor of the gap it
    fills, else 0; 2**31 - page; index); a later receipt brings its own.
    """

    base: int
    page: int = 0
    index: int = 0


GAP_PAGE_TOP = 2**31
"""Pages of a gap are numbered downwards from here, since walking back finds newer pages first."""
GAP_SPACING = 2**15
"""Between two neighbours of a page stay that many places, for what the second walk finds between them (B2)."""


class GapState(StrEnum):
    """Whether a gap is still walked; equals the SQL value."""

    REPAIRABLE = "repairable"
    REPAIRED = "repaired"
    TRUNCATED = "truncated"


@dataclass(frozen=True, slots=True)
class Conversation:
    """(room, thread root); None means the main timeline. Conversation is identity, MessageTarget placement."""

    room: RoomId
    thread: EventId | None

    @property
    def stored_thread(self) -> EventId:
        """The thread as storage writes it: '' for the main timeline."""
        return self.thread or THREAD_MAIN


@dataclass(frozen=True, slots=True)
class ResponseLifecycleKey:
    """One answer at a time: (principal, conversation)."""

    principal: PrincipalId
    conversation: Conversation


@dataclass(frozen=True, slots=True)
class MessageTarget:
    """Where an answer is put."""

    room: RoomId
    thread: EventId | None
    reply_to: EventId | None


@dataclass(frozen=True, slots=True)
class ReceiptLaneKey:
    """First in, first decided: (principal, room, effective requester)."""

    principal: PrincipalId
    room: RoomId
    requester: UserId


class Action(StrEnum):
    """What policy decides to do with a source."""

    RESPOND = "respond"
    IGNORE = "ignore"


class Reason(StrEnum):
    """Why; equals the SQL value (`ignored.<reason>`) and the metric label."""

    MENTION = "mention"
    REPLY = "reply"
    THREAD = "thread"
    DM = "dm"
    SOLE = "sole"
    OWN = "own"
    NOTICE = "notice"
    UNSUPPORTED = "unsupported"
    UNAUTHORIZED = "unauthorized"
    OTHER_MENTIONED = "other_mentioned"
    SEVERAL_CANDIDATES = "several_candidates"
    NOT_ADDRESSED = "not_addressed"
    LATE = "late"
    ENCRYPTED = "encrypted"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Policy's word on one source."""

    action: Action
    reason: Reason

    @property
    def outcome(self) -> str:
        """The settlement outcome of an ignored source."""
        return f"ignored.{self.reason.value}"


class Stage(StrEnum):
    """Stages of a delivery; progress has no row of its own (E1)."""

    INITIAL = "initial"
    PROGRESS = "progress"
    FINAL = "final"


class Trust(StrEnum):
    """SyncCheckpointTrust (B1)."""

    COLD = "cold"
    PENDING = "pending"
    CERTIFIED = "certified"
    UNCERTAIN = "uncertain"


class Membership(StrEnum):
    """Our own membership in a room."""

    JOIN = "join"
    INVITE = "invite"
    LEAVE = "leave"
    BAN = "ban"

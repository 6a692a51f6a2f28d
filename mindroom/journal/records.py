"""Values of the journal: what one sync response or history page means, before any of it is stored."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from mindroom.core.content import DeliveryMarker, JsonObject
from mindroom.core.ids import DeliveryId, Epoch, EventId, Receipt, RoomId, SyncToken, TurnId, UserId
from mindroom.core.values import EventClass, EventKind, GapState, Membership, OrderKey, Stage
from mindroom.journal.trust import CheckpointTrust


@dataclass(frozen=True, slots=True)
class Hearer:
    """Whose journal this is and whom it may listen to (I1)."""

    user_id: UserId
    hosted: frozenset[UserId]
    authorized: frozenset[UserId]


@dataclass(slots=True)
class Heard:
    """One event that gets a receipt. `base` None means live: the receipt itself is the base of its order key."""

    event_id: EventId
    room: RoomId
    thread: EventId
    kind: EventKind
    event_class: EventClass
    sender: UserId
    origin_ts: int
    epoch: Epoch
    base: int | None = None
    page: int = 0
    index: int = 0
    source: JsonObject | None = None
    """The exact event when it is owed an outcome, else None."""
    outcome: str | None = None
    """Set when admission itself settles the event."""


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision of a message: the newest by (timestamp, event id) is visible (A10)."""

    timestamp_ms: int
    event_id: EventId

    def newer_than(self, other: "Revision") -> bool:
        return (self.timestamp_ms, self.event_id) > (other.timestamp_ms, other.event_id)


@dataclass(frozen=True, slots=True)
class Original:
    """A message as first sent. content None: an answer of ours without its text yet (A11)."""

    room: RoomId
    event_id: EventId
    thread: EventId
    sender: UserId
    epoch: Epoch
    content: JsonObject | None
    relates_to: JsonObject | None
    revision: Revision
    turn: TurnId | None


@dataclass(frozen=True, slots=True)
class Edit:
    """A new revision of `target`."""

    room: RoomId
    target: EventId
    sender: UserId
    epoch: Epoch
    content: JsonObject | None
    """None: it was redacted before its original came, which then has an earlier revision to be read again."""
    revision: Revision


@dataclass(frozen=True, slots=True)
class Refetched:
    """All that the homeserver still has of a message whose visible edit was redacted (A4)."""

    room: RoomId
    target: EventId
    content: JsonObject | None
    """The original's; None when it has no text, or none that we may read."""
    edits: Sequence[Edit] = ()


@dataclass(frozen=True, slots=True)
class Redaction:
    """`target` must never be read again."""

    room: RoomId
    target: EventId


@dataclass(frozen=True, slots=True)
class Silenced:
    """Somebody was removed together with all that they had said in the room (MSC4293)."""

    event: Heard
    user: UserId


ProjectionChange = Original | Edit | Redaction | Refetched


@dataclass(frozen=True, slots=True)
class Echo:
    """An INITIAL or FINAL of our own seen in a room: proof that it was said (A6)."""

    event_id: EventId
    room: RoomId
    thread: EventId
    epoch: Epoch
    delivery: DeliveryId
    stage: Stage
    marker: DeliveryMarker | None
    """None when the event was redacted and only its transaction id is left."""


@dataclass(frozen=True, slots=True)
class ProgressSeen:
    """A progress edit of our own; a FINAL that is older than one is hidden by it (E11)."""

    delivery: DeliveryId
    revision: Revision


@dataclass(frozen=True, slots=True)
class StateRow:
    """One piece of current room state that a crash must not forget (A13)."""

    room: RoomId
    event_type: str
    state_key: str
    sender: UserId
    content: JsonObject


@dataclass(frozen=True, slots=True)
class RoomMembership:
    """Our own standing in a room."""

    epoch: Epoch
    membership: Membership
    inviter: UserId | None = None
    is_direct: bool = False
    joined_count: int | None = None
    invited_count: int | None = None
    joined_by: EventId | None = None
    """The join that began this stay; None while we have not seen it. Shown again it is no new stay (F1)."""


NO_TOKEN = SyncToken("")
"""`to_token` of a gap whose older end no usable token names: it ends at receipts before its floor (B4)."""


@dataclass(frozen=True, slots=True)
class GapFound:
    """A limited timeline: everything between `to_token` and `from_token` was skipped (B2)."""

    room: RoomId
    from_token: SyncToken
    to_token: SyncToken
    epoch: Epoch
    late_before_ms: int | None = None
    """Older events of the gap are late: measured at the sync before the gap, not at the walk (A3)."""


@dataclass(slots=True)
class Admission:
    """All that one response means for one principal. Lists are in the order in which they were heard."""

    heard: list[Heard] = field(default_factory=list)
    projection: list[ProjectionChange] = field(default_factory=list)
    silenced: list[Silenced] = field(default_factory=list)
    echoes: list[Echo] = field(default_factory=list)
    progress: list[ProgressSeen] = field(default_factory=list)
    memberships: dict[RoomId, RoomMembership] = field(default_factory=dict)
    departures: dict[RoomId, Epoch] = field(default_factory=dict)
    """Rooms left, with the epoch that ended."""
    state: dict[tuple[RoomId, str, str], StateRow] = field(default_factory=dict)
    gaps: list[GapFound] = field(default_factory=list)
    encrypted_asks: dict[RoomId, Epoch] = field(default_factory=dict)
    """Rooms where somebody authorized spoke encrypted: they are told once (A7)."""
    dropped: int = 0
    """Events without an identity, which nothing can receipt."""

    @property
    def moves_us(self) -> bool:
        """True when our membership changes or a room is upgraded."""
        return bool(self.memberships) or any(kind == "m.room.tombstone" for _, kind, _ in self.state)

    @property
    def is_empty(self) -> bool:
        """True when there is nothing to store but the token."""
        rows = self.heard or self.memberships or self.departures or self.state or self.gaps or self.echoes
        return not (rows or self.progress)


@dataclass(frozen=True, slots=True)
class Admitted:
    """What a commit of heard events changed."""

    receipts: dict[EventId, Receipt]
    """Fresh receipts only; a missing event was a duplicate."""
    keys: dict[EventId, OrderKey]
    """Where each of them stands."""
    lowest_pending: OrderKey | None
    shown: frozenset[EventId] = frozenset()
    """Plain originals that are in the projection already."""
    certified_ms: int | None = None
    """When the checkpoint moved with them; None where it did not."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where the sync stands once a batch is committed (A1); no token before the account's baseline."""

    token: SyncToken | None
    trust: CheckpointTrust


class ParkedAs(StrEnum):
    """Why a source rests: an unknown error may be mended by a newer version (C2)."""

    UNKNOWN = "unknown"
    PERMANENT = "permanent"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class PendingSource:
    """A source that is owed an outcome, as the feeder reads it."""

    receipt: Receipt
    order_key: OrderKey
    event_id: EventId
    room: RoomId
    thread: EventId
    sender: UserId
    kind: EventKind
    event_class: EventClass
    epoch: Epoch
    origin_ts: int
    source: JsonObject
    failures: int = 0
    """How often handling it failed."""
    attempts: int = 0
    """How often for a reason of its own (C2)."""
    was_parked: bool = False
    open_turn: TurnId | None = None
    """The open turn that already holds this source after a crash (D2)."""


@dataclass(frozen=True, slots=True)
class VisibleMessage:
    """One message of a conversation in its latest visible revision."""

    event_id: EventId
    sender: UserId
    thread: EventId
    order_key: OrderKey
    origin_ts: int
    content: JsonObject | None
    relates_to: JsonObject | None
    turn: TurnId | None
    is_withheld: bool = False
    """Its edit was redacted, and what it said before is not restored yet (A4)."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A gap and how far it is walked. (epoch, page) is its revision: whoever writes compares both."""

    room: RoomId
    to_token: SyncToken
    from_token: SyncToken
    floor: int
    epoch: Epoch
    opened_ms: int
    late_before_ms: int | None = None
    state: GapState = GapState.REPAIRABLE
    walk: int = 1
    """1: back to `to_token`; 2: without it, for holes in the homeserver's own copy."""
    cursor: SyncToken | None = None
    page: int = 0
    events: int = 0
    """Seen in this walk; a page counts as at least one."""
    anchor: OrderKey | None = None
    """Place of the oldest event of this walk."""
    is_due: bool = True
    attempts: int = 0
    refusals: int = 0
    refused_seconds: float = 0.0
    """Since the first of the refusals."""


@dataclass(frozen=True, slots=True)
class KnownEvent:
    """An event of a gap's page that has a receipt already."""

    receipt: Receipt
    order_key: OrderKey
    is_beginning: bool
    """History of before our time: what is older is not ours."""


@dataclass(frozen=True, slots=True)
class GapPage:
    """What one page of a gap means."""

    admission: Admission
    anchor: OrderKey
    is_beginning: bool
    """Our membership, or what is known of the room, begins on it."""
    is_known: bool
    """All of it was known before the gap: at least one event, and none newer than the floor."""
    is_withheld: bool
    """It is older than the recovery horizon, and not all of it was known."""


@dataclass(frozen=True, slots=True)
class Invite:
    """An invitation that waits for a decision."""

    room: RoomId
    inviter: UserId
    attempts: int
    due_in_seconds: float
    """0 when it may be decided now."""


Events = Sequence[JsonObject]

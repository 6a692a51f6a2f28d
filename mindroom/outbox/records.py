"""Values of the outbox: what is to be said, and a row on its way."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID, uuid5

from mindroom.core.content import JsonObject
from mindroom.core.ids import DeliveryId, DeviceId, Epoch, EventId, RoomId, SyncToken, TurnId, TxnId, UserId
from mindroom.core.ports import WirePayload
from mindroom.core.transactions import txn_id
from mindroom.core.values import Conversation, Stage

_NAMESPACE = UUID("6f1b1f0a-8f0b-5c53-9a54-3d8a6d0b7a10")


def answer_delivery_id(turn: TurnId, generation: int) -> DeliveryId:
    """One answer per turn and generation, whoever computes it."""
    return DeliveryId(uuid5(_NAMESPACE, f"answer:{turn}:{generation}"))


def notice_delivery_id(*parts: object) -> DeliveryId:
    """A notice said once per whatever `parts` name."""
    return DeliveryId(uuid5(_NAMESPACE, "notice:" + ":".join(str(part) for part in parts)))


def repeat_delivery_id(edit: EventId) -> DeliveryId:
    """The FINAL text once more, because that progress edit hides it (E11)."""
    return DeliveryId(uuid5(_NAMESPACE, f"repeat:{edit}"))


class Purpose(StrEnum):
    """What a delivery is for."""

    ANSWER = "answer"
    NOTICE = "notice"
    """The one sentence that an encrypted room is told in plain (A7, E10)."""
    WITHDRAWAL = "withdrawal"
    """Redacts the placeholder of a turn that ended without an answer; encryption does not forbid it (D9)."""
    ADOPTED = "adopted"


class DeliveryState(StrEnum):
    """queued -> claimed -> acked | retired | failed."""

    QUEUED = "queued"
    CLAIMED = "claimed"
    ACKED = "acked"
    RETIRED = "retired"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class DeliveryKey:
    """Names a row."""

    delivery: DeliveryId
    stage: Stage

    @property
    def txn_id(self) -> TxnId:
        return txn_id(self.stage, self.delivery)


@dataclass(frozen=True, slots=True)
class NewDelivery:
    """A thing to say, before it is a row."""

    key: DeliveryKey
    turn: TurnId | None
    generation: int
    purpose: Purpose
    room: RoomId
    thread: EventId
    epoch: Epoch
    content: JsonObject
    notify: Sequence[UserId] = ()
    """Whom the FINAL names at its top when it edits a placeholder (E8)."""

    @property
    def conversation(self) -> Conversation:
        """Deliveries of one conversation are said in order."""
        return Conversation(self.room, self.thread or None)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A row as the worker reads it."""

    key: DeliveryKey
    turn: TurnId | None
    purpose: Purpose
    room: RoomId
    epoch: Epoch
    content: JsonObject | None
    notify: tuple[UserId, ...]
    wire: WirePayload | None
    device_id: DeviceId | None
    attempts: int
    state: DeliveryState
    acked_event: EventId | None
    initial_state: DeliveryState | None
    initial_event: EventId | None
    queued_seconds: float
    claimed_seconds: float
    attempted_seconds: float
    """Since the last attempt to send it."""
    claim_token: SyncToken | None
    """The checkpoint at the claim: whatever the room got since then, it got after it."""
    in_truncated_gap: bool
    """True when a part of the room's timeline since the claim is lost to sync (B3)."""
    last_error: str


@dataclass(frozen=True, slots=True)
class OwedDelivery:
    """What a start of service, or the sweep, finds unsaid."""

    key: DeliveryKey
    conversation: Conversation
    due_in_seconds: float
    """Below zero: it was due so long ago."""


@dataclass(frozen=True, slots=True)
class WaitingDelivery:
    """What an upgraded room refused (F4)."""

    key: DeliveryKey
    content: JsonObject
    is_answer: bool
    """Worth saying in the successor; anything else is about what stands in the old room."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A row whose payload is frozen and committed: it may go over the network."""

    key: DeliveryKey
    turn: TurnId | None
    wire: WirePayload


@dataclass(frozen=True, slots=True)
class ClosedPlaceholder:
    """A placeholder of a turn that ended without an answer, visible or perhaps visible."""

    delivery: DeliveryId
    turn: TurnId
    generation: int
    room: RoomId
    thread: EventId
    epoch: Epoch

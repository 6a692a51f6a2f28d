"""TurnRecord: the only reader-side shape of a turn."""

from dataclasses import dataclass
from datetime import datetime

from mindroom.core.ids import Epoch, EventId, Fence, Receipt, TurnId, UserId
from mindroom.core.values import Conversation, MessageTarget, OrderKey, Reason


@dataclass(frozen=True, slots=True)
class TurnSource:
    """An event that a turn answers."""

    event_id: EventId
    receipt: Receipt
    order_key: OrderKey


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """An immutable turn. Its delivered state is the outbox's."""

    turn_id: TurnId
    target: MessageTarget
    requester: UserId
    epoch: Epoch
    is_open: bool
    reason: Reason
    generation: int
    model: str
    fence: Fence
    """Of whoever opened it or took it up last."""
    opened_at: datetime | None
    sources: tuple[TurnSource, ...]

    @property
    def conversation(self) -> Conversation:
        return Conversation(self.target.room, self.target.thread)

    @property
    def anchor(self) -> TurnSource:
        """The last source of the batch."""
        return self.sources[-1]

    @property
    def events(self) -> tuple[EventId, ...]:
        return tuple(source.event_id for source in self.sources)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A completed model step."""

    step: int
    canonical_text: str
    replayable_text: str
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """One of our own answers, as later prompts replay it, at the place of its sources."""

    turn_id: TurnId
    order_key: OrderKey
    text: str
    closed_at: datetime

"""What a run needs, built from an intent: who answers, for whom, where, on which sources."""

from collections.abc import Mapping
from dataclasses import dataclass

from mindroom.core.ids import Epoch, EventId, PrincipalName, Receipt, TurnId, UserId
from mindroom.core.values import MessageTarget, OrderKey, Reason


@dataclass(frozen=True, slots=True)
class Responder:
    """The agent that answers, as its configuration says."""

    name: PrincipalName
    user_id: UserId
    display_name: str
    role: str
    model: str
    config_generation: str
    hosted_names: Mapping[str, UserId]
    """Config names of all hosted principals, for mention pills."""
    hosted_display_names: Mapping[UserId, str]


@dataclass(frozen=True, slots=True)
class IntentSource:
    """A message that is to be answered."""

    event_id: EventId
    receipt: Receipt
    order_key: OrderKey
    sender: UserId
    text: str
    origin_ts: int


@dataclass(frozen=True, slots=True)
class ResponseIntent:
    """Answer these messages there. `turn` is set when an open turn already holds them (D2)."""

    target: MessageTarget
    requester: UserId
    reason: Reason
    epoch: Epoch
    sources: tuple[IntentSource, ...]
    turn: TurnId | None

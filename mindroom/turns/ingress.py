"""The one canonical inbound value that the rest of a turn sees; nothing after it reads a raw event.

Holds plain values only, so that it can be stored.
"""

from dataclasses import dataclass

from mindroom.core.ids import Epoch, EventId, Receipt, TurnId, UserId
from mindroom.core.mentions import Addressed
from mindroom.core.values import Conversation, EventClass, EventKind, OrderKey


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedIngress:
    """A source that is a prompt, as its sender meant it."""

    receipt: Receipt
    order_key: OrderKey
    event_id: EventId
    epoch: Epoch
    conversation: Conversation
    sender: UserId
    requester: UserId
    """Whom the turn belongs to."""
    kind: EventKind
    event_class: EventClass
    """RECOVERED: found behind a gap; HISTORY never becomes an ingress."""
    origin_ts: int
    """Milliseconds by the sender's homeserver, for people to read only."""
    text: str
    """What the sender wrote, without reply fallback; never empty."""
    addressed: Addressed
    replied_to: EventId | None
    """The event this is a genuine reply to, thread fallback excluded."""
    failures: int = 0
    attempts: int = 0
    open_turn: TurnId | None = None
    """The turn that held this source before a crash (D2)."""

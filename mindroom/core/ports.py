"""Ports at the edges: what the inside needs of the homeserver, the models and the clock of other packages.

`matrix` and `models` implement these; `turns`, `responses`, `journal` and `outbox` see nothing else of them.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from mindroom.core.content import JsonObject
from mindroom.core.ids import DeliveryId, DeviceId, EventId, RoomId, SyncToken, TxnId
from mindroom.core.values import Conversation


# ---- homeserver ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SyncBatch:
    """One `/sync` response as raw JSON, kept until it is admitted (A1)."""

    next_batch: SyncToken
    raw: JsonObject


class SyncPort(Protocol):
    """The receive side of one account."""

    async def sync(self, since: SyncToken | None, *, timeout_seconds: float, full_state: bool) -> SyncBatch:
        """One request, one attempt. Raises MatrixFailure."""
        ...


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """A page of `/messages`, events as the server ordered them; `end` None means there is no more."""

    events: Sequence[JsonObject]
    end: SyncToken | None


class HistoryPort(Protocol):
    """Walking a room's timeline backwards, or what a thread holds."""

    async def messages_back(self, room: RoomId, *, start: SyncToken, stop: SyncToken | None, limit: int) -> HistoryPage:
        """One page, newest first. Raises MatrixFailure."""
        ...

    async def thread_back(self, room: RoomId, root: EventId, *, start: SyncToken, limit: int) -> HistoryPage:
        """One page of what relates to `root`, directly or not, newest first; never the root. Raises MatrixFailure."""
        ...

    async def edits(self, room: RoomId, event: EventId, *, limit: int) -> HistoryPage:
        """The latest edits of an event. Raises MatrixFailure."""
        ...

    async def event(self, room: RoomId, event: EventId) -> JsonObject:
        """One event. Raises MatrixFailure."""
        ...


class EarlierMessages(Protocol):
    """Reads what was said before we heard a conversation, within a bound of events and time (A12)."""

    async def hydrate(self, conversation: Conversation) -> bool:
        """True when the conversation is known back to its start, or at least its newest part.
        Raises DatabaseUnavailable, FenceLost."""
        ...

    async def event(self, room: RoomId, event: EventId) -> JsonObject | None:
        """An event that the projection does not hold, or None. Stores nothing."""
        ...


class RoomReader(Protocol):
    """What a room holds, asked when sync could not show it."""

    async def said_since(self, room: RoomId, *, start: SyncToken) -> HistoryPage:
        """One page of our own events after `start`, oldest first. Raises MatrixFailure."""
        ...

    async def event(self, room: RoomId, event: EventId) -> JsonObject:
        """One event as the server has it, fetched from other servers when it has it not. Raises MatrixFailure."""
        ...


class MembershipPort(Protocol):
    """Joining and leaving; each call is repeatable (E12)."""

    async def join(self, room: RoomId, *, via: Sequence[str] = ()) -> None:
        """Join, asking the servers `via` where ours does not know the room."""
        ...

    async def leave(self, room: RoomId) -> None: ...


class AttentionPort(Protocol):
    """Best-effort signs of life: typing and read receipts. Never raises a MatrixFailure to its caller."""

    async def typing(self, room: RoomId, *, seconds: float) -> None:
        """Show typing for `seconds`; 0 stops it."""
        ...

    async def read(self, room: RoomId, event: EventId, *, thread: EventId | None) -> None: ...


@dataclass(frozen=True, slots=True)
class OutgoingEvent:
    """An event of ours before it is frozen."""

    room: RoomId
    event_type: str
    content: JsonObject
    txn_id: TxnId


@dataclass(frozen=True, slots=True)
class WirePayload:
    """Exactly what goes over the wire, the same at every attempt (E1)."""

    room: RoomId
    event_type: str
    content: JsonObject
    txn_id: TxnId
    device_id: DeviceId


class DeliveryGateway(Protocol):
    """The one transport for sends; called only by outbox.worker and responses.streaming."""

    @property
    def device_id(self) -> DeviceId:
        """The transaction-id scope of this account."""
        ...

    async def freeze(self, event: OutgoingEvent) -> WirePayload:
        """Canonical JSON, size, later uploads and encryption; before `claim_delivery`. Raises MatrixDeliveryFailure."""
        ...

    async def send(self, wire: WirePayload) -> EventId:
        """One attempt. Raises MatrixDeliveryFailure; network class means the outcome is unknown."""
        ...


# ---- models ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class PromptMessage:
    """One message of a prompt."""

    role: Literal["system", "user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model attempt: which configured model, and the prompt, oldest first."""

    model: str
    messages: tuple[PromptMessage, ...]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ModelDone:
    """The end of one attempt, with the provider's own token counts (0 where it gives none)."""

    model_id: str
    input_tokens: int
    output_tokens: int


ModelEvent = TextDelta | ModelDone


class ModelPort(Protocol):
    """The only model call of the runtime."""

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Deltas, then exactly one ModelDone. One attempt, no retry inside. Raises ModelFailure."""
        ...


# ---- people ----------------------------------------------------------------------------------------------------------
class PresentationPort(Protocol):
    """Text that is being written now, as the outbox needs it for placeholders."""

    def draft_content(self, delivery: DeliveryId) -> JsonObject | None:
        """Content of the INITIAL with the text so far, or None when nothing is there yet."""
        ...

    def is_being_written(self, delivery: DeliveryId) -> bool:
        """True while its answer is being written in this process."""
        ...

    def initial_visible(self, delivery: DeliveryId, event: EventId) -> None:
        """The placeholder stands in the room: progress edits may begin."""
        ...

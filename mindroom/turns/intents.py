"""From a batch to what a run needs. A batch that an open turn holds gets all sources of that turn (D2)."""

from dataclasses import dataclass

from mindroom.core.content import MAX_SOURCES, is_fallback_reply, replied_event
from mindroom.core.errors import DependencyError
from mindroom.journal.projection import MessageProjection
from mindroom.journal.records import VisibleMessage
from mindroom.responses.assembly import IntentSource, ResponseIntent
from mindroom.turns.coalescing import Batch
from mindroom.turns.ingress import PreparedIngress
from mindroom.turns.normalizer import spoken_text
from mindroom.turns.threads import answer_target
from mindroom.turnstore.record import TurnRecord
from mindroom.turnstore.store import TurnStore


@dataclass(frozen=True, slots=True)
class IntentBuilder:
    """Intents of one principal."""

    turns: TurnStore
    projection: MessageProjection

    async def build(self, batch: Batch) -> ResponseIntent:
        """The intent of a batch. Raises CorruptState when its open turn has no rows, and DependencyError while what a
        source says is being restored (A4)."""
        anchor = batch.anchor.ingress
        sources = [await self._source(decided.ingress) for decided in batch.sources]
        if batch.open_turn is not None:
            sources = await self._of_turn(await self.turns.require(batch.open_turn), sources)
        return ResponseIntent(
            target=answer_target(anchor.conversation, anchor=sources[-1].event_id),
            requester=anchor.requester,
            reason=batch.anchor.reason,
            epoch=anchor.epoch,
            sources=tuple(sources),
            turn=batch.open_turn,
        )

    async def _of_turn(self, turn: TurnRecord, at_hand: list[IntentSource]) -> list[IntentSource]:
        """All sources of the turn, then what joins it; those not handed out yet are read from the projection."""
        known = {source.event_id: source for source in at_hand}
        found: list[IntentSource] = []
        for held in turn.sources:
            if held.event_id in known:
                found.append(known[held.event_id])
                continue
            message = await self.projection.message(turn.target.room, held.event_id)
            text = _revised(message)
            if message is not None and text:
                found.append(
                    IntentSource(held.event_id, held.receipt, held.order_key, message.sender, text, message.origin_ts)
                )
        own = set(turn.events)
        joining = [source for source in at_hand if source.event_id not in own]
        return [*found, *joining[: MAX_SOURCES - len(found)]]

    async def _source(self, ingress: PreparedIngress) -> IntentSource:
        """A source that was edited while it waited is answered as it reads now."""
        message = await self.projection.message(ingress.conversation.room, ingress.event_id)
        return IntentSource(
            ingress.event_id,
            ingress.receipt,
            ingress.order_key,
            ingress.sender,
            _revised(message) or ingress.text,
            ingress.origin_ts,
        )


def _revised(message: VisibleMessage | None) -> str:
    if message is not None and message.is_withheld:
        raise DependencyError("what a source says without its redacted edit is not known yet")
    if message is None or message.content is None:
        return ""
    relates_to = {"m.relates_to": message.relates_to or {}}
    is_reply = replied_event(relates_to) is not None and not is_fallback_reply(relates_to)
    return spoken_text(message.content | relates_to, is_reply=is_reply)

"""From a batch to what a run needs. A batch that an open turn holds gets all sources of that turn (D2)."""

from dataclasses import dataclass

from mindroom.journal.projection import MessageProjection
from mindroom.responses.assembly import IntentSource, ResponseIntent
from mindroom.turns.coalescing import Batch
from mindroom.turns.ingress import PreparedIngress
from mindroom.turns.threads import answer_target
from mindroom.turnstore.record import TurnRecord
from mindroom.turnstore.store import TurnStore


@dataclass(frozen=True, slots=True)
class IntentBuilder:
    """Intents of one principal."""

    turns: TurnStore
    projection: MessageProjection

    async def build(self, batch: Batch) -> ResponseIntent:
        """The intent of a batch. Raises CorruptState when its open turn has no rows."""
        anchor = batch.anchor.ingress
        sources = [_source(decided.ingress) for decided in batch.sources]
        if anchor.open_turn is not None:
            sources = await self._of_turn(await self.turns.require(anchor.open_turn), sources)
        return ResponseIntent(
            target=answer_target(anchor.conversation, anchor=sources[-1].event_id),
            requester=anchor.requester,
            reason=batch.anchor.reason,
            epoch=anchor.epoch,
            sources=tuple(sources),
            turn=anchor.open_turn,
        )

    async def _of_turn(self, turn: TurnRecord, at_hand: list[IntentSource]) -> list[IntentSource]:
        """Sources that the feeder has not handed out yet are read from the projection."""
        known = {source.event_id: source for source in at_hand}
        found: list[IntentSource] = []
        for held in turn.sources:
            if held.event_id in known:
                found.append(known[held.event_id])
                continue
            message = await self.projection.message(turn.target.room, held.event_id)
            body = message.content.get("body") if message is not None and message.content is not None else None
            if message is not None and isinstance(body, str):
                found.append(
                    IntentSource(held.event_id, held.receipt, held.order_key, message.sender, body, message.origin_ts)
                )
        return found or at_hand


def _source(ingress: PreparedIngress) -> IntentSource:
    return IntentSource(
        ingress.event_id,
        ingress.receipt,
        ingress.order_key,
        ingress.sender,
        ingress.text,
        ingress.origin_ts,
    )

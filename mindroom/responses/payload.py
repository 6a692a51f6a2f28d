"""ResponsePayloadPreparer: the prompt of a run, from the projection as it stands under the conversation's lock.

Other people's messages come from what was heard, our own answers from what was done, each at the place of its sources:
an answer needs no echo to be remembered (behaviour.md, "Context given to a model").
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from mindroom.core.clock import Clock
from mindroom.core.content import LONG_TEXT_ATTACHED, LONG_TEXT_KEY
from mindroom.core.ids import EventId, UserId
from mindroom.core.ports import EarlierMessages, ModelRequest
from mindroom.core.values import Conversation, OrderKey
from mindroom.journal.projection import CONVERSATION_LIMIT, MessageProjection
from mindroom.journal.records import VisibleMessage
from mindroom.journal.rooms import RoomBook, RoomView
from mindroom.responses.assembly import Responder, ResponseIntent
from mindroom.responses.loop import LoopRequest, RunKey
from mindroom.responses.prompt import AgentFace, Author, PromptEntry, Surroundings, build_prompt
from mindroom.turnstore.record import AnswerRecord
from mindroom.turnstore.store import TurnStore

_Placed = tuple[OrderKey, int, PromptEntry]


def _body(message: VisibleMessage) -> str:
    if message.content is not None and LONG_TEXT_KEY in message.content:
        return LONG_TEXT_ATTACHED
    body = message.content.get("body") if message.content is not None else None
    return body if isinstance(body, str) else ""


@dataclass(frozen=True, slots=True)
class ResponsePayloadPreparer:
    """Prompts of one principal."""

    responder: Responder
    projection: MessageProjection
    turns: TurnStore
    book: RoomBook
    earlier: EarlierMessages
    clock: Clock
    zone: tzinfo | None = None
    """Times are told in this zone; None is the machine's."""

    async def prepare(self, run: RunKey, intent: ResponseIntent) -> LoopRequest:
        """The model request of a run. Raises DatabaseUnavailable."""
        conversation = Conversation(intent.target.room, intent.target.thread)
        if conversation.thread not in {source.event_id for source in intent.sources}:
            await self.earlier.hydrate(conversation)
        messages = await self.projection.conversation(conversation)
        answers = await self.turns.answers(conversation, limit=CONVERSATION_LIMIT)
        view = self.book.view(intent.target.room)
        newest = [
            PromptEntry(Author.OTHER, self._name(view, s.sender), s.text, self._time(s.origin_ts))
            for s in intent.sources
        ]
        prompt = build_prompt(
            AgentFace(self.responder.display_name, self.responder.role),
            history=self._history(view, intent, messages, answers),
            newest=newest,
            surroundings=self._surroundings(view),
        )
        return LoopRequest(run, ModelRequest(self.responder.model, prompt))

    def _history(
        self,
        view: RoomView,
        intent: ResponseIntent,
        messages: Sequence[VisibleMessage],
        answers: Sequence[AnswerRecord],
    ) -> list[PromptEntry]:
        anchor = intent.sources[-1].order_key
        own_turns = {answer.turn_id for answer in answers}
        answering: set[EventId] = {source.event_id for source in intent.sources}
        placed: list[_Placed] = [
            (answer.order_key, 1, PromptEntry(Author.SELF, "", answer.text, answer.closed_at)) for answer in answers
        ]
        for message in messages:
            is_own = message.sender == self.responder.user_id
            if message.event_id in answering or (is_own and message.turn in own_turns):
                continue
            if text := _body(message):
                author = Author.SELF if is_own else Author.OTHER
                entry = PromptEntry(author, self._name(view, message.sender), text, self._time(message.origin_ts))
                placed.append((message.order_key, 0, entry))
        placed.sort(key=lambda item: item[:2])
        return [entry for key, _, entry in placed if key < anchor]

    def _name(self, view: RoomView, user: UserId) -> str:
        return view.display_name(user) or self.responder.hosted_display_names.get(user) or user

    def _time(self, origin_ts: int) -> datetime:
        """A sender's clock is not trusted to be a date at all."""
        try:
            return datetime.fromtimestamp(origin_ts / 1000, UTC).astimezone(self.zone)
        except (ValueError, OverflowError, OSError):
            return self.clock.now().astimezone(self.zone)

    def _surroundings(self, view: RoomView) -> Surroundings:
        name = (view.content("m.room.name") or {}).get("name")
        members = [self._name(view, user) for user, state in view.members().items() if state == "join"]
        return Surroundings(
            local_time=self.clock.now().astimezone(self.zone),
            room_name=name if isinstance(name, str) else "",
            members=members,
        )

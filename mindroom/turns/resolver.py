"""ConversationResolver: looks up what normalizer and policy need to know, and nothing else. Reads only."""

from collections.abc import Mapping
from dataclasses import dataclass

from mindroom.config.schema import Answers
from mindroom.core.content import identifier, is_fallback_reply, replied_event, thread_root
from mindroom.core.ids import RoomId, UserId
from mindroom.core.ports import EarlierMessages
from mindroom.core.values import Membership
from mindroom.journal.projection import MessageProjection
from mindroom.journal.records import Hearer, PendingSource
from mindroom.journal.rooms import RoomBook, RoomView
from mindroom.turns.ingress import PreparedIngress
from mindroom.turns.snapshot import (
    Authorization,
    ConversationSnapshot,
    Responder,
    SenderKind,
    ThreadActivity,
)
from mindroom.turns.threads import RepliedMessage


@dataclass(frozen=True, slots=True)
class ConversationResolver:
    """Snapshots of conversations as one principal sees them."""

    hearer: Hearer
    answers: Mapping[UserId, Answers]
    """How each hosted principal answers."""
    configured_rooms: set[RoomId]
    """Rooms listed under `rooms:`; filled while rooms are provisioned."""
    projection: MessageProjection
    book: RoomBook
    earlier: EarlierMessages

    async def replied(self, source: PendingSource) -> RepliedMessage | None:
        """The message a source replies to, asked for where it was never heard; thread fallback replies name nobody."""
        content = source.source.get("content")
        if not isinstance(content, Mapping) or is_fallback_reply(content):
            return None
        target = replied_event(content)
        if target is None:
            return None
        message = await self.projection.message(source.room, target)
        if message is not None:
            return RepliedMessage(message.sender, message.thread or None)
        event = await self.earlier.event(source.room, target)
        said = event.get("content") if event is not None else None
        if event is None or not isinstance(said, Mapping) or not (sender := identifier(event.get("sender"))):
            return None
        return RepliedMessage(UserId(sender), thread_root(said))

    async def snapshot(self, ingress: PreparedIngress) -> ConversationSnapshot:
        """Everything policy may know, at this moment."""
        room = ingress.conversation.room
        view = self.book.view(room)
        membership = view.membership
        members = view.members()
        joined = membership.joined_count if membership else None
        invited = membership.invited_count if membership else None
        return ConversationSnapshot(
            principal=self.hearer.user_id,
            sender=self._sender_kind(ingress.sender),
            responders=self._responders(ingress, view),
            joined_count=_counted(joined, members, "join"),
            invited_count=_counted(invited, members, "invite"),
            is_direct=membership.is_direct if membership else False,
            is_configured=room in self.configured_rooms,
            thread=await self._activity(ingress),
            is_encrypted=view.is_encrypted,
        )

    def _sender_kind(self, sender: UserId) -> SenderKind:
        if sender == self.hearer.user_id:
            return SenderKind.SELF
        return SenderKind.HOSTED if sender in self.hearer.hosted else SenderKind.HUMAN

    def _responders(self, ingress: PreparedIngress, view: RoomView) -> tuple[Responder, ...]:
        members = view.members()
        allowed = ingress.requester in self.hearer.authorized
        authorization = Authorization.ALLOWED if allowed else Authorization.DENIED
        standing: dict[UserId, Membership] = {}
        for user in self.hearer.hosted:
            said = members.get(user)
            if said in (Membership.JOIN.value, Membership.INVITE.value):
                standing[user] = Membership(said)
        standing[self.hearer.user_id] = Membership.JOIN
        return tuple(
            Responder(user, self.answers[user], membership, authorization)
            for user, membership in sorted(standing.items())
        )

    async def _activity(self, ingress: PreparedIngress) -> ThreadActivity | None:
        if ingress.conversation.thread == ingress.event_id or ingress.conversation.thread is None:
            return ThreadActivity(humans=frozenset({ingress.sender}))
        if not await self.earlier.hydrate(ingress.conversation):
            return None
        speakers = await self.projection.participants(ingress.conversation)
        hosted = [user for user in reversed(speakers) if user in self.hearer.hosted]
        humans = frozenset(user for user in speakers if user not in self.hearer.hosted)
        return ThreadActivity(answered=tuple(hosted), humans=humans)


def _counted(stated: int | None, members: Mapping[UserId, str], membership: str) -> int | None:
    """The room's own count, else ours over the members we know; nobody known means unknown."""
    if stated is not None:
        return stated
    return sum(state == membership for state in members.values()) if members else None

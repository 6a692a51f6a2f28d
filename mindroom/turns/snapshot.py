"""Everything policy may know about a room when it decides on one source.

Plain values; gathered by the resolver, never changed afterwards. Policy sees nothing else, so a stored snapshot gives
the stored verdict again (D1).
"""

from dataclasses import dataclass
from enum import StrEnum

from mindroom.config import Answers
from mindroom.core.ids import UserId
from mindroom.core.values import Membership


class Authorization(StrEnum):
    """May the requester talk to this principal? Denied unless shown otherwise (I1)."""

    ALLOWED = "allowed"
    DENIED = "denied"


class SenderKind(StrEnum):
    """Who the physical sender is."""

    SELF = "self"
    HOSTED = "hosted"
    HUMAN = "human"


@dataclass(frozen=True, slots=True)
class Responder:
    """A hosted principal of the room, joined or invited."""

    user_id: UserId
    answers: Answers
    membership: Membership
    authorization: Authorization


@dataclass(frozen=True, slots=True)
class ThreadActivity:
    """Who has spoken in the thread of the source so far."""

    answered: tuple[UserId, ...] = ()
    """Hosted principals that answered in it, the last answerer last."""
    humans: frozenset[UserId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationSnapshot:
    """One principal's view of the room at the moment of the decision."""

    principal: UserId
    sender: SenderKind
    responders: tuple[Responder, ...]
    """All hosted members of the room, this principal included."""
    joined_count: int | None
    invited_count: int | None
    """Members by the room's own counts, hosted ones included; None while unknown."""
    is_direct: bool
    """Our invite said so."""
    is_configured: bool
    """The room is listed under `rooms:` and so never a DM."""
    thread: ThreadActivity | None
    """None: the thread's history is unavailable, so nobody may be taken for its last answerer."""
    is_encrypted: bool = False
    """Nothing can be said there (E10), not even to somebody who writes in plain."""

    @property
    def humans(self) -> int | None:
        """Members that we do not host, joined or invited; None while the counts are unknown."""
        if self.joined_count is None or self.invited_count is None:
            return None
        present = (Membership.JOIN, Membership.INVITE)
        ours = sum(responder.membership in present for responder in self.responders)
        return self.joined_count + self.invited_count - ours

    @property
    def is_dm(self) -> bool:
        """One human, or a direct invite without a second one; a configured room never is."""
        if self.is_configured:
            return False
        return self.humans == 1 or (self.is_direct and (self.humans is None or self.humans < 1))

    @property
    def answerers(self) -> tuple[Responder, ...]:
        """Responders that are joined and that the requester may talk to."""
        return tuple(
            responder
            for responder in self.responders
            if responder.membership is Membership.JOIN and responder.authorization is Authorization.ALLOWED
        )

"""Who answers: one source and one snapshot give one verdict.

Pure and total (D1). Every principal of a room decides for itself; the rules are such that all of them together give one
answer to an unaddressed message at most, and one of each principal that is mentioned. docs/concepts/who-answers.md
shows them as a table.
"""

from mindroom.config import Answers
from mindroom.core.ids import UserId
from mindroom.core.values import Action, Reason, Verdict
from mindroom.turns.ingress import PreparedIngress
from mindroom.turns.snapshot import ConversationSnapshot, SenderKind


def _addressed(ingress: PreparedIngress, me: UserId) -> Reason | None:
    """Rule 1: an addressed message is for those it addresses. Naming oneself addresses nobody."""
    mentioned = ingress.addressed.mentioned - {ingress.sender}
    if me in mentioned:
        return Reason.MENTION
    if mentioned:
        return Reason.OTHER_MENTIONED
    author = ingress.addressed.replied_author
    if author is None:
        return None
    return Reason.REPLY if author == me else Reason.OTHER_MENTIONED


def _in_thread(ingress: PreparedIngress, snapshot: ConversationSnapshot, candidates: list[UserId]) -> Reason | None:
    """Two humans talk among themselves; with one, the candidate that answered last goes on."""
    if ingress.conversation.thread is None or snapshot.thread is None:
        return None
    if len(snapshot.thread.humans | {ingress.sender}) > 1:
        return Reason.NOT_ADDRESSED
    answered = [user_id for user_id in snapshot.thread.answered if user_id in candidates]
    if not answered:
        return None
    return Reason.THREAD if answered[-1] == snapshot.principal else Reason.NOT_ADDRESSED


def _among_candidates(ingress: PreparedIngress, snapshot: ConversationSnapshot, candidates: list[UserId]) -> Reason:
    """Rules 2, 3 and 5. In a DM the lowest user id speaks for several; without history nobody guesses (rule 9)."""
    if snapshot.principal not in candidates:
        return Reason.NOT_ADDRESSED
    if len(candidates) == 1:
        return Reason.DM if snapshot.is_dm else Reason.SOLE
    guessing = ingress.conversation.thread is not None and snapshot.thread is None
    if guessing or not snapshot.is_dm:
        return Reason.SEVERAL_CANDIDATES
    return Reason.DM if min(candidates) == snapshot.principal else Reason.SEVERAL_CANDIDATES


def _reason(ingress: PreparedIngress, snapshot: ConversationSnapshot) -> Reason:
    if snapshot.sender is not SenderKind.HUMAN:
        return Reason.OWN
    answerers = snapshot.answerers
    if snapshot.principal not in [responder.user_id for responder in answerers]:
        return Reason.UNAUTHORIZED
    if snapshot.is_encrypted:
        return Reason.ENCRYPTED
    candidates = [responder.user_id for responder in answerers if responder.answers is Answers.AUTO]
    return (
        _addressed(ingress, snapshot.principal)
        or _in_thread(ingress, snapshot, candidates)
        or _among_candidates(ingress, snapshot, candidates)
    )


_RESPONDING = frozenset({Reason.MENTION, Reason.REPLY, Reason.THREAD, Reason.DM, Reason.SOLE})


class TurnPolicy:
    """Decides on sources that are prompts."""

    def decide(self, ingress: PreparedIngress, snapshot: ConversationSnapshot) -> Verdict:
        """The verdict of `snapshot.principal`; the same input always gives the same one (D1)."""
        reason = _reason(ingress, snapshot)
        return Verdict(Action.RESPOND if reason in _RESPONDING else Action.IGNORE, reason)

"""Who answers, as one table of cases. docs/concepts/who-answers.md shows the same table.

The cases are seen by `@me`; a second hosted agent is `@other`. Run this file with Python to print the table.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from mindroom.config import Answers
from mindroom.core.ids import Epoch, EventId, Receipt, RoomId, UserId
from mindroom.core.mentions import Addressed
from mindroom.core.values import Action, Conversation, EventClass, EventKind, Membership, OrderKey, Reason
from mindroom.turns.ingress import PreparedIngress
from mindroom.turns.policy import TurnPolicy
from mindroom.turns.snapshot import (
    Authorization,
    ConversationSnapshot,
    Responder,
    SenderKind,
    ThreadActivity,
)

ME, OTHER = UserId("@me:x"), UserId("@other:x")
FIRST = UserId("@first:x")
"""An agent whose user id sorts before `@me`."""
ALICE, BOB = UserId("@alice:x"), UserId("@bob:x")

DOC = Path(__file__).parents[2] / "docs" / "concepts" / "who-answers.md"
BEGIN, END = "<!-- decision table: begin -->\n", "<!-- decision table: end -->\n"


def message(*, addressed: Addressed = Addressed(), thread: str | None = "$root") -> PreparedIngress:
    return PreparedIngress(
        receipt=Receipt(1),
        order_key=OrderKey(1),
        event_id=EventId("$source"),
        epoch=Epoch(1),
        conversation=Conversation(RoomId("!room:x"), EventId(thread) if thread else None),
        sender=ALICE,
        requester=ALICE,
        kind=EventKind.MESSAGE,
        event_class=EventClass.LIVE,
        origin_ts=0,
        text="x",
        addressed=addressed,
        replied_to=None,
        open_turn=None,
    )


def naming(*users: UserId) -> PreparedIngress:
    return message(addressed=Addressed(frozenset(users)))


def replying_to(author: UserId) -> PreparedIngress:
    return message(addressed=Addressed(replied_author=author))


def agent(user_id: UserId) -> Responder:
    return Responder(user_id, Answers.AUTO, Membership.JOIN, Authorization.ALLOWED)


def mentioned_only(user_id: UserId) -> Responder:
    return replace(agent(user_id), answers=Answers.MENTIONED)


def refused(user_id: UserId) -> Responder:
    return replace(agent(user_id), authorization=Authorization.DENIED)


def absent(user_id: UserId) -> Responder:
    return replace(agent(user_id), membership=Membership.LEAVE)


def room(*responders: Responder, humans: int | None = 2, thread: ThreadActivity | None = None) -> ConversationSnapshot:
    """A room with an untouched thread unless told otherwise."""
    return ConversationSnapshot(
        principal=ME,
        sender=SenderKind.HUMAN,
        responders=responders,
        joined_count=None if humans is None else humans + sum(r.membership is Membership.JOIN for r in responders),
        invited_count=0,
        is_direct=False,
        is_configured=False,
        thread=thread or ThreadActivity(),
    )


def answered(*users: UserId, humans: tuple[UserId, ...] = (ALICE,)) -> ThreadActivity:
    return ThreadActivity(users, frozenset(humans))


@dataclass(frozen=True)
class Case:
    situation: str
    ingress: PreparedIngress
    snapshot: ConversationSnapshot
    reason: Reason

    @property
    def action(self) -> Action:
        return Action.RESPOND if self.reason in RESPONDING else Action.IGNORE


RESPONDING = {Reason.MENTION, Reason.REPLY, Reason.THREAD, Reason.DM, Reason.SOLE}
BOTH = room(agent(ME), agent(OTHER))
ALONE = room(agent(ME))
DM_BOTH = room(agent(ME), agent(OTHER), humans=1)

CASES = [
    Case("I sent it myself", naming(ME), replace(ALONE, sender=SenderKind.SELF), Reason.OWN),
    Case("another hosted agent sent it", naming(ME), replace(ALONE, sender=SenderKind.HOSTED), Reason.OWN),
    Case("the sender may not talk to me", naming(ME), room(refused(ME)), Reason.UNAUTHORIZED),
    Case("I am no longer in the room", naming(ME), room(absent(ME)), Reason.UNAUTHORIZED),
    Case(
        "it mentions me in plain in an encrypted room", naming(ME), replace(ALONE, is_encrypted=True), Reason.ENCRYPTED
    ),
    Case("it mentions me", naming(ME), BOTH, Reason.MENTION),
    Case("it mentions me and others", naming(ME, OTHER, BOB), BOTH, Reason.MENTION),
    Case("it mentions me, and I answer only mentions", naming(ME), room(mentioned_only(ME)), Reason.MENTION),
    Case(
        "it mentions me in a thread of two humans",
        naming(ME),
        room(agent(ME), thread=answered(humans=(ALICE, BOB))),
        Reason.MENTION,
    ),
    Case("it mentions another agent", naming(OTHER), BOTH, Reason.OTHER_MENTIONED),
    Case("it mentions a human, and I am alone", naming(BOB), ALONE, Reason.OTHER_MENTIONED),
    Case(
        "it mentions another agent in a thread that I answer",
        naming(OTHER),
        replace(BOTH, thread=answered(ME)),
        Reason.OTHER_MENTIONED,
    ),
    Case("it mentions its sender only, and I am alone", naming(ALICE), ALONE, Reason.SOLE),
    Case("it replies to me without a mention", replying_to(ME), BOTH, Reason.REPLY),
    Case("it replies to another agent without a mention", replying_to(OTHER), BOTH, Reason.OTHER_MENTIONED),
    Case("thread: I answered last", message(), replace(BOTH, thread=answered(OTHER, ME)), Reason.THREAD),
    Case(
        "thread: another agent answered last",
        message(),
        replace(BOTH, thread=answered(ME, OTHER)),
        Reason.NOT_ADDRESSED,
    ),
    Case(
        "thread: who answered last has left, I answered before",
        message(),
        room(agent(ME), absent(OTHER), thread=answered(ME, OTHER)),
        Reason.THREAD,
    ),
    Case(
        "thread: who answered last may not talk to this sender, I am the other one",
        message(),
        room(agent(ME), refused(OTHER), thread=answered(OTHER)),
        Reason.SOLE,
    ),
    Case(
        "thread: I answered last, and two humans speak in it",
        message(),
        room(agent(ME), thread=answered(ME, humans=(ALICE, BOB))),
        Reason.NOT_ADDRESSED,
    ),
    Case(
        "thread: I answered another human, now this sender joins in",
        message(),
        room(agent(ME), thread=answered(ME, humans=(BOB,))),
        Reason.NOT_ADDRESSED,
    ),
    Case(
        "thread: I answered last, and I answer only mentions",
        message(),
        room(mentioned_only(ME), thread=answered(ME)),
        Reason.NOT_ADDRESSED,
    ),
    Case("thread: its history is unavailable, I am alone", message(), replace(ALONE, thread=None), Reason.SOLE),
    Case(
        "thread: its history is unavailable, several candidates",
        message(),
        replace(BOTH, thread=None),
        Reason.SEVERAL_CANDIDATES,
    ),
    Case(
        "room mode: I answered before, and two humans speak",
        message(thread=None),
        room(agent(ME), thread=answered(ME, humans=(ALICE, BOB))),
        Reason.SOLE,
    ),
    Case("DM: one human and I", message(), room(agent(ME), humans=1), Reason.DM),
    Case(
        "DM: we were invited as direct, the counts are unknown",
        message(),
        replace(room(agent(ME), humans=None), is_direct=True),
        Reason.DM,
    ),
    Case("DM: a second human came, I am alone", message(), replace(ALONE, is_direct=True), Reason.SOLE),
    Case("DM: several candidates, mine is the lowest user id", message(), DM_BOTH, Reason.DM),
    Case(
        "DM: several candidates, another has the lowest user id",
        message(),
        room(agent(ME), agent(FIRST), humans=1),
        Reason.SEVERAL_CANDIDATES,
    ),
    Case(
        "DM: several candidates, its history is unavailable",
        message(),
        replace(DM_BOTH, thread=None),
        Reason.SEVERAL_CANDIDATES,
    ),
    Case("DM: I answer only mentions", message(), room(mentioned_only(ME), humans=1), Reason.NOT_ADDRESSED),
    Case(
        "one human and I, but the room is listed under `rooms:`",
        message(),
        replace(room(agent(ME), humans=1), is_configured=True),
        Reason.SOLE,
    ),
    Case("I am the only candidate", message(), ALONE, Reason.SOLE),
    Case("the other agent answers only mentions", message(), room(agent(ME), mentioned_only(OTHER)), Reason.SOLE),
    Case("the sender may not talk to the other agent", message(), room(agent(ME), refused(OTHER)), Reason.SOLE),
    Case("the other agent is not joined", message(), room(agent(ME), absent(OTHER)), Reason.SOLE),
    Case("several candidates", message(), BOTH, Reason.SEVERAL_CANDIDATES),
    Case("I answer only mentions", message(), room(mentioned_only(ME)), Reason.NOT_ADDRESSED),
    Case(
        "I answer only mentions, another agent is the only candidate",
        message(),
        room(mentioned_only(ME), agent(OTHER)),
        Reason.NOT_ADDRESSED,
    ),
]


def table() -> str:
    rows = [f"| {case.situation} | {case.action.value} | `{case.reason.value}` |\n" for case in CASES]
    return "".join(["| situation | I | reason |\n", "|---|---|---|\n", *rows])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.situation)
def test_d1_the_verdict_of_each_situation(case: Case) -> None:
    verdict = TurnPolicy().decide(case.ingress, case.snapshot)
    assert (verdict.action, verdict.reason) == (case.action, case.reason)


def test_situations_are_told_apart_by_their_words() -> None:
    assert len({case.situation for case in CASES}) == len(CASES)


def test_a_principal_that_the_room_does_not_list_is_denied() -> None:
    """I1: what is unknown fails closed."""
    assert TurnPolicy().decide(naming(ME), room(agent(OTHER))).reason is Reason.UNAUTHORIZED


def test_the_document_shows_exactly_these_cases() -> None:
    """On failure: run this file and paste its output between the two marks."""
    shown = DOC.read_text().partition(BEGIN)[2].partition(END)[0]
    assert shown == table()


if __name__ == "__main__":
    print(table(), end="")

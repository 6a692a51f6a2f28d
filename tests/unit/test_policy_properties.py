"""Policy over random rooms: total, deterministic, and one answer among all principals (D1)."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from mindroom.config import Answers
from mindroom.core.ids import Epoch, EventId, Receipt, RoomId, UserId
from mindroom.core.mentions import Addressed
from mindroom.core.values import Action, Conversation, EventClass, EventKind, Membership, OrderKey, Reason, Verdict
from mindroom.turns.ingress import PreparedIngress
from mindroom.turns.policy import TurnPolicy
from mindroom.turns.snapshot import (
    Authorization,
    ConversationSnapshot,
    Responder,
    SenderKind,
    ThreadActivity,
)

HOSTED = [UserId(f"@agent{n}:x") for n in range(5)]
HUMANS = [UserId(f"@human{n}:x") for n in range(3)]
counts = st.none() | st.integers(-1, 8)


@st.composite
def rooms(draw: st.DrawFn) -> list[ConversationSnapshot]:
    """The views that all principals of one room have at one moment; each has its own invite."""
    responders = tuple(
        Responder(
            user_id,
            draw(st.sampled_from(Answers)),
            draw(st.sampled_from([Membership.JOIN, Membership.JOIN, Membership.INVITE, Membership.LEAVE])),
            draw(st.sampled_from([Authorization.ALLOWED, Authorization.ALLOWED, Authorization.DENIED])),
        )
        for user_id in draw(st.lists(st.sampled_from(HOSTED), unique=True, min_size=1))
    )
    activity = st.builds(
        ThreadActivity,
        st.lists(st.sampled_from(HOSTED), max_size=4).map(tuple),
        st.frozensets(st.sampled_from(HUMANS), max_size=2),
    )
    view = ConversationSnapshot(
        principal=HOSTED[0],
        sender=draw(st.sampled_from([SenderKind.HUMAN, SenderKind.HUMAN, SenderKind.HOSTED])),
        responders=responders,
        joined_count=draw(counts),
        invited_count=draw(counts),
        is_direct=False,
        is_configured=draw(st.booleans()),
        thread=draw(st.none() | activity),
    )
    return [replace(view, principal=r.user_id, is_direct=draw(st.booleans())) for r in responders]


@st.composite
def messages(draw: st.DrawFn, *, addressed: st.SearchStrategy[Addressed]) -> PreparedIngress:
    sender = draw(st.sampled_from(HUMANS))
    return PreparedIngress(
        receipt=Receipt(1),
        order_key=OrderKey(1),
        event_id=EventId("$source"),
        epoch=Epoch(1),
        conversation=Conversation(RoomId("!room:x"), draw(st.sampled_from([None, EventId("$root")]))),
        sender=sender,
        requester=sender,
        kind=EventKind.MESSAGE,
        event_class=draw(st.sampled_from([EventClass.LIVE, EventClass.RECOVERED])),
        origin_ts=0,
        text="x",
        addressed=draw(addressed),
        replied_to=None,
        open_turn=None,
    )


unaddressed = st.just(Addressed())
mentioning = st.frozensets(st.sampled_from(HOSTED + HUMANS), min_size=1).map(Addressed)
replying = st.sampled_from(HOSTED).map(lambda author: Addressed(replied_author=author))


def verdicts(room: list[ConversationSnapshot], message: PreparedIngress) -> dict[UserId, Verdict]:
    return {view.principal: TurnPolicy().decide(message, view) for view in room}


def responding(room: list[ConversationSnapshot], message: PreparedIngress) -> set[UserId]:
    return {user_id for user_id, verdict in verdicts(room, message).items() if verdict.action is Action.RESPOND}


def able(room: list[ConversationSnapshot]) -> set[UserId]:
    """Principals that may answer this sender at all."""
    if room[0].sender is not SenderKind.HUMAN:
        return set()
    return {responder.user_id for responder in room[0].answerers}


@settings(deadline=None)
@given(room=rooms(), message=messages(addressed=unaddressed | mentioning | replying))
def test_d1_every_snapshot_has_one_verdict_and_always_the_same(
    room: list[ConversationSnapshot], message: PreparedIngress
) -> None:
    first = verdicts(room, message)
    assert first == verdicts([replace(view) for view in room], replace(message))
    for verdict in first.values():
        reasons_to_respond = {Reason.MENTION, Reason.REPLY, Reason.THREAD, Reason.DM, Reason.SOLE}
        assert (verdict.action is Action.RESPOND) == (verdict.reason in reasons_to_respond)


@settings(deadline=None, max_examples=300)
@given(room=rooms(), message=messages(addressed=unaddressed))
def test_an_unaddressed_message_is_answered_by_at_most_one_principal(
    room: list[ConversationSnapshot], message: PreparedIngress
) -> None:
    assert len(responding(room, message)) <= 1


@settings(deadline=None)
@given(room=rooms(), message=messages(addressed=mentioning))
def test_each_mentioned_principal_answers_once_and_nobody_else_does(
    room: list[ConversationSnapshot], message: PreparedIngress
) -> None:
    mentioned = message.addressed.mentioned - {message.sender}
    if mentioned:
        assert responding(room, message) == mentioned & able(room)


@settings(deadline=None)
@given(room=rooms(), message=messages(addressed=replying))
def test_a_reply_is_answered_by_its_author_alone(room: list[ConversationSnapshot], message: PreparedIngress) -> None:
    assert responding(room, message) == {message.addressed.replied_author} & able(room)


@settings(deadline=None)
@given(room=rooms(), message=messages(addressed=unaddressed))
def test_an_agent_that_answers_only_mentions_stays_silent_without_one(
    room: list[ConversationSnapshot], message: PreparedIngress
) -> None:
    quiet = {r.user_id for r in room[0].responders if r.answers is Answers.MENTIONED}
    assert not responding(room, message) & quiet


@settings(deadline=None)
@given(room=rooms(), message=messages(addressed=unaddressed))
def test_a_sole_candidate_answers_unless_humans_talk_among_themselves(
    room: list[ConversationSnapshot], message: PreparedIngress
) -> None:
    auto = {r.user_id for r in room[0].answerers if r.answers is Answers.AUTO} & able(room)
    activity = room[0].thread
    talking = message.conversation.thread and activity and len(activity.humans | {message.sender}) > 1
    if len(auto) == 1 and not talking:
        assert responding(room, message) == auto


@settings(deadline=None)
@given(room=rooms(), message=messages(addressed=unaddressed | mentioning | replying))
def test_r26_agents_never_answer_agents(room: list[ConversationSnapshot], message: PreparedIngress) -> None:
    """R26: bounded by zero until agents may start turns of agents."""
    heard = [replace(view, sender=SenderKind.HOSTED) for view in room]
    assert responding(heard, message) == set()

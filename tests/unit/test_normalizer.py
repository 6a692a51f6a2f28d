"""Raw events become prompts or ignoring verdicts, and get their conversation (rule 8, R21-R24, R41)."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindroom.config import ThreadMode
from mindroom.core.content import relates_to
from mindroom.core.ids import Epoch, EventId, Receipt, RoomId, UserId
from mindroom.core.mentions import Addressed
from mindroom.core.values import (
    Action,
    Conversation,
    EventClass,
    EventKind,
    MessageTarget,
    OrderKey,
    Reason,
    Verdict,
)
from mindroom.journal.records import PendingSource
from mindroom.turns.ingress import PreparedIngress
from mindroom.turns.normalizer import InboundTurnNormalizer, strip_reply_fallback
from mindroom.turns.threads import RepliedMessage, answer_target, conversation_of

ROOM = RoomId("!room:example.org")
SELF = EventId("$source")
HELPER = UserId("@helper:example.org")
ALICE = UserId("@alice:example.org")
BOB = UserId("@bob:example.org")
RECEIPT, KEY, EPOCH = Receipt(7), OrderKey(7), Epoch(1)
NORMALIZER = InboundTurnNormalizer({"helper": HELPER})


def source_of(event: dict[str, Any]) -> PendingSource:
    return PendingSource(
        receipt=RECEIPT,
        order_key=KEY,
        event_id=SELF,
        room=ROOM,
        thread=EventId(""),
        sender=ALICE,
        kind=EventKind.MESSAGE,
        event_class=EventClass.RECOVERED,
        epoch=EPOCH,
        origin_ts=1_700_000_000_000,
        source=event,
    )


def prepare(
    content: object,
    *,
    event_type: str = "m.room.message",
    replied: RepliedMessage | None = None,
    mode: ThreadMode = ThreadMode.THREAD,
    extra: dict[str, Any] | None = None,
) -> PreparedIngress | Verdict:
    event = {"type": event_type, "content": content, **(extra or {})}
    return NORMALIZER.prepare(source_of(event), mode=mode, replied=replied)


def prompt(content: object, **options: Any) -> PreparedIngress:
    prepared = prepare(content, **options)
    assert isinstance(prepared, PreparedIngress)
    return prepared


def ignored(content: object, **options: Any) -> Reason:
    verdict = prepare(content, **options)
    assert isinstance(verdict, Verdict)
    assert verdict.action is Action.IGNORE
    return verdict.reason


def reply_to(event: str, **more: Any) -> dict[str, Any]:
    return {"m.relates_to": {"m.in_reply_to": {"event_id": event}, **more}}


# ---- what is a prompt ------------------------------------------------------------------------------------------------
def test_a_text_becomes_an_ingress_with_everything_the_turn_needs() -> None:
    assert prompt({"msgtype": "m.text", "body": " hi @helper \n"}) == PreparedIngress(
        receipt=RECEIPT,
        order_key=KEY,
        event_id=SELF,
        epoch=EPOCH,
        conversation=Conversation(ROOM, SELF),
        sender=ALICE,
        requester=ALICE,
        kind=EventKind.MESSAGE,
        event_class=EventClass.RECOVERED,
        origin_ts=1_700_000_000_000,
        text="hi @helper",
        addressed=Addressed(frozenset({HELPER})),
        replied_to=None,
        open_turn=None,
    )


def test_an_emote_is_a_prompt() -> None:
    assert prompt({"msgtype": "m.emote", "body": "waves"}).text == "waves"


@pytest.mark.parametrize("msgtype", ["m.image", "m.file", "m.audio", "m.video"])
def test_the_text_of_media_is_its_caption(msgtype: str) -> None:
    media = prompt({"msgtype": msgtype, "body": "what is this?", "filename": "cat.png"})
    assert (media.text, media.kind) == ("what is this?", EventKind.MEDIA)
    assert ignored({"msgtype": msgtype, "body": "cat.png", "filename": "cat.png"}) is Reason.EMPTY
    assert ignored({"msgtype": msgtype, "body": "@helper.png"}) is Reason.EMPTY
    assert ignored({"msgtype": msgtype, "body": "cat.png", "filename": 5}) is Reason.EMPTY


def test_a_notice_never_starts_a_turn() -> None:
    """R26: two agents that speak in notices stay silent."""
    assert ignored({"msgtype": "m.notice", "body": "@helper hi"}) is Reason.NOTICE


@pytest.mark.parametrize("body", ["", " \n\t", "\n"])
def test_a_message_without_text_is_empty(body: str) -> None:
    assert ignored({"msgtype": "m.text", "body": body}) is Reason.EMPTY


@pytest.mark.parametrize(
    "content",
    [
        {"msgtype": "m.key.verification.request", "body": "verify"},
        {"msgtype": "m.server_notice", "body": "quota"},
        {"msgtype": "m.location", "body": "here"},
        {"msgtype": "org.example.custom", "body": "x"},
        {"body": "no msgtype"},
        {"msgtype": "m.text"},
        {"msgtype": "m.text", "body": 5},
        {"msgtype": ["m.text"], "body": "x"},
        {"msgtype": {"a": 1}, "body": "x"},
        {},
        None,
        "text",
        [1],
    ],
)
def test_everything_else_is_unsupported(content: object) -> None:
    """R41."""
    assert ignored(content) is Reason.UNSUPPORTED


def test_other_event_types_are_no_prompts() -> None:
    text = {"msgtype": "m.text", "body": "x"}
    assert ignored(text, event_type="m.reaction") is Reason.UNSUPPORTED
    assert ignored(text, extra={"state_key": ""}) is Reason.UNSUPPORTED
    assert ignored({"algorithm": "m.megolm.v1.aes-sha2"}, event_type="m.room.encrypted") is Reason.ENCRYPTED


def test_an_edit_with_asterisk_fallback_is_no_second_prompt() -> None:
    """R21, A10."""
    edit = {
        "msgtype": "m.text",
        "body": "* better",
        "m.new_content": {"msgtype": "m.text", "body": "better"},
        "m.relates_to": {"rel_type": "m.replace", "event_id": "$old"},
    }
    assert ignored(edit) is Reason.UNSUPPORTED


# ---- replies ---------------------------------------------------------------------------------------------------------
def test_the_fallback_quote_of_a_reply_is_stripped() -> None:
    content = {"msgtype": "m.text", "body": f"> <{BOB}> @helper said\n> more\n\nreally?", **reply_to("$old")}
    replied = prompt(content, replied=RepliedMessage(BOB, None))
    assert (replied.text, replied.replied_to, replied.addressed) == ("really?", EventId("$old"), Addressed())


def test_a_quote_outside_of_a_reply_is_the_senders_own() -> None:
    assert prompt({"msgtype": "m.text", "body": "> quote\nwhat?"}).text == "> quote\nwhat?"
    threaded = reply_to("$m", rel_type="m.thread", event_id="$root", is_falling_back=True)
    in_thread = prompt({"msgtype": "m.text", "body": "> quote\nwhat?", **threaded})
    assert (in_thread.text, in_thread.replied_to) == ("> quote\nwhat?", None)


def test_a_later_quote_of_a_reply_stays() -> None:
    assert strip_reply_fallback("> a\n>\n\nb\n> c") == "\nb\n> c"


def test_a_reply_that_only_quotes_is_empty() -> None:
    assert ignored({"msgtype": "m.text", "body": "> <@b:c> x", **reply_to("$old")}) is Reason.EMPTY


def test_a_reply_to_a_hosted_message_addresses_its_author() -> None:
    content = {"msgtype": "m.text", "body": "go on", **reply_to("$old")}
    assert prompt(content, replied=RepliedMessage(HELPER, None)).addressed == Addressed(replied_author=HELPER)


# ---- where the answer goes -------------------------------------------------------------------------------------------
def thread_of(content: dict[str, Any], *, replied: RepliedMessage | None = None) -> EventId | None:
    return conversation_of(content, room=ROOM, event_id=SELF, replied=replied, mode=ThreadMode.THREAD).thread


THREAD = {"m.relates_to": {"rel_type": "m.thread", "event_id": "$root"}}


def test_a_top_level_message_is_the_root_of_its_own_thread() -> None:
    """R17: two of them are two conversations."""
    assert thread_of({}) == SELF


def test_a_message_in_a_thread_stays_in_it() -> None:
    """R22."""
    assert thread_of(THREAD, replied=RepliedMessage(BOB, EventId("$other"))) == "$root"


def test_a_plain_reply_inherits_the_thread_of_the_message_replied_to() -> None:
    assert thread_of(reply_to("$m"), replied=RepliedMessage(HELPER, EventId("$root"))) == "$root"


def test_a_plain_reply_to_the_main_timeline_is_its_own_root() -> None:
    assert thread_of(reply_to("$m"), replied=RepliedMessage(HELPER, None)) == SELF
    assert thread_of(reply_to("$m")) == SELF


def test_a_source_with_another_relation_is_rooted_at_its_target() -> None:
    """A homeserver refuses a root that has a rel_type itself."""
    assert thread_of({"m.relates_to": {"rel_type": "m.reference", "event_id": "$poll"}}) == "$poll"


@pytest.mark.parametrize(
    "rel",
    [
        {"rel_type": "m.thread", "event_id": SELF},
        {"rel_type": "m.reference", "event_id": SELF},
        {"rel_type": "m.thread", "event_id": 5},
        {"rel_type": "m.thread"},
        {"rel_type": "m.thread", "event_id": ""},
        {"rel_type": "m.thread", "event_id": "$" + "x" * 5_000},
        {"rel_type": "m.thread", "event_id": "not an event"},
        {"rel_type": ["m.thread"], "event_id": "$root"},
        {"event_id": "$root"},
        "m.thread",
        [],
        None,
    ],
)
def test_a_relation_to_itself_or_to_nonsense_is_not_trusted(rel: object) -> None:
    """R41."""
    assert thread_of({"m.relates_to": rel}) == SELF


def test_in_room_mode_the_room_is_one_conversation_and_answers_quote_nothing() -> None:
    """R23."""
    conversation = prompt({"msgtype": "m.text", "body": "x", **THREAD}, mode=ThreadMode.ROOM).conversation
    assert conversation == Conversation(ROOM, None)
    target = answer_target(conversation, anchor=SELF)
    assert target == MessageTarget(ROOM, None, None)
    assert relates_to(target) is None


def test_in_thread_mode_the_answer_falls_back_to_a_reply_to_its_anchor() -> None:
    target = answer_target(Conversation(ROOM, EventId("$root")), anchor=SELF)
    assert target == MessageTarget(ROOM, EventId("$root"), SELF)


# ---- anything --------------------------------------------------------------------------------------------------------
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=20)
    | st.sampled_from(
        ["m.text", "m.image", "m.thread", "m.replace", SELF, "$x", "@helper", "> q\nx", "\x00", "\ud800"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["event_id", "rel_type", "m.in_reply_to", "is_falling_back", "user_ids", "room"]), inner
        )
    ),
    max_leaves=8,
)
KEYS = ["msgtype", "body", "formatted_body", "filename", "m.relates_to", "m.mentions", "m.new_content"]


@settings(deadline=None)
@given(
    content=st.dictionaries(st.sampled_from(KEYS), JSON) | JSON,
    event_type=st.sampled_from(["m.room.message", "m.room.encrypted"]) | JSON,
    replied=st.sampled_from([None, RepliedMessage(HELPER, None), RepliedMessage(BOB, EventId("$root"))]),
    mode=st.sampled_from(ThreadMode),
)
def test_any_json_gives_an_ingress_or_an_ignoring_verdict(
    content: object, event_type: Any, replied: RepliedMessage | None, mode: ThreadMode
) -> None:
    """R41."""
    prepared = prepare(content, event_type=event_type, replied=replied, mode=mode)
    if isinstance(prepared, Verdict):
        assert prepared.action is Action.IGNORE
    else:
        assert prepared.text == prepared.text.strip() != ""
        assert (prepared.conversation.thread is None) == (mode is ThreadMode.ROOM)

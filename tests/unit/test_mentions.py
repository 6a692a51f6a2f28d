"""Whom an incoming message addresses: rule 1 of "Who answers"."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindroom.core.ids import UserId
from mindroom.core.mentions import Addressed, addressed, pill_target

HELPER = UserId("@mindroom_helper:example.org")
WRITER = UserId("@mindroom_writer:example.org")
CODER = UserId("@coder:example.org")
ALICE = UserId("@alice:example.org")
HOSTED = {"helper": HELPER, "writer": WRITER, "coder": CODER}


def read(content: dict[str, Any], *, text: str | None = None, replied_to: UserId | None = None) -> Addressed:
    body = content.get("body", "") if text is None else text
    return addressed(content, text=body, hosted=HOSTED, replied_to=replied_to)


def naming(*users: UserId) -> Addressed:
    return Addressed(frozenset(users))


def pill(user_id: str, label: str = "Someone") -> str:
    return f'<a href="https://matrix.to/#/{user_id}">{label}</a>'


def test_m_mentions_decides_when_present() -> None:
    content = {"body": f"@writer {WRITER}", "formatted_body": pill(WRITER), "m.mentions": {"user_ids": [HELPER]}}
    assert read(content) == naming(HELPER)


def test_an_empty_m_mentions_decides_too_so_a_pasted_name_is_no_mention() -> None:
    content = {"body": "https://a.b/@helper @helper", "formatted_body": pill(HELPER), "m.mentions": {}}
    assert read(content) == Addressed()
    assert read(content, replied_to=HELPER) == Addressed()


def test_room_true_addresses_nobody() -> None:
    assert read({"body": "@room hi", "m.mentions": {"room": True}}) == Addressed()


def test_a_pill_is_recognized_by_its_link_target_whatever_its_label() -> None:
    """R24."""
    assert read({"body": "Writer hi", "formatted_body": pill(HELPER, "@writer") + " hi"}) == naming(HELPER)


@pytest.mark.parametrize(
    "link",
    [
        f"https://matrix.to/#/{HELPER}",
        f"http://matrix.to/#/{HELPER}?via=example.org",
        "https://matrix.to/#/%40mindroom_helper%3Aexample.org",
        "matrix:u/mindroom_helper:example.org?action=chat",
    ],
)
def test_every_form_of_a_user_link_is_a_pill(link: str) -> None:
    assert pill_target(link) == HELPER
    assert read({"body": "x", "formatted_body": f"<p><a class='q' href='{link}'>x</a></p>"}) == naming(HELPER)


@pytest.mark.parametrize(
    "link", ["https://matrix.to/#/!room:a.b", "https://matrix.to/#/@nocolon", "https://a.b/#/@x:y", "javascript:1", ""]
)
def test_other_links_are_no_pills(link: str) -> None:
    assert pill_target(link) is None


@pytest.mark.parametrize("tag", ["mx-reply", "code", "pre"])
def test_a_pill_inside_reply_fallback_or_code_does_not_count(tag: str) -> None:
    html = f"<{tag}><blockquote>{pill(WRITER)}</blockquote></{tag}>{pill(HELPER)}"
    assert read({"body": "x", "formatted_body": html}) == naming(HELPER)


def test_full_user_ids_come_before_names() -> None:
    assert read({"body": f"{ALICE}: ask @helper"}) == naming(ALICE)
    assert read({"body": f"({HELPER}), {WRITER}."}) == naming(HELPER, WRITER)


@pytest.mark.parametrize("body", ["@helper", "hi @HELPER!", "@helper: go", "@Helper, go", "(@helper)", "so, @helper."])
def test_the_name_of_a_hosted_principal_is_a_mention_as_a_word(body: str) -> None:
    assert read({"body": body}) == naming(HELPER)


@pytest.mark.parametrize(
    "body", ["helper", "@helpers", "me@helper", "@helper.org", "@alice", "https://a.b/@helper", "@"]
)
def test_what_only_looks_like_a_name_is_no_mention(body: str) -> None:
    assert read({"body": body}) == Addressed()


def test_a_reply_without_m_mentions_addresses_the_hosted_author() -> None:
    assert read({"body": "and then?"}, replied_to=HELPER) == Addressed(replied_author=HELPER)
    assert read({"body": "and then?"}, replied_to=ALICE) == Addressed()


def test_a_mention_outranks_the_reply() -> None:
    assert read({"body": "@writer and you?"}, replied_to=HELPER) == naming(WRITER)


def test_the_fallback_reply_of_a_thread_message_addresses_nobody() -> None:
    rel = {"rel_type": "m.thread", "event_id": "$r", "is_falling_back": True, "m.in_reply_to": {"event_id": "$m"}}
    assert read({"body": "more", "m.relates_to": rel}, replied_to=HELPER) == Addressed()


def test_of_several_agents_the_author_replied_to_counts_only_when_named_as_well() -> None:
    both = {"m.mentions": {"user_ids": [HELPER, WRITER]}}
    assert read({"body": "Writer: go", "formatted_body": pill(WRITER), **both}, replied_to=HELPER) == naming(WRITER)
    named = pill(WRITER) + pill(HELPER)
    assert read({"body": "x", "formatted_body": named, **both}, replied_to=HELPER) == naming(HELPER, WRITER)
    assert read({"body": "@writer @helper"} | both, replied_to=HELPER) == naming(HELPER, WRITER)
    assert read({"body": "x", **both}, replied_to=CODER) == naming(HELPER, WRITER)


def test_the_author_replied_to_counts_when_alone_among_agents() -> None:
    content = {"body": "x", "m.mentions": {"user_ids": [HELPER, ALICE]}}
    assert read(content, replied_to=HELPER) == naming(HELPER, ALICE)


def test_500_mentions_are_read() -> None:
    """R41."""
    users = [f"@u{n}:example.org" for n in range(500)]
    assert len(read({"body": "x", "m.mentions": {"user_ids": users}}).mentioned) == 500
    assert len(read({"body": "x", "formatted_body": "".join(map(pill, users))}).mentioned) == 500


HTML_JUNK = [
    "<div>",
    "<b>",
    "<a",
    "<!--",
    "<![CDATA[",
    "<table><b>",
    "<b><p>",
    "<a><b><i>",
    "<mx-reply>",
    "&amp",
    "<?",
    "@a",
]


@pytest.mark.parametrize("unit", HTML_JUNK)
def test_64_kb_of_nested_html_stays_fast(unit: str) -> None:
    """R41. The bound is wide because test machines are shared; quadratic work would take minutes."""
    junk = unit * (64_000 // len(unit))
    started = time.process_time()
    assert read({"body": junk, "formatted_body": junk}) == Addressed()
    assert time.process_time() - started < 3


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.sampled_from(["@helper", HELPER]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(
    content=st.dictionaries(st.sampled_from(["m.mentions", "formatted_body", "m.relates_to", "body"]), JSON),
    text=st.text(st.characters()),
    replied_to=st.sampled_from([None, HELPER, ALICE]),
)
def test_any_json_in_any_place_is_survived(content: dict[str, Any], text: str, replied_to: UserId | None) -> None:
    """R41."""
    found = read(content, text=text, replied_to=replied_to)
    assert not (found.mentioned and found.replied_author)


def test_a_lone_surrogate_in_html_is_survived() -> None:
    assert read({"body": "x", "formatted_body": "\ud800" + pill(HELPER)}) == naming(HELPER)

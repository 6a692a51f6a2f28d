"""Model Markdown becomes safe, bounded Matrix HTML (I5, R41)."""

import time
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindroom.core.ids import UserId
from mindroom.core.markdown import MAX_CONTENT_BYTES, MAX_MARKDOWN_BYTES, render

HELPER = UserId("@mindroom_helper:example.org")
WRITER = UserId("@writer:localhost:8448")
NAMES = {"helper": HELPER, "my_writer": WRITER}
HELPER_LINK = "https://matrix.to/#/@mindroom_helper:example.org"


def html_of(markdown: str) -> str | None:
    return render(markdown, mentions=NAMES).html


def mentions_of(markdown: str) -> tuple[UserId, ...]:
    return render(markdown, mentions=NAMES).mentions


@pytest.mark.parametrize(
    "text", ["", "hello", "one\ntwo", "one  \ntwo", "first\n\nsecond", "5 < 6 & 7 > 6", "snake_case", "a * b"]
)
def test_text_without_formatting_has_no_html(text: str) -> None:
    rendered = render(text, mentions=NAMES)
    assert (rendered.body, rendered.html) == (text, None)


@pytest.mark.parametrize(
    ("markdown", "html"),
    [
        ("**a** *b* ~~c~~", "<p><strong>a</strong> <em>b</em> <del>c</del></p>"),
        ("one\n**two**", "<p>one<br>\n<strong>two</strong></p>"),
        ("3. c\n4. d", '<ol start="3">\n<li>c</li>\n<li>d</li>\n</ol>'),
        ("```py\na < b\n```", '<pre><code class="language-py">a &lt; b\n</code></pre>'),
        ("\\*literal\\*", "<p>*literal*</p>"),
        ("# Title", "<h1>Title</h1>"),
        (
            "|a|\n|:-:|\n|1|",
            "<table>\n<thead>\n<tr>\n<th>a</th>\n</tr>\n</thead>\n<tbody>\n<tr>\n<td>1</td>\n</tr>\n</tbody>\n</table>",
        ),
    ],
)
def test_formatting_becomes_matrix_html(markdown: str, html: str) -> None:
    assert html_of(markdown) == html


def test_raw_html_is_shown_as_text() -> None:
    assert html_of("**x** <img src=x onerror=alert(1)>") == (
        "<p><strong>x</strong> &lt;img src=x onerror=alert(1)&gt;</p>"
    )


@pytest.mark.parametrize(
    "target", ["javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "/etc/passwd", "x"]
)
def test_a_link_with_another_scheme_stays_text(target: str) -> None:
    html = html_of(f"**x** [label]({target})")
    assert html is not None
    assert "<a" not in html
    assert "label" in html


@pytest.mark.parametrize("target", ["http://a.b/c", "https://a.b", "mailto:a@b.c", "matrix:r/room:a.b"])
def test_a_link_with_a_permitted_scheme_is_a_link(target: str) -> None:
    assert html_of(f"[label]({target})") == f'<p><a href="{target}">label</a></p>'


def test_an_image_becomes_a_link_so_that_no_client_fetches_it_by_itself() -> None:
    assert html_of("![cat](https://a.b/c.png)") == '<p><a href="https://a.b/c.png">cat</a></p>'
    assert html_of("[![cat](https://a.b/c.png)](https://d.e)") == '<p><a href="https://d.e">cat</a></p>'


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("@helper please", "@helper"),
        ("Ask @Helper.", "@Helper"),
        ("(@helper)", "@helper"),
        ("**@helper**: look", "@helper"),
        ("@helper's turn", "@helper"),
        (f"{HELPER}, look", HELPER),
        (f"- {HELPER}: look", HELPER),
    ],
)
def test_a_named_principal_becomes_a_pill_and_a_mention(text: str, shown: str) -> None:
    rendered = render(text, mentions=NAMES)
    assert f'<a href="{HELPER_LINK}">{shown}</a>' in (rendered.html or "")
    assert rendered.mentions == (HELPER,)
    assert rendered.body == text


def test_names_with_underscores_and_ids_with_ports_are_found() -> None:
    assert mentions_of("@my_writer, @my\\_writer and @writer:localhost:8448: go") == (WRITER,)


def test_mentions_keep_their_order_and_count_once() -> None:
    assert mentions_of("@my_writer @helper @my_writer") == (WRITER, HELPER)


@pytest.mark.parametrize(
    "text",
    [
        "`@helper`",
        "```\n@helper\n```",
        "    @helper",
        "> @helper said so",
        f"> [H]({HELPER_LINK})",
        "[@helper](https://a.b)",
        "me@helper",
        "@helper.org",
        "@helper:elsewhere.org",
        "https://a.b/@helper",
        "@helpers",
        "@nobody",
        "helper",
        "@stranger:example.org",
    ],
)
def test_an_answer_that_only_quotes_a_name_pings_nobody(text: str) -> None:
    rendered = render(text, mentions=NAMES)
    assert rendered.mentions == ()
    assert 'matrix.to/#/@mindroom_helper:example.org">@' not in (rendered.html or "")


def test_a_pill_that_the_model_wrote_itself_is_a_mention() -> None:
    assert mentions_of(f"[Helper]({HELPER_LINK})") == (HELPER,)
    assert mentions_of("[X](https://matrix.to/#/@stranger:example.org)") == ()


def test_what_storage_and_json_refuse_is_replaced() -> None:
    rendered = render("a\x00b \ud800 **c**", mentions=NAMES)
    assert rendered.body == "a\N{REPLACEMENT CHARACTER}b ? **c**"
    assert "\x00" not in (rendered.html or "")


def test_body_and_html_fit_one_event_or_the_html_is_left_out() -> None:
    table = "a|b\n-|-\n" + "a|b\n" * 7_000
    assert len(table) < MAX_MARKDOWN_BYTES
    rendered = render(table, mentions=NAMES)
    assert (rendered.body, rendered.html) == (table, None)
    long = "**x** " * (MAX_MARKDOWN_BYTES // 6 + 1)
    assert render(long, mentions=NAMES).html is None


@pytest.mark.parametrize("depth", [15, 18, 19, 20, 40])
def test_html_never_loses_deeply_nested_text(depth: int) -> None:
    markdown = ">" * depth + " deep"
    html = html_of(markdown)
    assert html is None or "deep" in html


JUNK = {
    "brackets": "[",
    "closing brackets": "]",
    "emphasis": "*a ",
    "mixed emphasis": "*_",
    "images": "![[]()",
    "open links": "[a](",
    "links": "[a",
    "tags": "<div>",
    "less than": "<",
    "entities": "&amp",
    "quotes": "> ",
    "lists": "- ",
    "tildes": "~~a ",
    "handles": "@",
    "long handles": "@a:",
    "autolinks": "<http:",
    "pipes": "|a",
}


@pytest.mark.parametrize("unit", JUNK.values(), ids=JUNK.keys())
@pytest.mark.parametrize("size_bytes", [MAX_MARKDOWN_BYTES, 64_000])
def test_64_kb_of_nested_junk_stays_fast(unit: str, size_bytes: int) -> None:
    """R41. The bound is wide because test machines are shared; quadratic work would take minutes."""
    started = time.process_time()
    rendered = render((unit * size_bytes)[:size_bytes], mentions=NAMES)
    assert time.process_time() - started < 3
    assert len(rendered.body) + len(rendered.html or "") <= max(MAX_CONTENT_BYTES, size_bytes)


def test_a_short_answer_renders_in_well_under_a_millisecond() -> None:
    answer = "Sure, **here** it is: `x = 1`. Ask @helper for more.\n\n- one\n- two"
    render(answer, mentions=NAMES)
    started = time.process_time()
    for _ in range(100):
        render(answer, mentions=NAMES)
    assert (time.process_time() - started) / 100 < 0.001


class Audit(HTMLParser):
    """Collects what a client would act on."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str]] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {(tag, name) for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name == "href"]


FRAGMENTS = st.sampled_from(
    [
        "<script>",
        "<img src=x onerror=a>",
        "](javascript:a)",
        "[",
        '](http://a.b "t")',
        "`",
        "```js\n",
        "\n",
        "\n\n",
        "> ",
        "| a ",
        "|-",
        "&lt;",
        "&#106;",
        "**",
        "~~",
        "@helper",
        str(HELPER),
        "\x00",
        "\ud800",
        "<!--",
        "<a href=//x>",
        "- ",
        "x",
    ]
)


@settings(deadline=None)
@given(st.lists(FRAGMENTS, max_size=40).map("".join))
def test_no_text_yields_a_tag_attribute_or_scheme_outside_the_permitted_ones(markdown: str) -> None:
    rendered = render(markdown, mentions=NAMES)
    audit = Audit()
    audit.feed(rendered.html or "")
    assert not audit.tags & {"script", "img", "style", "iframe", "svg", "div", "span"}
    assert audit.attributes <= {("a", "href"), ("code", "class"), ("ol", "start")}
    assert all(link.split(":")[0] in ("http", "https", "mailto", "matrix") for link in audit.links)
    assert set(rendered.mentions) <= set(NAMES.values())
    rendered.body.encode()

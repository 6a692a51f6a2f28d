"""core.text: storable strings, storable JSON, canonical JSON (E7)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindroom.core.text import (
    MAX_CANONICAL_INTEGER,
    canonical_json,
    excerpt,
    storable,
    storable_json,
    storable_json_text,
)

any_text = st.text(st.characters(codec=None, exclude_categories=()))
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=20,
)


def test_nul_and_lone_surrogates_become_the_replacement_character() -> None:
    assert storable("a\x00b\ud83dc\udfffd😀") == "a�b�c�d😀"


@given(any_json)
def test_any_parsed_json_becomes_text_that_postgresql_takes(value: object) -> None:
    text = storable_json_text(value)
    text.encode()
    plain = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert "\x00" not in str(plain) or "\\x00" in repr(plain)
    assert storable_json(value) == plain


def test_clean_json_is_returned_as_the_same_object() -> None:
    value = {"body": "h\u00e9llo 😀", "list": [1, {"a": None}]}
    assert storable_json(value) is value


def test_a_literal_backslash_u0000_in_a_text_is_kept() -> None:
    assert storable_json({"body": "\\u0000"}) == {"body": "\\u0000"}


def test_keys_are_cleaned_and_non_finite_floats_become_null() -> None:
    assert storable_json({"a\x00": [float("inf"), 1.5, "\ud800"]}) == {"a�": [None, 1.5, "�"]}


def test_json_nested_too_deeply_is_a_value_error() -> None:
    deep: object = "\x00"
    for _ in range(100_000):
        deep = [deep]
    for function in (storable_json, storable_json_text, canonical_json):
        with pytest.raises(ValueError, match="nested too deeply"):
            function(deep)


def test_canonical_json_sorts_keys_by_code_point_and_has_no_spaces() -> None:
    assert canonical_json({"b": [1, True, None], "a": {"é": "😀", "z": "\n"}}) == (
        '{"a":{"z":"\\n","é":"😀"},"b":[1,true,null]}'.encode()
    )


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"a": [0, 1.0]}, r"content\.a\[1\]: float is not canonical JSON"),
        ({"a": float("nan")}, r"content\.a: float"),
        ({"n": MAX_CANONICAL_INTEGER + 1}, r"content\.n: integer is beyond"),
        ({"n": -MAX_CANONICAL_INTEGER - 1}, r"content\.n: integer is beyond"),
        ({1: "x"}, "key of type int"),
        ({"x": b"raw"}, r"content\.x: bytes"),
        ({"x": "\ud800"}, "lone surrogate"),
    ],
)
def test_what_canonical_json_has_not_is_refused_with_its_place(value: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        canonical_json(value)


def test_the_largest_integers_are_allowed() -> None:
    assert canonical_json([MAX_CANONICAL_INTEGER, -MAX_CANONICAL_INTEGER]) == b"[9007199254740991,-9007199254740991]"


def test_an_excerpt_is_one_line_and_marks_its_cut() -> None:
    assert excerpt(" a\n\tb\x00 ", max_chars=10) == "a b�"
    assert excerpt("abcdef", max_chars=4) == "abc…"

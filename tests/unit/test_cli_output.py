"""What commands print, for people and for machines."""

import json
from datetime import UTC, datetime
from uuid import UUID

import pytest

from mindroom.cli.output import complain, say, show_record, show_rows

ROWS = [
    {"name": "a", "count": 5, "since": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "hidden": "x"},
    {"name": "long name", "count": 12, "since": None, "hidden": "y"},
]


def test_rows_are_a_table_with_numbers_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows(ROWS, columns=("name", "count", "since"), as_json=False, when_empty="Nothing.")
    assert capsys.readouterr().out.splitlines() == [
        "NAME       COUNT  SINCE",
        "a              5  2026-01-02 03:04:05+00:00",
        "long name     12  -",
    ]


def test_rows_for_machines_hold_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows(ROWS, columns=("name",), as_json=True, when_empty="Nothing.")
    assert json.loads(capsys.readouterr().out)[0] == {
        "name": "a",
        "count": 5,
        "since": "2026-01-02T03:04:05+00:00",
        "hidden": "x",
    }


def test_no_rows_are_a_sentence_or_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows([], columns=("name",), as_json=False, when_empty="Nothing.")
    show_rows([], columns=("name",), as_json=True, when_empty="Nothing.")
    assert capsys.readouterr().out == "Nothing.\n[]\n"


def test_a_record_is_one_property_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    show_record({"id": UUID(int=1), "ok": True, "list": ["a", "b"], "none": []}, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "id    00000000-0000-0000-0000-000000000001",
        "ok    yes",
        "list  a, b",
        "none  -",
    ]


def test_a_record_for_machines_keeps_its_types(capsys: pytest.CaptureFixture[str]) -> None:
    show_record({"id": UUID(int=1), "ok": True, "none": None}, as_json=True)
    record = json.loads(capsys.readouterr().out)
    assert record == {"id": "00000000-0000-0000-0000-000000000001", "ok": True, "none": None}


def test_a_value_without_a_json_form_is_a_bug() -> None:
    with pytest.raises(TypeError, match="object has no JSON form"):
        show_record({"what": object()}, as_json=True)


def test_text_from_rooms_cannot_act_on_the_terminal_i5(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows([{"name": "a\x1b[2J\nb\x9b"}], columns=("name",), as_json=False, when_empty="")
    say("c\x07")
    complain("d\x1b]0;")
    captured = capsys.readouterr()
    assert captured.out == "NAME\na\ufffd[2J b\ufffd\nc\ufffd\n"
    assert captured.err == "d\ufffd]0;\n"

"""Secrets at rest open only with the instance key, in the place they were sealed for (I3)."""

import base64
import os
import stat
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindroom.core.errors import CorruptState, UserError
from mindroom.db import sealing
from mindroom.db.sealing import KEY_VARIABLE, Sealer, load_key, load_or_create_key

KEY = bytes(range(32))
OTHER_KEY = bytes(range(1, 33))
INSTANCE = UUID(int=7)


def _text(key: bytes) -> str:
    return base64.b64encode(key).decode()


@given(plain=st.binary(max_size=200), purpose=st.text(max_size=40).filter(lambda text: text.isprintable()))
def test_what_is_sealed_opens_again(plain: bytes, purpose: str) -> None:
    sealer = Sealer(KEY)
    assert sealer.open(sealer.seal(plain, purpose=purpose), purpose=purpose) == plain


def test_text_is_sealed_as_utf8() -> None:
    sealer = Sealer(KEY)
    assert sealer.open(sealer.seal("grüße", purpose="t.c"), purpose="t.c") == "grüße".encode()


def test_the_same_value_is_never_sealed_alike_and_never_shows() -> None:
    sealed = {Sealer(KEY).seal(b"correct horse", purpose="t.c") for _ in range(50)}
    assert len(sealed) == 50
    assert not any(b"horse" in value for value in sealed)


def test_a_value_moved_to_another_column_does_not_open() -> None:
    sealer = Sealer(KEY)
    sealed = sealer.seal(b"token", purpose="principals.access_token_sealed")
    with pytest.raises(CorruptState, match=r"principals\.password_sealed"):
        sealer.open(sealed, purpose="principals.password_sealed")


def test_a_value_does_not_open_with_another_key() -> None:
    sealed = Sealer(KEY).seal(b"token", purpose="t.c")
    with pytest.raises(CorruptState, match="this instance's key"):
        Sealer(OTHER_KEY).open(sealed, purpose="t.c")


@given(position=st.integers(min_value=0, max_value=1 + 12 + 5 + 16 - 1), flip=st.integers(min_value=1, max_value=255))
def test_any_changed_byte_is_noticed(position: int, flip: int) -> None:
    sealed = bytearray(Sealer(KEY).seal(b"token", purpose="t.c"))
    sealed[position] ^= flip
    with pytest.raises(CorruptState):
        Sealer(KEY).open(bytes(sealed), purpose="t.c")


@given(length=st.integers(min_value=0, max_value=1 + 12 + 5 + 16 - 1))
def test_a_cut_value_is_corrupt(length: int) -> None:
    sealed = Sealer(KEY).seal(b"token", purpose="t.c")
    with pytest.raises(CorruptState):
        Sealer(KEY).open(sealed[:length], purpose="t.c")


def test_key_check_proves_key_and_instance() -> None:
    token = Sealer(KEY).key_check(INSTANCE)
    assert Sealer(KEY).opens(token, instance_id=INSTANCE)
    assert not Sealer(OTHER_KEY).opens(token, instance_id=INSTANCE)
    assert not Sealer(KEY).opens(token, instance_id=UUID(int=8))
    assert not Sealer(KEY).opens(b"", instance_id=INSTANCE)


def test_a_sealer_never_shows_its_key() -> None:
    """I3: nothing that a log line or a traceback prints holds the key."""
    shown = f"{Sealer(KEY)!r} {Sealer(KEY)} {[Sealer(KEY)]}"
    assert "Sealer()" in shown
    for form in (repr(KEY), KEY.hex(), _text(KEY)):
        assert form not in shown
    assert not hasattr(Sealer(KEY), "__dict__")


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Sealer(KEY[:16])


def test_a_drawn_key_is_kept_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "instance.key"
    key = load_or_create_key(path, environ={})
    assert len(key) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_or_create_key(path, environ={}) == key == load_key(path, environ={})
    assert [entry.name for entry in tmp_path.iterdir()] == ["instance.key"]


def test_the_key_file_may_be_given_as_the_variable(tmp_path: Path) -> None:
    path = tmp_path / "instance.key"
    key = load_or_create_key(path, environ={})
    assert load_key(tmp_path / "missing", environ={KEY_VARIABLE: path.read_text()}) == key


def test_two_installations_draw_different_keys(tmp_path: Path) -> None:
    assert load_or_create_key(tmp_path / "a", environ={}) != load_or_create_key(tmp_path / "b", environ={})


def test_without_a_key_nothing_is_drawn_by_loading(tmp_path: Path) -> None:
    assert load_key(tmp_path / "instance.key", environ={}) is None
    assert list(tmp_path.iterdir()) == []


def test_of_two_that_create_the_key_at_once_both_use_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "instance.key"
    create = sealing.create_whole

    def other_was_faster(target: Path, content: bytes) -> None:
        create(target, f"{_text(OTHER_KEY)}\n".encode())
        create(target, content)

    monkeypatch.setattr(sealing, "create_whole", other_was_faster)
    assert load_or_create_key(path, environ={}) == OTHER_KEY
    assert [entry.name for entry in tmp_path.iterdir()] == ["instance.key"]


def test_a_crash_while_the_key_is_written_leaves_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(handle: int) -> None:
        raise OSError(5, "input/output error")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(UserError, match=r"instance\.key"):
        load_or_create_key(tmp_path / "instance.key", environ={})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620])
def test_a_key_that_others_may_touch_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "instance.key"
    load_or_create_key(path, environ={})
    path.chmod(mode)
    with pytest.raises(UserError, match="chmod 600"):
        load_key(path, environ={})
    with pytest.raises(UserError, match="chmod 600"):
        load_or_create_key(path, environ={})


def test_the_environment_wins_over_the_file_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "instance.key"
    assert load_or_create_key(path, environ={KEY_VARIABLE: _text(KEY)}) == KEY
    assert not path.exists()
    load_or_create_key(path, environ={})
    assert load_or_create_key(path, environ={KEY_VARIABLE: f" {_text(KEY)}\n"}) == KEY


@pytest.mark.parametrize(
    "value",
    ["", "hunter2-is-my-secret", _text(KEY)[:-4], _text(KEY + b"x"), _text(KEY).replace("=", ""), "ключ-от-квартиры"],
)
def test_a_malformed_variable_is_named_and_its_value_never_shown(tmp_path: Path, value: str) -> None:
    with pytest.raises(UserError, match=KEY_VARIABLE) as caught:
        load_or_create_key(tmp_path / "instance.key", environ={KEY_VARIABLE: value})
    assert value == "" or value not in f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"
    assert list(tmp_path.iterdir()) == []


def test_a_malformed_key_file_is_named_and_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "instance.key"
    path.touch(mode=0o600)
    path.write_text("not a key")
    with pytest.raises(UserError, match=r"instance\.key") as caught:
        load_or_create_key(path, environ={})
    assert "not a key" not in str(caught.value).replace("is not a key", "")
    assert path.read_text() == "not a key"


def test_a_key_in_a_folder_that_is_missing_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=KEY_VARIABLE):
        load_or_create_key(tmp_path / "nowhere" / "instance.key", environ={})

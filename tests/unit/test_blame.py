"""What an unexpected error looks like in a log: types and places, never its text (I2)."""

from mindroom.core.blame import blame, leaf
from mindroom.core.errors import FenceLost


def _caught(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def test_i2_the_text_of_an_error_is_not_told() -> None:
    """I2: an error may quote a message."""
    told = blame(_caught(ValueError("my secret"), _caught(KeyError("another secret"))))
    assert "secret" not in told
    assert told.startswith("ValueError at test_blame.py:")
    assert "<- KeyError at test_blame.py:" in told


def test_a_group_of_tasks_failed_of_its_first_real_error() -> None:
    lost = FenceLost("fence 1 is no longer current")
    assert leaf(ExceptionGroup("outer", [ExceptionGroup("inner", [lost]), ValueError()])) is lost
    assert leaf(lost) is lost

"""A text that fails on its way is in no log, no `last_error`, no metric and no room (I2)."""

import logging
import sys

import pytest
from prometheus_client import generate_latest

from mindroom.core.errors import MatrixDeliveryFailure, MatrixFailureClass, ModelFailure, ModelFailureKind
from mindroom.ops.logs import BlamingFormatter, say_why_it_ended
from mindroom.turns.normalizer import InboundTurnNormalizer
from tests.support.events import message
from tests.support.spine import Spine, open_spine

SECRET = "the-swordfish"
Told = pytest.CaptureFixture[str]


async def _assert_silent(spine: Spine, told: Told, code: str) -> None:
    """The failure was noted by its code, and its text nowhere but where the message itself is kept."""
    errors = await spine.rows("SELECT last_error FROM journal_pending UNION ALL SELECT last_error FROM delivery_outbox")
    assert code in {row[0] for row in errors}
    assert not any(SECRET in str(row[0]) for row in errors)
    said = [wire.content for _, wire in spine.gateway.visible()]
    assert not any(SECRET in str(content) for content in said)
    assert SECRET not in generate_latest(spine.metrics.registry).decode()
    out, err = told.readouterr()
    assert "sources_deferred" in out or "delivery_" in out, "the failure was told"
    assert SECRET not in out + err


async def test_i2_an_error_of_the_normalizer_tells_no_text(
    database_dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: Told
) -> None:
    """I2: an error whose text is the message."""

    def broken(self: object, source: object, **_: object) -> None:
        raise ValueError(str(source.source))  # type: ignore[attr-defined]

    monkeypatch.setattr(InboundTurnNormalizer, "prepare", broken)
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        await spine.hear(message("$1", SECRET))
        await _assert_silent(spine, capsys, "ValueError")


@pytest.mark.parametrize("kind", ["unforeseen", "refused", "unavailable"])
async def test_i2_an_error_of_the_model_tells_no_text(database_dsn: str, kind: str, capsys: Told) -> None:
    """I2: a provider's error quotes the prompt, itself or as the cause of ours."""
    failure: Exception = RuntimeError(f"bad prompt: {SECRET}")
    if kind != "unforeseen":
        cause, known = failure, ModelFailureKind.SERVER if kind == "unavailable" else ModelFailureKind.BAD_REQUEST
        failure = ModelFailure(known, status=503)
        failure.__cause__ = cause
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.failure = failure
        await spine.hear(message("$1", SECRET))
        await spine.advance(120, step_seconds=5)
        if kind == "refused":
            assert await spine.outcome("$1") == "failed"
            assert SECRET not in "".join(capsys.readouterr())
            assert not any(SECRET in str(wire.content) for _, wire in spine.gateway.visible())
        else:
            await _assert_silent(spine, capsys, {"unforeseen": "RuntimeError", "unavailable": "model"}[kind])


async def test_i2_an_error_of_the_database_tells_no_row(database_dsn: str, capsys: Told) -> None:
    """I2: PostgreSQL's DETAIL quotes the row that it refuses."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        await spine.rows(
            f"""CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                RAISE EXCEPTION 'refused: {SECRET}' USING ERRCODE = 'check_violation', DETAIL = '{SECRET}'; END $$"""
        )
        await spine.rows("CREATE TRIGGER refuse BEFORE INSERT ON turns EXECUTE FUNCTION refuse()")
        await spine.hear(message("$1", SECRET))
        await _assert_silent(spine, capsys, "CheckViolationError")


async def test_i2_a_refused_delivery_tells_no_content(database_dsn: str, capsys: Told) -> None:
    """I2: the homeserver's words about what it refuses are in the cause, the code alone is kept."""
    failure = MatrixDeliveryFailure("send", MatrixFailureClass.BAD_REQUEST, status=400, errcode="M_BAD_JSON")
    failure.__cause__ = ValueError(SECRET)
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.answer = SECRET
        spine.gateway.fail("final", failure, failure, failure)
        await spine.hear(message("$1"))
        await spine.advance(30)
        await _assert_silent(spine, capsys, "M_BAD_JSON")


def test_i2_neither_a_library_nor_the_last_word_of_a_process_quotes_an_error(capsys: Told) -> None:
    """I2: asyncio and libraries log whole tracebacks; an unforeseen end has its type and place."""
    try:
        raise ValueError(SECRET)
    except ValueError as error:
        record = logging.LogRecord("asyncio", logging.ERROR, "x.py", 1, repr(error), None, sys.exc_info())
        say_why_it_ended(type(error), error, error.__traceback__)
    told = BlamingFormatter().format(record) + "".join(capsys.readouterr())
    assert told.count("ValueError at test_failures_tell_nothing.py") == 2
    assert SECRET not in told

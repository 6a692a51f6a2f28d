"""`mindroom explain` over what a served principal left in the ledgers, and the audit of the same (K4)."""

import json
from uuid import UUID, uuid4

import pytest

from mindroom.core.errors import UserError
from mindroom.core.ids import TurnId
from mindroom.core.values import Reason
from mindroom.ops.audit import audit
from mindroom.ops.explain import SILENCES, explain
from mindroom.responses.answer import reference
from tests.support.events import ALICE, STRANGER, message, redaction
from tests.support.spine import open_spine

SECRET = "a body nobody may see"
SPEAKS = {Reason.MENTION, Reason.REPLY, Reason.THREAD, Reason.DM, Reason.SOLE}


def test_every_silence_has_its_sentence() -> None:
    silences = {reason.value for reason in Reason if reason not in SPEAKS}
    assert silences <= set(SILENCES)


async def test_an_answer_is_told_from_its_source_its_turn_and_its_event(database_dsn: str) -> None:
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        await spine.hear(message("$asked", SECRET))
        answer = await spine.value("SELECT acked_event_id FROM delivery_outbox WHERE stage = 'final'")
        turn = str(await spine.value("SELECT turn_id FROM turns"))
        of_source = await explain(database_dsn, "$asked")
        assert [list(row["sources"]) for row in of_source.turns] == [["$asked"]]
        told = " ".join(of_source.sentences)
        for part in ("heard it as it came", ALICE, "settled it as answered", turn, f"stands in the room as {answer}"):
            assert part in told
        for subject in (answer, turn, turn[:13], reference(TurnId(UUID(turn)))):
            assert turn in " ".join((await explain(database_dsn, subject)).sentences)
        assert SECRET not in json.dumps([of_source.heard, of_source.turns, of_source.deliveries], default=str)
        assert [broken.rule for broken in await audit(database_dsn)] == ["clock_was_moved"]


async def test_a_silence_says_its_reason(database_dsn: str) -> None:
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        await spine.hear(message("$theirs", sender=STRANGER), message("$gone"))
        await spine.hear(redaction("$r", "$gone"))
        assert "kept silent: its sender may not use the agents" in (await explain(database_dsn, "$theirs")).sentences[1]
        assert "It was redacted" in " ".join((await explain(database_dsn, "$gone")).sentences)
        assert [broken.rule for broken in await audit(database_dsn)] == ["clock_was_moved"]


async def test_what_nobody_heard_is_said_plainly(database_dsn: str) -> None:
    for subject in ("$never", str(uuid4()), "%", "'; DROP TABLE turns"):
        with pytest.raises(UserError, match="Nothing is known"):
            await explain(database_dsn, subject)

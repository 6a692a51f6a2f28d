"""An answer of ours that was redacted still answers: only its transaction id is left to say so."""

from mindroom.core.ids import TurnId
from mindroom.core.transactions import txn_id
from mindroom.core.values import Stage
from mindroom.outbox.records import answer_delivery_id
from tests.support.events import ME, message, redacted
from tests.support.spine import open_spine


async def test_a6_a_redacted_final_answers_the_sources_of_its_turn(database_dsn: str) -> None:
    """A6: an older database knows the open turn but not the FINAL; the stripped echo ends both."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.go.clear()
        await spine.hear(message("$1"))
        turn = TurnId(await spine.value("SELECT turn_id FROM turns"))
        final = txn_id(Stage.FINAL, answer_delivery_id(turn, 1))
        await spine.hear(redacted("$f1", sender=ME, transaction_id=final))
        assert await spine.outcome("$1") == "answered"
        assert await spine.value("SELECT outcome FROM turns") == "answered"
        spine.model.go.set()
        await spine.advance(30)
        assert spine.finals() == []


async def test_a6_a_transaction_never_waits_for_a_second_connection(database_dsn: str) -> None:
    """A6, H3: what `admit` must know of open turns it reads on its own connection, however busy the pool is."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.go.clear()
        await spine.hear(message("$1"))
        turn = TurnId(await spine.value("SELECT turn_id FROM turns"))
        final = txn_id(Stage.FINAL, answer_delivery_id(turn, 1))
        spine.database.outage = lambda name: name == "read"
        await spine.hear(redacted("$f1", sender=ME, transaction_id=final))
        assert await spine.outcome("$1") == "answered"

"""A source that is ignored although an open turn holds it leaves neither an open turn nor a placeholder behind."""

from mindroom.core.errors import ModelFailure, ModelFailureKind
from tests.support.events import BOB, message
from tests.support.spine import open_spine


async def test_d3_d9_a_turn_of_somebody_no_longer_authorized_ends_with_its_placeholder(database_dsn: str) -> None:
    """D3, D9, I1: no open turn without a pending source, no placeholder without an end."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.failure = ModelFailure(ModelFailureKind.SERVER, status=503)
        spine.model.go.clear()
        await spine.hear(message("$1", sender=BOB))
        await spine.advance(1)
        assert spine.gateway.stages() == ["initial"]
        await spine.crash()
        spine.config = spine.without(BOB)
        await spine.start()
        spine.answer(spine.batch())
        await spine.settle()
        await spine.advance(30)
        assert await spine.outcome("$1") == "ignored.unauthorized"
        assert await spine.rows("SELECT state, outcome FROM turns") == [("closed", "failed")]
        assert [wire.event_type for _, wire in spine.gateway.visible()] == ["m.room.message", "m.room.redaction"]

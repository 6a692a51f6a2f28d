"""A run that ends takes its progress with it: nothing of it reaches the room later, and no edit meets another."""

import asyncio
from collections.abc import AsyncIterator

from mindroom.core.errors import ModelFailure, ModelFailureKind
from mindroom.core.ports import ModelDone, ModelEvent, ModelRequest
from tests.support.events import message, redaction
from tests.support.spine import ScriptedModel, Spine, open_spine

LONG = "a long answer that goes on and on " * 20


def progress(spine: Spine) -> list[str]:
    """The bodies of progress edits that were attempted."""
    return [
        wire.content["m.new_content"]["body"] for wire in spine.gateway.attempts if wire.txn_id.startswith("progress.")
    ]


class BreakingModel(ScriptedModel):
    """Writes its whole answer, waits for `finish`, and then fails."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        async for event in super().stream(request):
            if isinstance(event, ModelDone):
                raise ModelFailure(ModelFailureKind.AUTH, status=401)
            yield event


async def test_c2_still_trying_waits_for_the_progress_edit_on_its_way(database_dsn: str) -> None:
    """C2, E5: a failure while an edit is in flight is a dependency failure like any other, and counts nothing."""
    async with open_spine(database_dsn) as spine:
        spine.model = BreakingModel(answer=LONG)
        spine.model.go.clear()
        spine.model.finish.clear()
        await spine.serve()
        await spine.hear(message("$1"))
        await spine.advance(1)
        await spine.value("UPDATE turns SET opened_at = opened_at - interval '2 minutes' RETURNING 1")
        await spine.crash()
        await spine.serve()
        spine.gateway.held["progress"] = asyncio.Event()
        spine.model.go.set()
        await spine.settle()
        await spine.advance(2)
        assert len(progress(spine)) == 1
        spine.model.finish.set()
        await spine.settle()
        spine.gateway.held.pop("progress").set()
        await spine.settle()
        assert "still trying" in progress(spine)[-1]
        assert await spine.value("SELECT attempts FROM journal_pending") == 0


async def test_e11_a_run_cancelled_while_it_closes_shows_nothing_more(database_dsn: str) -> None:
    """E11: its only source is redacted while the hand-over waits for the edit in flight."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.answer = LONG
        spine.model.go.clear()
        spine.model.finish.clear()
        await spine.hear(message("$1"))
        await spine.advance(1)
        spine.gateway.held["progress"] = asyncio.Event()
        spine.model.go.set()
        await spine.settle()
        await spine.advance(1)
        assert len(progress(spine)) == 1
        before = {task for task in asyncio.all_tasks() if "_show_progress" in repr(task)}
        assert len(before) == 1
        spine.model.finish.set()
        await spine.settle()
        await spine.hear(redaction("$r", "$1"))
        assert not {task for task in asyncio.all_tasks() if "_show_progress" in repr(task)}
        spine.gateway.held.pop("progress").set()

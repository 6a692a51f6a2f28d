"""What a room shows does not depend on how its events were cut into responses: the quick way of plain originals and the
reducer's way give the same rows (A4, A10)."""

from itertools import permutations

from tests.support.events import ALICE, BOB, OTHER_ROOM, ROOM, Event, edit, message, redaction
from tests.support.spine import Spine, open_spine


def _story(number: int) -> list[Event]:
    """An original, two edits of it, somebody else's edit, and a redaction of the first edit."""
    return [
        message(f"$o{number}", body="first", ts=1000),
        edit(f"$e{number}", f"$o{number}", "second", ts=2000),
        edit(f"$n{number}", f"$o{number}", "third", ts=3000),
        edit(f"$x{number}", f"$o{number}", "forged", sender=BOB, ts=4000),
        redaction(f"$r{number}", f"$e{number}", sender=ALICE),
    ]


async def _bodies(spine: Spine) -> dict[str, str | None]:
    rows = await spine.rows("SELECT event_id, content ->> 'body' FROM visible_messages")
    return {row[0]: row[1] for row in rows}


async def test_a10_every_order_and_every_cut_shows_the_newest_own_edit(database_dsn: str) -> None:
    """A4, A10: one response for each event, or one for all, in any order."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.go.clear()
        orders = list(permutations(range(5)))[::4]
        for number, order in enumerate(orders):
            story = _story(number)
            ordered = [story[i] for i in order]
            if number % 2:
                await spine.hear(*ordered)
            else:
                for event in ordered:
                    await spine.hear(event)
        assert await _bodies(spine) == {f"$o{number}": "third" for number in range(len(orders))}


async def test_a4_a_late_original_of_a_redacted_event_is_never_shown(database_dsn: str) -> None:
    """A4: the tombstone came first, in an earlier response or in the same one."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.go.clear()
        await spine.hear(redaction("$r1", "$late"))
        await spine.hear(message("$late", body="gone"), message("$kept", body="kept"))
        await spine.hear(message("$same", body="gone"), redaction("$r2", "$same"))
        assert await _bodies(spine) == {"$kept": "kept"}
        assert await spine.outcome("$late") == "redacted"


async def test_a4_a_redaction_reaches_its_own_room_only(database_dsn: str) -> None:
    """A4: somebody in another room names a message of this one."""
    async with open_spine(database_dsn) as spine:
        await spine.start()
        spine.answer(spine.room_batch(ROOM, OTHER_ROOM))
        await spine.settle()
        spine.model.go.clear()
        await spine.hear(message("$1"))
        await spine.hear(redaction("$r1", "$1", sender=BOB), room=OTHER_ROOM)
        assert await spine.outcome("$1") is None
        spine.model.go.set()
        await spine.advance(5)
        assert spine.finals() == [["$1"]]

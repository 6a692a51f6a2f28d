"""A commit whose fate could not be asked runs again; what the first one brought is not forgotten (K2)."""

import pytest

from mindroom.bot.admit import Admitter
from mindroom.core.errors import DatabaseUnavailable
from tests.support.events import message
from tests.support.spine import open_spine


async def test_k2_sources_of_a_commit_that_seemed_lost_are_answered(
    database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K2, A1: the second run finds every event known, and nobody was woken by the first."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        original = Admitter._admitted
        lost: list[None] = []

        def lose_the_first(self: Admitter, *args: object) -> None:
            if not lost:
                lost.append(None)
                raise DatabaseUnavailable("the fate of a commit could not be asked")
            original(self, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(Admitter, "_admitted", lose_the_first)
        await spine.hear(message("$1"))
        await spine.advance(30)
        assert lost
        assert spine.finals() == [["$1"]]

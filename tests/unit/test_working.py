"""Signs of life go out only while the principal is surely ours (H2), and leave nothing behind."""

import asyncio

import pytest

from mindroom.core.clock import TestClock
from mindroom.core.errors import DependencyError
from mindroom.core.ids import EventId, RoomId
from mindroom.core.values import MessageTarget
from mindroom.responses import working
from mindroom.responses.working import WorkingSigns

TARGET = MessageTarget(RoomId("!r:x"), None, None)


class Attention:
    """Remembers what was shown; a hanging one never returns."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.shown: list[str] = []
        self.given_up = 0
        self._hangs = hangs

    async def typing(self, room: RoomId, *, seconds: float) -> None:
        self.shown.append("typing")

    async def read(self, room: RoomId, event: EventId, *, thread: EventId | None) -> None:
        self.shown.append("read")
        try:
            await asyncio.sleep(3600 if self._hangs else 0)
        except asyncio.CancelledError:
            self.given_up += 1
            raise


def doubt() -> float:
    raise DependencyError("in doubt")


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_h2_no_sign_goes_out_while_the_lease_is_in_doubt(is_trusted: bool) -> None:
    attention, clock = Attention(), TestClock()
    signs = WorkingSigns(attention, effect_seconds=(lambda: 10.0) if is_trusted else doubt, clock=clock)
    async with signs.shown(TARGET, anchor=EventId("$1")):
        await asyncio.sleep(0)
        await clock.advance(1)
        for _ in range(5):
            await asyncio.sleep(0)
    await signs.close()
    assert set(attention.shown) == ({"typing", "read"} if is_trusted else set())


async def test_a_sign_that_hangs_is_given_up_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "CLOSE_SECONDS", 0.0)
    attention, clock = Attention(hangs=True), TestClock()
    signs = WorkingSigns(attention, effect_seconds=lambda: 10.0, clock=clock)
    async with signs.shown(TARGET, anchor=EventId("$1")):
        await asyncio.sleep(0)
        await clock.advance(1)
        for _ in range(5):
            await asyncio.sleep(0)
    await signs.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert attention.given_up == 1

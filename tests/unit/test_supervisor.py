"""One principal that cannot be served is unhealthy with a reason and stops nobody else (B5, R7)."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import cast

import pytest

from mindroom.bot.edges import Connect
from mindroom.bot.sessions import Sessions
from mindroom.bot.supervisor import ServiceState, Supervisor
from mindroom.bot.wiring import BotNeeds
from mindroom.config import EffectiveAgent
from mindroom.core.clock import TestClock
from mindroom.core.errors import DatabaseUnavailable, MatrixFailure, MatrixFailureClass, UserError
from mindroom.core.ids import Fence, PrincipalName, ProcessId
from mindroom.db.lease import LeaseKeeper, LeaseTimes, Standing
from tests.support.spine import spine_config

BROKEN, FINE = PrincipalName("broken"), PrincipalName("fine")


@dataclass
class Refusing:
    """Sessions that cannot log one agent in; the other's lease is held elsewhere."""

    failure: Exception
    asked: int = 0
    reasons: list[str | None] = field(default_factory=list)
    times: LeaseTimes = field(default_factory=lambda: LeaseTimes(15.0))

    @property
    def store(self) -> "Refusing":
        return self

    async def note_health(self, name: PrincipalName, *, reason: str | None) -> None:
        self.reasons.append(reason)

    async def provision(self, agent: EffectiveAgent) -> SimpleNamespace:
        if agent.name == BROKEN:
            self.asked += 1
            raise self.failure
        return SimpleNamespace(principal=2)

    async def leave(self) -> None:
        return None

    async def standings(self, principals: Sequence[int]) -> tuple[dict[int, Standing], int]:
        held = Standing(ProcessId(7), Fence(1), False, 1.0)
        return dict.fromkeys(principals, held), 2

    async def take(self, principal: int, name: PrincipalName) -> None:
        return None


async def supervise(sessions: Refusing, *, seconds: int) -> Supervisor:
    """Ten minutes pass, a second at a time."""
    clock, config = TestClock(), spine_config()
    agents = tuple(replace(config.agents[0], name=name) for name in (BROKEN, FINE))
    needs = cast("BotNeeds", SimpleNamespace(config=replace(config, agents=agents), clock=clock))
    keeper, stop = cast("LeaseKeeper", sessions), asyncio.Event()
    supervisor = Supervisor(keeper, cast("Sessions", sessions), cast("Connect", None), needs, ready=asyncio.Event())
    task = asyncio.ensure_future(supervisor.run(stop))
    for _ in range(seconds):
        await clock.advance(1)
        for _ in range(10):
            await asyncio.sleep(0)
    stop.set()
    await asyncio.wait_for(task, 5)
    return supervisor


@pytest.mark.parametrize("asked_seconds", [None, 240.0])
async def test_r7_b5_a_login_that_is_refused_is_not_hammered(asked_seconds: float | None) -> None:
    """R7, B5: a minute between tries, and as long as a 429 asks."""
    kind = MatrixFailureClass.RATE_LIMITED
    sessions = Refusing(MatrixFailure("login", kind, status=429, retry_after_seconds=asked_seconds))
    await supervise(sessions, seconds=600)
    assert 10 <= sessions.asked <= 25 if asked_seconds is None else sessions.asked == 3


async def test_b5_an_agent_without_credentials_is_unhealthy_with_a_reason_and_the_others_run() -> None:
    sessions = Refusing(UserError("agent broken has neither a password nor a token"))
    supervisor = await supervise(sessions, seconds=10)
    broken, fine = supervisor.statuses[BROKEN], supervisor.statuses[FINE]
    assert (broken.state, broken.reason) == (ServiceState.FAILED, "agent broken has neither a password nor a token")
    assert sessions.reasons[0] == broken.reason
    assert fine.state is ServiceState.STANDBY
    assert not supervisor.ready.is_set()


async def test_i2_what_is_told_of_an_unhealthy_agent_quotes_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    """I2: `/readyz`, `status` and the log have the kind of an unforeseen error, or a code, never its text."""
    for failure in (RuntimeError("the-swordfish"), DatabaseUnavailable("the-swordfish")):
        sessions = Refusing(failure)
        supervisor = await supervise(sessions, seconds=2)
        told = [str(status.reason) for status in supervisor.statuses.values()] + [str(r) for r in sessions.reasons]
        assert {"RuntimeError", "database"} & set(told)
        assert "the-swordfish" not in "".join([*told, *capsys.readouterr()])

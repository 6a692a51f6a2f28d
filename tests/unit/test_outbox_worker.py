"""Small rules of the outbox worker by themselves; what it does with rows is in tests/contract/test_delivery.py."""

import asyncio
from uuid import UUID

import pytest

from mindroom.core.clock import TestClock
from mindroom.core.errors import MatrixDeliveryFailure, MatrixFailureClass
from mindroom.core.ids import DeliveryId, PrincipalName
from mindroom.core.metrics import Metrics
from mindroom.core.values import Stage
from mindroom.outbox.limits import SendLimits
from mindroom.outbox.records import DeliveryKey
from tests.support.events import message
from tests.support.spine import open_spine


def limited(seconds: float | None) -> MatrixDeliveryFailure:
    return MatrixDeliveryFailure("send", MatrixFailureClass.RATE_LIMITED, status=429, retry_after_seconds=seconds)


async def test_e5_the_longest_pause_wins_and_runs_out() -> None:
    clock = TestClock()
    limits = SendLimits(clock, metrics=Metrics(), name=PrincipalName("agent"))
    assert limits.seconds_left == 0
    limits.refused(limited(30))
    limits.refused(limited(10))
    assert limits.seconds_left == 30
    await clock.advance(29)
    assert limits.seconds_left == 1
    await clock.advance(60)
    assert limits.seconds_left == 0
    limits.refused(limited(None))
    assert limits.seconds_left == 5


@pytest.mark.parametrize("stage", [Stage.INITIAL, Stage.FINAL])
def test_e1_a_key_names_its_transaction(stage: Stage) -> None:
    delivery = DeliveryId(UUID(int=7))
    assert DeliveryKey(delivery, stage).txn_id == f"{stage.value}.{delivery}"


async def test_what_is_said_is_found_by_no_sweep(database_dsn: str) -> None:
    """Nothing polls: every delivery is offered by the commit that owes it, also one that waits for sync."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.held["slow"] = asyncio.Event()
        await spine.hear(message("$1", "quick"), message("$2", "slow"))
        await spine.advance(25)
        spine.model.held["slow"].set()
        await spine.advance(25)
        assert sorted(spine.finals()) == [["$1"], ["$2"]]
        for kind in ("delivery", "pending"):
            found = spine.metrics.registry.get_sample_value("mindroom_sweep_found_total", {"kind": kind})
            assert not found

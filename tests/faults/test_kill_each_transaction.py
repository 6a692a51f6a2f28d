"""K1 in small, K2: the real program killed right after the commit of each of its named transactions."""

import re
from pathlib import Path

import pytest

from mindroom.core.faults import Fault
from tests.conftest import REPOSITORY
from tests.faults.births import Executing
from tests.faults.cases import KINDS, Case, Scenario
from tests.faults.driver import Driver, Outcome
from tests.faults.report import describe, last_line
from tests.faults.world import open_world

SLOTS = 4
WHERE = {
    "init_instance": Scenario.EMPTY,
    "register_process": Scenario.RESTART,
    "provision_account": Scenario.EMPTY,
    "note_health": Scenario.RESTART,
    "lease.take": Scenario.RESTART,
    "lease.renew": Scenario.ANSWER,
    "lease.resign": Scenario.DRAIN,
    "end_process": Scenario.DRAIN,
    "save_token": Scenario.EMPTY,
    "admit": Scenario.ANSWER,
    "settle": Scenario.GAP,
    "invite_result": Scenario.STRANGER,
    "open_turn": Scenario.ANSWER,
    "hand_off": Scenario.ANSWER,
    "claim_delivery": Scenario.ANSWER,
    "ack_delivery": Scenario.ANSWER,
    "gap_page": Scenario.GAP,
    "gap_close": Scenario.GAP,
    "gap_failed": Scenario.GAP_FAILS,
    "fail_delivery": Scenario.UNSENT,
    "record_failure": Scenario.DEFERRED,
}
"""A scenario that passes each transaction."""
NOT_PASSED = {"retire_delivery"}
"""Passed by none: nothing here leaves a room, and no placeholder is refused for good."""
_NAMES = re.compile(r'(?:\.run|\.transaction|_finish)\(\s*"([a-z_.]+)"(?: if \w+ else "([a-z_.]+)")?')


def test_every_named_transaction_of_the_program_has_its_kill() -> None:
    """K1: a transaction that is added must be put here, or this fails."""
    sources = [path.read_text() for path in (REPOSITORY / "mindroom").rglob("*.py")]
    named = {name for source in sources for pair in _NAMES.findall(source) for name in pair if name}
    assert named | {"init_instance"} == WHERE.keys() | NOT_PASSED


@pytest.mark.kill
@pytest.mark.timeout(480)
async def test_a_kill_after_each_commit_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    """K1, K2: whatever was committed last, the next process goes on from there."""
    cases = [Case(scenario, f"tx.{name}", "after", 1, Fault.KILL) for name, scenario in WHERE.items()]
    cases.sort(key=lambda case: KINDS[case.scenario])
    told: list[Outcome] = []
    async with open_world(Executing()) as world:
        driver = Driver(world, slots=SLOTS, logs=tmp_path, tell=told.append)
        try:
            outcomes = await driver.run(cases)
        finally:
            await driver.close()
    assert "\n".join(describe(outcome) for outcome in outcomes if not outcome.is_good) == ""
    assert [str(outcome.case) for outcome in outcomes if not outcome.struck] == []
    assert all(-9 in outcome.exits for outcome in outcomes), "the kill is noticed by the exit code"
    assert last_line(outcomes) == f"points {len(WHERE)} runs {len(WHERE)} lost 0 doubled 0 stray 0"
    assert len(told) == len(cases)

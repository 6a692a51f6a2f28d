"""K1 in small, K2: the real program killed right after the commit of each of its named transactions."""

import re
from pathlib import Path

import pytest

from mindroom.core.faults import Fault
from tests.conftest import REPOSITORY
from tests.faults.births import Executing
from tests.faults.cases import KINDS, Case, Scenario
from tests.faults.driver import Driver, Outcome
from tests.faults.oracle import Breach
from tests.faults.report import describe, last_line
from tests.faults.world import open_world
from tests.support.matrix_human import Event, MatrixHuman

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
    "resume_turn": Scenario.ADOPT,
    "hydrate_chunk": Scenario.THREAD,
    "supersede": Scenario.MOVED_ON,
    "restore_revision": Scenario.EDIT,
}
"""A scenario that passes each transaction."""
NOT_PASSED = {"carry_over", "hydrate_failed", "park", "retire_delivery", "retry_parked"}
"""Passed by none: no placeholder is refused for good, no history cannot be read, nothing fails for a reason of its own,
and nothing is owed in a room that is upgraded (test_delivery, test_hydration, test_parking and test_upgrades of
tests/contract lose those commits)."""
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


@pytest.mark.kill
async def test_a_run_whose_room_shows_a_second_answer_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """K1: the driver notices a broken promise and tells how to see it again."""
    honest = MatrixHuman.seen

    def doubling(human: MatrixHuman, room: str) -> list[Event]:
        events = honest(human, room)
        said = [event for event in events if "m.relates_to" in event["content"] and event["sender"] != human.user_id]
        return [*events, *({**event, "event_id": f"{event['event_id']}-again"} for event in said)]

    monkeypatch.setattr(MatrixHuman, "seen", doubling)
    async with open_world(Executing()) as world:
        driver = Driver(world, slots=1, logs=tmp_path, tell=lambda _outcome: None)
        try:
            (outcome,) = await driver.run([Case.parse("answer:tx.hand_off:after:1:kill")])
        finally:
            await driver.close()
    assert outcome.struck
    assert {finding.breach for finding in outcome.findings} >= {Breach.DOUBLED}
    assert "python -m tests.faults --only answer:tx.hand_off:after:1:kill" in describe(outcome)
    assert {file.name for file in (outcome.logs or tmp_path).iterdir()} == {"runtime.log", "record", "room.txt"}
    assert not last_line([outcome]).endswith("lost 0 doubled 0 stray 0")

"""Runs cases on several installations at once, since a run mostly waits.

An installation serves one case after the other; one on which a promise was broken is thrown away with its logs kept.
"""

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.cases import KINDS, Case, Kind, Passage, Scenario, Scope, cases_of, read_record
from tests.faults.installation import Installation
from tests.faults.oracle import Breach, Finding
from tests.faults.scenarios import PLAYS
from tests.faults.world import World

_ATTEMPTS = 2
"""A point that is not passed every time gets so many chances."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run came to."""

    case: Case
    seconds: float
    struck: bool
    """False when the chosen hit was never passed; then nothing was proven."""
    findings: tuple[Finding, ...] = ()
    exits: tuple[int, ...] = ()
    logs: Path | None = None

    @property
    def is_good(self) -> bool:
        return not self.findings


@dataclass
class Driver:
    """Plays scenarios on its installations."""

    world: World
    slots: int
    logs: Path
    """Gets a folder for each run that broke a promise."""
    tell: Callable[[Outcome], None]
    _idle: list[Installation] = field(default_factory=list)
    _busy: list[Installation] = field(default_factory=list)

    async def record(self, scenarios: Sequence[Scenario], *, whole: bool) -> dict[Scenario, list[Passage]]:
        """The points each scenario passes after its trigger. Raises AssertionError when one fails unharmed."""
        gate = asyncio.Semaphore(self.slots)

        async def one(scenario: Scenario) -> list[Passage]:
            async with gate:
                inst = await self._take(KINDS[scenario])
                try:
                    if findings := await _play(inst, scenario, None):
                        log = inst.runtime.log_tail()
                        raise AssertionError(f"{scenario} fails without any fault: {findings}\n{log}")
                    return read_record(inst.runtime.record.read_text(), whole=whole)
                finally:
                    await self._put_back(inst, is_good=True)

        return dict(zip(scenarios, await asyncio.gather(*map(one, scenarios)), strict=True))

    async def run(self, cases: Sequence[Case]) -> list[Outcome]:
        """Every case once, in any order."""
        waiting, outcomes = sorted(cases, key=lambda case: KINDS[case.scenario], reverse=True), list[Outcome]()

        async def slot() -> None:
            while waiting:
                outcome = await self._run(waiting.pop())
                outcomes.append(outcome)
                self.tell(outcome)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(self.slots, len(cases))):
                tasks.create_task(slot())
        return sorted(outcomes, key=lambda outcome: outcome.case)

    async def close(self) -> None:
        """End every installation."""
        for inst in (*self._idle, *self._busy):
            await inst.close()

    async def _run(self, case: Case) -> Outcome:
        started = time.monotonic()
        for _ in range(_ATTEMPTS):
            inst = await self._take(KINDS[case.scenario])
            findings = await _play(inst, case.scenario, case)
            struck, exits = inst.runtime.has_fired, tuple(inst.runtime.exits)
            logs = None
            if findings:
                logs = self._keep_logs(inst, case)
            else:
                inst.runtime.disarm()
            await self._put_back(inst, is_good=not findings)
            if struck or findings:
                break
        return Outcome(case, time.monotonic() - started, struck, tuple(findings), exits, logs)

    async def _take(self, kind: Kind) -> Installation:
        inst = next((inst for inst in self._idle if inst.kind is kind), None)
        if inst is not None:
            self._idle.remove(inst)
        else:
            if self._idle:
                await self._idle.pop(0).close()
            inst = await Installation.create(self.world, kind)
        self._busy.append(inst)
        return inst

    async def _put_back(self, inst: Installation, *, is_good: bool) -> None:
        self._busy.remove(inst)
        if is_good and inst.kind is not Kind.FRESH:
            self._idle.append(inst)
        else:
            await inst.close()

    def _keep_logs(self, inst: Installation, case: Case) -> Path:
        folder = self.logs / str(case).replace(":", "-")
        folder.mkdir(parents=True, exist_ok=True)
        for file in (inst.runtime.log, inst.runtime.record):
            shutil.copy(file, folder / file.name)
        (folder / "room.txt").write_text(inst.transcript())
        return folder


async def _play(inst: Installation, scenario: Scenario, case: Case | None) -> list[Finding]:
    """Play, settle, judge; a scenario that cannot be played to its end lost what it was about."""
    try:
        await PLAYS[scenario](inst, case)
    except AssertionError as error:
        return [Finding(Breach.LOST, f"{type(error).__name__}: {error}")]
    return await inst.settle()


def plan(records: Mapping[Scenario, Sequence[Passage]], *, scopes: Mapping[Scenario, Scope]) -> list[Case]:
    """All cases of the recorded scenarios."""
    return [
        case for scenario, passages in records.items() for case in cases_of(scenario, passages, scope=scopes[scenario])
    ]

"""`python -m tests.faults`: the fault programme. docs/fault-programme.md tells what it proves."""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.faults.births import Executing, Midwife, open_nursery
from tests.faults.cases import DEFAULT, EVERYTHING, MAX_HITS, Case, Scenario
from tests.faults.driver import Driver, Outcome, plan
from tests.faults.report import Progress, last_line, never_struck, say, table
from tests.faults.world import open_world

LOGS = Path("build/faults")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description="Kills, cuts and fails the running program at its fault points."
    )
    parser.add_argument("--long", action="store_true", help=f"every point up to its hit number {MAX_HITS}, everywhere")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="CASE",
        help="one run, written scenario:point:moment:k:fault; a beginning of that selects all that begin so",
    )
    parser.add_argument("--slots", type=int, default=8, metavar="N", help="runs at a time (default: 8)")
    parser.add_argument("--list", action="store_true", help="print the runs, do none")
    return parser.parse_args()


async def _main(arguments: argparse.Namespace) -> int:
    started, progress = time.monotonic(), Progress()
    async with _midwife(arguments) as midwife, open_world(midwife) as world:
        driver = Driver(world, slots=arguments.slots, logs=LOGS, tell=progress.tell)
        try:
            cases = await _cases(driver, arguments)
            if arguments.list:
                say("\n".join(map(str, cases)))
                return 0
            progress.total = len(cases)
            say(f"{len(cases)} runs, {arguments.slots} at a time")
            outcomes = await driver.run(cases)
        finally:
            await driver.close()
    return _report(outcomes, seconds=time.monotonic() - started)


@asynccontextmanager
async def _midwife(arguments: argparse.Namespace) -> AsyncIterator[Midwife]:
    """A single run and the long programme start the program as everybody does."""
    if arguments.long or _is_single(arguments):
        yield Executing()
        return
    async with open_nursery() as nursery:
        yield nursery


def _is_single(arguments: argparse.Namespace) -> bool:
    return bool(arguments.only) and all(text.count(":") == 4 for text in arguments.only)


async def _cases(driver: Driver, arguments: argparse.Namespace) -> list[Case]:
    wanted = [text.partition(":")[0] for text in arguments.only]
    scenarios = [scenario for scenario in Scenario if not wanted or scenario in wanted]
    if _is_single(arguments):
        return [Case.parse(text) for text in arguments.only]
    records = await driver.record(scenarios, whole=arguments.long)
    cases = plan(records, scopes=EVERYTHING if arguments.long else DEFAULT)
    return [case for case in cases if not wanted or any(str(case).startswith(text) for text in arguments.only)]


def _report(outcomes: list[Outcome], *, seconds: float) -> int:
    say("\n" + table(outcomes) + "\n")
    unproven = never_struck(outcomes)
    for outcome in unproven:
        say(f"not passed, so not counted: {outcome.case}")
    struck = {outcome.case.point for outcome in outcomes if outcome.struck}
    missed = sorted({outcome.case.point for outcome in unproven} - struck)
    for point in missed:
        say(f"FAILED: no fault ever struck at {point}")
    say(f"{seconds:.0f} s, {seconds / max(1, len(outcomes)):.1f} s a run")
    say(last_line(outcomes))
    return int(bool(missed) or not all(outcome.is_good for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(_arguments())))

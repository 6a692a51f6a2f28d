"""The table and the last line of the programme. Pure but for printing progress."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from mindroom.core.faults import Fault
from tests.faults.driver import Outcome
from tests.faults.oracle import Breach

_COLUMNS = {
    ("before", Fault.KILL): "kill<",
    ("after", Fault.KILL): "kill>",
    ("before", Fault.ERROR): "error<",
    ("before", Fault.DISCONNECT): "cut<",
    ("after", Fault.LOST_REPLY): "lost>",
}


@dataclass
class Progress:
    """One line that moves on a terminal; a plain line for every tenth run elsewhere, and for every failure."""

    total: int = 0
    done: int = 0
    bad: int = 0
    _started: bool = field(default=False, repr=False)

    def tell(self, outcome: Outcome) -> None:
        """A run ended."""
        self.done += 1
        self.bad += not outcome.is_good
        terminal = sys.stdout.isatty()
        if not outcome.is_good:
            say(("\r\033[K" if terminal else "") + describe(outcome))
        if terminal:
            sys.stdout.write(f"\r\033[K{self.done}/{self.total} runs, {self.bad} bad; {outcome.case}")
            sys.stdout.flush()
        elif self.done % 10 == 0 or self.done == self.total:
            say(f"{self.done}/{self.total} runs, {self.bad} bad")


def say(line: str) -> None:
    """One line, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def describe(outcome: Outcome) -> str:
    """What a run that broke a promise showed, and how to repeat it alone."""
    lines = [f"FAILED {outcome.case} after {outcome.seconds:.1f} s, exits {list(outcome.exits)}"]
    lines += [f"  {finding.breach}: {finding.text}" for finding in outcome.findings]
    lines.append(f"  logs: {outcome.logs}")
    lines.append(f"  again: python -m tests.faults --only {outcome.case}")
    return "\n".join(lines)


def table(outcomes: Sequence[Outcome]) -> str:
    """One row for each scenario and point: good runs of all runs, by moment and fault."""
    rows: dict[tuple[str, str], dict[str, list[Outcome]]] = {}
    for outcome in outcomes:
        case = outcome.case
        row = rows.setdefault((case.scenario, case.point), {})
        row.setdefault(_COLUMNS[case.moment, case.fault], []).append(outcome)
    head = f"{'scenario':<10} {'point':<22}" + "".join(f"{name:>8}" for name in _COLUMNS.values())
    lines = [head, "-" * len(head)]
    for (scenario, point), row in sorted(rows.items()):
        lines.append(f"{scenario:<10} {point:<22}" + "".join(f"{_cell(row.get(c, [])):>8}" for c in _COLUMNS.values()))
    return "\n".join(lines)


def _cell(outcomes: Sequence[Outcome]) -> str:
    if not outcomes:
        return ""
    struck = [outcome for outcome in outcomes if outcome.struck or not outcome.is_good]
    good = sum(outcome.is_good for outcome in struck)
    return f"{good}/{len(struck)}" + ("?" if len(struck) < len(outcomes) else "")


def never_struck(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Runs whose point was not passed; they prove nothing."""
    return [outcome for outcome in outcomes if outcome.is_good and not outcome.struck]


def last_line(outcomes: Sequence[Outcome]) -> str:
    """The sum; only runs that struck count."""
    counted = [outcome for outcome in outcomes if outcome.struck or not outcome.is_good]
    points = {outcome.case.point for outcome in counted}
    broken = {b: sum(any(f.breach is b for f in o.findings) for o in counted) for b in Breach}
    return (
        f"points {len(points)} runs {len(counted)} lost {broken[Breach.LOST]} "
        f"doubled {broken[Breach.DOUBLED]} stray {broken[Breach.STRAY]}"
    )

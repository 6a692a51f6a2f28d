"""The fault driver's hand in a running process: a control file named by the environment (K1).

No ordinary process has one. The file holds the run in JSON: `run` (counts start anew when it changes), and `point`,
`moment`, `hit_number`, `fault`, `record` and `trouble` of the FaultPlan. The driver replaces it whole; each hit looks
whether it changed.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mindroom.core.errors import UserError
from mindroom.core.faults import Fault, FaultPlan, Moment, Strike

VARIABLE = "MINDROOM_FAULT_PLAN"


@dataclass
class ControlledPlan:
    """Does at each hit what the control file says at that moment; a missing file says nothing."""

    path: Path
    _version: tuple[int, int] | None = None
    _run: str | None = None
    _plan: FaultPlan | None = None

    def on_hit(self, point: str, moment: Moment) -> None:
        """One passage; raises InjectedFault or kills the process when it is the chosen one, UserError for a file that
        is no plan."""
        self._reload()
        if self._plan is not None:
            self._plan.on_hit(point, moment)

    def _reload(self) -> None:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            self._version = self._run = self._plan = None
            return
        version = (status.st_ino, status.st_mtime_ns)
        if version == self._version:
            return
        run, plan = _read(self.path)
        if run == self._run and self._plan is not None:
            plan.counts = self._plan.counts
        self._version, self._run, self._plan = version, run, plan


def read_fault_plan(environ: Mapping[str, str] = os.environ) -> ControlledPlan | None:
    """The plan, or None in every ordinary process."""
    path = environ.get(VARIABLE)
    return None if path is None else ControlledPlan(Path(path))


def _read(path: Path) -> tuple[str, FaultPlan]:
    try:
        raw = json.loads(path.read_text())
        plan = FaultPlan(
            point=str(raw["point"]),
            moment=_moment(raw["moment"]),
            hit_number=int(raw["hit_number"]),
            fault=Fault(raw["fault"]),
            record=Path(raw["record"]),
            trouble=tuple(Strike(p, _moment(m), int(k), Fault(f)) for p, m, k, f in raw["trouble"]),
        )
        return str(raw["run"]), plan
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{VARIABLE} names {path}, which is not a fault plan: {error!r}") from error


def _moment(text: str) -> Moment:
    return "after" if text == "after" else "before"

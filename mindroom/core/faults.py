"""Fault points: named places where tests kill, cut or fail the runtime (K1, K2).

`hit` costs one attribute read unless `app.compose` installed a plan. A plan either records the points a run passes
or fires one fault at the k-th hit of one point.
"""

import os
import signal
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

from mindroom.core.errors import DependencyError

Moment = Literal["before", "after"]


class Fault(StrEnum):
    """What happens at the chosen hit."""

    KILL = "kill"
    ERROR = "error"
    LOST_REPLY = "lost_reply"
    DISCONNECT = "disconnect"


class InjectedFault(DependencyError):
    """Raised by a fault point; treated like any unavailable dependency."""

    code = "injected"

    def __init__(self, point: str, fault: Fault) -> None:
        super().__init__(f"injected {fault.value} at {point}")
        self.fault = fault


@dataclass
class FaultPlan:
    """Records hits to `record` (one `point moment` line each) and fires `fault` at hit number `hit_number`."""

    record: Path | None = None
    point: str = ""
    moment: Moment = "before"
    hit_number: int = 1
    fault: Fault = Fault.KILL
    armed_by: Path | None = None
    """The plan sleeps until this file exists, so that a scenario's set-up is not counted."""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def on_hit(self, point: str, moment: Moment) -> None:
        """Count one passage; raises InjectedFault or kills the process when it is the chosen one."""
        if self.armed_by is not None and not self.armed_by.exists():
            return
        self.counts[point, moment] += 1
        if self.record is not None:
            with self.record.open("a") as out:
                out.write(f"{point} {moment}\n")
        if (point, moment) == (self.point, self.moment) and self.counts[point, moment] == self.hit_number:
            if self.fault is Fault.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            raise InjectedFault(point, self.fault)


_plan: FaultPlan | None = None


def install(plan: FaultPlan | None) -> None:
    """Only `app.compose` and tests call this; None removes the plan."""
    global _plan
    _plan = plan


def hit(point: str, moment: Moment) -> None:
    """Pass a fault point."""
    if _plan is not None:
        _plan.on_hit(point, moment)

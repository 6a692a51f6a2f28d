"""Fault points: named places where tests kill, cut or fail the runtime (K1, K2).

`hit` costs one read of a variable unless `app.compose` installed a plan. A plan counts the points a run passes and
fires at most one fault, at the k-th hit of one point.
"""

import os
import signal
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol

from mindroom.core.errors import DependencyError

Moment = Literal["before", "after"]

FIRED = "fired"
"""The line that a plan adds to its record just before its fault."""


class Fault(StrEnum):
    """What happens at the chosen hit."""

    KILL = "kill"
    STOP = "stop"
    """SIGSTOP: nothing happens any more until somebody sends SIGCONT, then everything goes on."""
    ERROR = "error"
    LOST_REPLY = "lost_reply"
    DISCONNECT = "disconnect"


class InjectedFault(DependencyError):
    """Raised by a fault point; treated like any unavailable dependency."""

    code = "injected"

    def __init__(self, point: str, fault: Fault) -> None:
        super().__init__(f"injected {fault.value} at {point}")
        self.fault = fault


class Plan(Protocol):
    """What a fault point tells of each passage."""

    def on_hit(self, point: str, moment: Moment) -> None:
        """One passage; raises InjectedFault or kills the process when it is the chosen one."""
        ...


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault at one hit of one point."""

    point: str
    moment: Moment
    hit_number: int
    fault: Fault


@dataclass
class FaultPlan:
    """Fires `fault` at hit number `hit_number` of one point, or nothing when `point` is empty."""

    point: str = ""
    moment: Moment = "before"
    hit_number: int = 1
    fault: Fault = Fault.KILL
    record: Path | None = None
    """Gets a line `point moment number` for each hit, and FIRED before the fault; a killed process leaves it whole."""
    trouble: tuple[Strike, ...] = ()
    """What goes wrong besides, so that the chosen fault meets a program that deals with trouble already."""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def on_hit(self, point: str, moment: Moment) -> None:
        """Count one passage; raises InjectedFault or kills the process when it is the chosen one."""
        self.counts[point, moment] += 1
        number = self.counts[point, moment]
        chosen = (point, moment, number) == (self.point, self.moment, self.hit_number)
        if self.record is not None:
            with self.record.open("a") as out:
                out.write(f"{point} {moment} {number}\n" + (f"{FIRED}\n" if chosen else ""))
        if chosen:
            if self.fault is Fault.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault is Fault.STOP:
                os.kill(os.getpid(), signal.SIGSTOP)
                return
            raise InjectedFault(point, self.fault)
        for strike in self.trouble:
            if (point, moment, number) == (strike.point, strike.moment, strike.hit_number):
                raise InjectedFault(point, strike.fault)


_plan: Plan | None = None


def install(plan: Plan | None) -> None:
    """Only `app.compose` and tests call this; None removes the plan."""
    global _plan
    _plan = plan


def hit(point: str, moment: Moment) -> None:
    """Pass a fault point."""
    if _plan is not None:
        _plan.on_hit(point, moment)

"""What is run: a case is one fault at one hit of one point in one scenario. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from mindroom.core.faults import FIRED, Fault, Moment


class Scenario(StrEnum):
    """What the program is doing when the fault strikes; docs/fault-programme.md tells each."""

    EMPTY = "empty"
    ANSWER = "answer"
    RESTART = "restart"
    ADOPT = "adopt"
    GAP = "gap"
    DM = "dm"
    REDACTION = "redaction"
    DRAIN = "drain"


MAX_HITS = 3
"""The k-th hit of a point is tried up to this k."""
POLLING = frozenset({"hs.sync", "tx.lease.renew", "tx.save_token"})
"""Points that time alone passes again and again: their first hit stands for all."""

_FAULTS: dict[str, tuple[tuple[Moment, Fault], ...]] = {
    "tx": (
        ("before", Fault.KILL),
        ("after", Fault.KILL),
        ("before", Fault.ERROR),
        ("before", Fault.DISCONNECT),
        ("after", Fault.LOST_REPLY),
    ),
    "hs": (("before", Fault.KILL), ("after", Fault.KILL), ("before", Fault.ERROR), ("after", Fault.LOST_REPLY)),
}


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """One run. Written `scenario:point:moment:k:fault`."""

    scenario: Scenario
    point: str
    moment: Moment
    hit_number: int
    fault: Fault

    def __str__(self) -> str:
        return f"{self.scenario}:{self.point}:{self.moment}:{self.hit_number}:{self.fault}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The case that is written so. Raises ValueError."""
        scenario, point, moment, number, fault = text.split(":")
        return cls(Scenario(scenario), point, "after" if moment == "after" else "before", int(number), Fault(fault))


@dataclass(frozen=True, slots=True)
class Passage:
    """One hit as a record tells it."""

    point: str
    moment: Moment


def read_record(text: str) -> list[Passage]:
    """The hits of a record, in order; what a kill cut short is left out."""
    passages = []
    for line in text.splitlines():
        parts = line.split()
        if len(parts) == 3:
            passages.append(Passage(parts[0], "after" if parts[1] == "after" else "before"))
    return passages


def has_fired(text: str) -> bool:
    """Whether the plan of this record struck."""
    return FIRED in text.splitlines()


def cases_of(scenario: Scenario, passages: Iterable[Passage], *, max_hits: int) -> list[Case]:
    """Every case for the points that a recorded run passed."""
    hits = Counter(passage.point for passage in passages if passage.moment == "before")
    return [
        Case(scenario, point, moment, number, fault)
        for point, count in sorted(hits.items())
        for number in range(1, min(count, 1 if point in POLLING else max_hits) + 1)
        for moment, fault in _FAULTS[point.partition(".")[0]]
    ]

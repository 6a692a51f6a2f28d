"""What is run: a case is one fault at one hit of one point in one scenario. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from mindroom.core.faults import FIRED, Fault, Moment, Strike


class Scenario(StrEnum):
    """What the program is doing when the fault strikes; docs/fault-programme.md tells each."""

    EMPTY = "empty"
    ANSWER = "answer"
    RESTART = "restart"
    ADOPT = "adopt"
    GAP = "gap"
    DM = "dm"
    STRANGER = "stranger"
    REDACTION = "redaction"
    DRAIN = "drain"
    UNSENT = "unsent"
    DEFERRED = "deferred"
    GAP_FAILS = "gap_fails"
    THREAD = "thread"
    MOVED_ON = "moved_on"
    LEAVE = "leave"
    UPGRADE = "upgrade"
    EDIT = "edit"


TROUBLE: dict[Scenario, tuple[Strike, ...]] = dict.fromkeys(Scenario, ()) | {
    # The replies to the placeholder and to the final text are lost.
    Scenario.UNSENT: (
        Strike("hs.send", "after", 1, Fault.LOST_REPLY),
        Strike("hs.send", "after", 3, Fault.LOST_REPLY),
    ),
    # As often as a transaction is tried again, so that the source goes back with a back-off on its row.
    Scenario.DEFERRED: tuple(Strike("tx.open_turn", "before", number, Fault.ERROR) for number in range(1, 7)),
    Scenario.GAP_FAILS: (Strike("hs.messages", "before", 1, Fault.ERROR),),
}
"""What goes wrong in a scenario besides the fault of the case: else the ways of dealing with it are never passed."""


class Kind(StrEnum):
    """The installations that scenarios are played on."""

    USUAL = "usual"
    SLOW = "slow"
    """With a slow model: something is done while an answer grows."""
    FRESH = "fresh"
    """Nobody used it, and it has two agents, for the way they find each other."""


KINDS = dict.fromkeys(Scenario, Kind.USUAL) | {
    Scenario.EMPTY: Kind.FRESH,
    Scenario.ADOPT: Kind.SLOW,
    Scenario.REDACTION: Kind.SLOW,
    Scenario.DRAIN: Kind.SLOW,
    Scenario.MOVED_ON: Kind.SLOW,
    Scenario.LEAVE: Kind.SLOW,
    Scenario.EDIT: Kind.SLOW,
}
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


SCENE_ENDS = "scene ends"
"""A line of a record: what follows is not what the scenario is about."""


def read_record(text: str, *, whole: bool = True) -> list[Passage]:
    """The hits of a record, in order, to its end or to SCENE_ENDS; a line that a kill cut short is left out."""
    passages = []
    for line in text.splitlines():
        if line == SCENE_ENDS and not whole:
            break
        parts = line.split()
        if len(parts) == 3:
            passages.append(Passage(parts[0], "after" if parts[1] == "after" else "before"))
    return passages


def has_fired(text: str) -> bool:
    """Whether the plan of this record struck."""
    return FIRED in text.splitlines()


@dataclass(frozen=True, slots=True)
class Scope:
    """Which hits of a scenario are struck: those that no other scenario passes in the same situation."""

    max_hits: int = MAX_HITS
    deep: frozenset[str] = frozenset()
    """Points struck up to MAX_HITS all the same."""
    only: frozenset[str] = frozenset()
    """No other points, unless empty."""
    without: frozenset[str] = frozenset()

    def covers(self, point: str) -> bool:
        """Whether the point is struck in this scenario."""
        return point not in self.without and (not self.only or point in self.only)

    def hits(self, point: str) -> int:
        """Up to which hit the point is struck."""
        return 1 if point in POLLING else MAX_HITS if point in self.deep else self.max_hits


_SIGNS = frozenset({"hs.typing", "hs.receipt"})
_START = frozenset(
    {
        "tx.register_process",
        "tx.provision_account",
        "tx.lease.take",
        "tx.beat",
        "hs.profile_get",
        "hs.resolve_alias",
        "hs.get_state",
    }
)
EVERYTHING = dict.fromkeys(Scenario, Scope())
DEFAULT = EVERYTHING | {
    Scenario.EMPTY: Scope(max_hits=1, deep=frozenset({"tx.provision_account", "tx.admit", "hs.resolve_alias"})),
    Scenario.RESTART: Scope(max_hits=1),
    Scenario.ADOPT: Scope(max_hits=2, without=_START | _SIGNS),
    Scenario.DRAIN: Scope(without=frozenset({"hs.sync"})),
    Scenario.GAP: Scope(
        max_hits=2,
        only=frozenset(
            {
                "hs.sync",
                "hs.messages",
                "tx.admit",
                "tx.gap_page",
                "tx.gap_close",
                "tx.settle",
                "tx.open_turn",
                "tx.hand_off",
            }
        ),
    ),
    Scenario.DM: Scope(only=frozenset({"hs.join", "tx.admit", "tx.invite_result", "tx.open_turn"})),
    Scenario.UNSENT: Scope(max_hits=4, only=frozenset({"hs.send", "tx.fail_delivery", "tx.ack_delivery"})),
    Scenario.DEFERRED: Scope(only=frozenset({"tx.record_failure"})),
    Scenario.GAP_FAILS: Scope(only=frozenset({"tx.gap_failed"})),
    Scenario.EDIT: Scope(max_hits=2, only=frozenset({"tx.admit", "tx.restore_revision", "tx.hand_off"})),
    Scenario.THREAD: Scope(max_hits=1, only=frozenset({"hs.relations", "hs.get_event", "tx.hydrate_chunk"})),
    Scenario.MOVED_ON: Scope(max_hits=1, only=frozenset({"tx.resume_turn", "tx.supersede", "tx.hand_off"})),
    Scenario.LEAVE: Scope(only=frozenset({"tx.admit", "hs.join", "tx.open_turn"})),
    Scenario.UPGRADE: Scope(max_hits=2, only=frozenset({"hs.join", "hs.leave", "tx.admit", "tx.carry_over"})),
    Scenario.STRANGER: Scope(only=frozenset({"hs.leave", "tx.admit", "tx.invite_result"})),
}
"""Starting is `restart`'s matter, typing and receipts are `answer`'s; docs/fault-programme.md gives the reasons."""


def cases_of(scenario: Scenario, passages: Iterable[Passage], *, scope: Scope) -> list[Case]:
    """Every case for the points that a recorded run passed."""
    hits = Counter(passage.point for passage in passages if passage.moment == "before")
    return [
        Case(scenario, point, moment, number, fault)
        for point, count in sorted(hits.items())
        if scope.covers(point)
        for number in range(1, min(count, scope.hits(point)) + 1)
        for moment, fault in _FAULTS[point.partition(".")[0]]
    ]

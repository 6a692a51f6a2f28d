"""B2, B3: where the walks of a gap end, and what gives a gap up."""

from dataclasses import replace
from typing import Any

import pytest

from mindroom.core.errors import MatrixFailureClass as C
from mindroom.core.ids import Epoch, SyncToken
from mindroom.core.values import GapState, OrderKey
from mindroom.journal.records import Admission, Gap, GapPage
from mindroom.journal.stall import CEILING_EVENTS, SyncRecoveryStallTracker
from tests.support.events import ROOM

GAP = Gap(ROOM, SyncToken("s1"), SyncToken("p1"), floor=40, epoch=Epoch(1), opened_ms=0)
SECOND = replace(GAP, walk=2)
END = SyncToken("c1")
PLACE = OrderKey(40, 7, 7)


def walked(gap: Gap, *, end: SyncToken | None = END, events: int = 5, **page: Any) -> Gap:
    meant: dict[str, Any] = {"is_beginning": False, "is_known": False, "is_withheld": False} | page
    return SyncRecoveryStallTracker(gap).walked(GapPage(Admission(), PLACE, **meant), end=end, events=events)


def gives_up(gap: Gap, failure: C, *, is_hearing: bool = True) -> bool:
    return SyncRecoveryStallTracker(gap).gives_up(failure, is_hearing=is_hearing)


# ---- ends ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("events", [0, 5])
def test_a_page_leads_on_as_long_as_it_has_an_end_even_an_empty_one(events: int) -> None:
    after = walked(GAP, events=events)
    assert (after.state, after.walk, after.cursor, after.page, after.anchor) == ("repairable", 1, END, 1, PLACE)


@pytest.mark.parametrize("how", [{"end": None}, {"is_known": True}, {"is_beginning": True}])
def test_the_first_walk_is_followed_by_a_second_from_the_same_place_and_that_is_the_last(how: dict[str, Any]) -> None:
    after = walked(replace(GAP, page=3, cursor=END, events=300), **how)
    assert (after.state, after.walk, after.cursor, after.anchor, after.events) == ("repairable", 2, None, None, 0)
    assert after.page == 4, "page numbers go on"
    assert walked(SECOND, **how).state is GapState.REPAIRED


# ---- the ceiling -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("gap", [GAP, SECOND])
def test_a_walk_of_too_many_events_is_truncated(gap: Gap) -> None:
    assert walked(replace(gap, events=CEILING_EVENTS - 6)).state is GapState.REPAIRABLE
    assert walked(replace(gap, events=CEILING_EVENTS - 5)).state is GapState.TRUNCATED
    assert walked(replace(gap, events=CEILING_EVENTS - 5), end=None).state is not GapState.TRUNCATED


def test_a_server_that_only_sends_empty_pages_is_left_some_day() -> None:
    assert walked(replace(SECOND, events=CEILING_EVENTS - 1), events=0).state is GapState.TRUNCATED


@pytest.mark.parametrize("how", [{}, {"end": None}, {"is_beginning": True}])
def test_withheld_work_is_never_called_repaired(how: dict[str, Any]) -> None:
    assert walked(GAP, is_withheld=True, **how).state is GapState.TRUNCATED


# ---- refusals --------------------------------------------------------------------------------------------------------
REFUSED = replace(GAP, refusals=2, refused_seconds=600.0)


@pytest.mark.parametrize("failure", [C.FORBIDDEN, C.NOT_FOUND, C.BAD_REQUEST])
def test_a_third_refusal_after_ten_minutes_gives_up(failure: C) -> None:
    assert gives_up(REFUSED, failure)
    assert not gives_up(replace(REFUSED, refusals=1), failure)
    assert not gives_up(replace(REFUSED, refused_seconds=599.0), failure)


def test_nothing_is_given_up_while_sync_does_not_work_either() -> None:
    assert not gives_up(REFUSED, C.FORBIDDEN, is_hearing=False)


@pytest.mark.parametrize("failure", [c for c in C if c not in (C.FORBIDDEN, C.NOT_FOUND, C.BAD_REQUEST)])
def test_no_other_failure_ever_gives_up(failure: C) -> None:
    assert not gives_up(replace(REFUSED, refusals=1000, refused_seconds=1e6, attempts=1000), failure)

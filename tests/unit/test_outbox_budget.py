"""outbox.budget against a homeserver with a limit of its own: what is learned, and what it leaves (E5)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindroom.outbox.budget import CAPACITY, LOWEST_RATE, RESERVE, TOP_RATE, SendBudget


def test_e5_before_the_first_429_progress_waits_for_nothing_that_one_would_notice() -> None:
    budget = SendBudget()
    for _ in range(100):
        assert budget.progress_seconds(0.0) < 2.0
        budget = budget.spent(budget.at_seconds + budget.progress_seconds(budget.at_seconds))


def test_e5_after_a_429_progress_leaves_room_for_what_must_arrive() -> None:
    budget = SendBudget().limited(100.0, pause_seconds=5.0)
    assert budget.rate_per_second <= 0.2
    waits = budget.progress_seconds(100.0)
    assert waits >= 5.0 + RESERVE / 0.2 * 0.5
    assert budget.now(100.0 + waits).tokens == pytest.approx(1.0 + RESERVE, rel=0.5)


def test_e5_the_rate_recovers_slowly() -> None:
    learned = SendBudget().limited(0.0, pause_seconds=5.0).rate_per_second
    budget = SendBudget().limited(0.0, pause_seconds=5.0)
    assert budget.now(60.0).rate_per_second < 2 * learned
    assert budget.now(3600.0).rate_per_second == TOP_RATE


@given(st.lists(st.tuples(st.sampled_from(["spend", "limit", "wait"]), st.floats(0.0, 1e5)), max_size=60))
def test_e5_whatever_happens_the_budget_stays_in_its_bounds(events: list[tuple[str, float]]) -> None:
    budget, now = SendBudget(), 0.0
    for kind, seconds in events:
        if kind == "spend":
            budget = budget.spent(now)
        elif kind == "limit":
            budget = budget.limited(now, pause_seconds=seconds)
        else:
            now += seconds
            budget = budget.now(now)
        assert LOWEST_RATE <= budget.rate_per_second <= TOP_RATE
        assert budget.tokens <= CAPACITY
        assert budget.progress_seconds(now) >= 0.0


def test_e5_against_a_limit_of_one_in_five_seconds_few_progress_edits_are_refused() -> None:
    """A server as shipped: 0.2 sends in a second, burst 10; an answer that edits for ten minutes."""
    budget, server, at, refused, sent = SendBudget(), 10.0, 0.0, 0, 0
    while at < 600.0:
        wait = max(0.5, budget.progress_seconds(at))
        at, server = at + wait, min(10.0, server + wait * 0.2)
        budget = budget.spent(at)
        if server >= 1.0:
            server, sent = server - 1.0, sent + 1
        else:
            refused += 1
            budget = budget.limited(at, pause_seconds=(1.0 - server) / 0.2)
    assert refused <= 12
    assert sent >= 60

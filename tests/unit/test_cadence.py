"""responses.cadence: when progress edits are due (E8)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindroom.responses.cadence import DEFAULT_CADENCE, EditProgress, interval_seconds, wait_seconds

TIMES = st.floats(min_value=0, max_value=100_000)


@st.composite
def progresses(draw: st.DrawFn) -> EditProgress:
    elapsed = draw(TIMES)
    return EditProgress(
        elapsed_seconds=elapsed,
        since_last_edit_seconds=draw(st.floats(min_value=0, max_value=elapsed)),
        new_characters=draw(st.integers(min_value=0, max_value=5_000)),
        edits=draw(st.integers(min_value=0, max_value=100)),
    )


@pytest.mark.parametrize(("elapsed", "interval"), [(0, 0.5), (7.5, 2.75), (15, 5.0), (600, 5.0)])
def test_the_interval_ramps_from_half_a_second_to_five_over_fifteen(elapsed: float, interval: float) -> None:
    assert interval_seconds(elapsed) == pytest.approx(interval)


@given(st.tuples(TIMES, TIMES))
def test_the_interval_never_shrinks_and_stays_within_its_bounds(times: tuple[float, float]) -> None:
    earlier, later = sorted(times)
    assert 0.5 <= interval_seconds(earlier) <= interval_seconds(later) <= 5.0


@given(progresses())
def test_no_edit_for_fewer_than_48_new_characters_e8(progress: EditProgress) -> None:
    assert wait_seconds(replace(progress, new_characters=47)) is None


@given(progresses())
def test_no_edit_after_sixty_e8(progress: EditProgress) -> None:
    assert wait_seconds(replace(progress, edits=60)) is None


@given(progresses())
def test_with_enough_text_and_edits_left_an_edit_comes_within_five_seconds(progress: EditProgress) -> None:
    wait = wait_seconds(replace(progress, new_characters=48, edits=59))
    assert wait is not None
    assert 0 <= wait <= 5


@given(progresses())
def test_after_the_wait_the_edit_is_due(progress: EditProgress) -> None:
    ready = replace(progress, new_characters=48, edits=0)
    wait = wait_seconds(ready)
    assert wait is not None
    later = replace(
        ready,
        elapsed_seconds=ready.elapsed_seconds + wait,
        since_last_edit_seconds=ready.since_last_edit_seconds + wait,
    )
    assert wait_seconds(later) == pytest.approx(0, abs=1e-6)


@given(st.lists(st.floats(min_value=0.01, max_value=3), min_size=1, max_size=400), st.integers(1, 400))
def test_a_whole_stream_never_edits_faster_than_the_ramp_nor_more_than_sixty_times(
    gaps: list[float], characters: int
) -> None:
    now, edited_at, unseen, edits = 0.0, 0.0, 0, 0
    for gap in gaps:
        now += gap
        unseen += characters
        if wait_seconds(EditProgress(now, now - edited_at, unseen, edits)) == 0:
            assert unseen >= DEFAULT_CADENCE.min_new_characters
            assert now - edited_at >= interval_seconds(edited_at) - 1e-6
            edited_at, unseen, edits = now, 0, edits + 1
    assert edits <= 60

"""B1: SyncCheckpointTrust is a pure state machine: cold, pending, certified, uncertain."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindroom.core.values import Trust
from mindroom.journal.trust import CheckpointTrust, TrustEvent, advance

COLD = CheckpointTrust(Trust.COLD, TrustEvent.NO_TOKEN)


@pytest.mark.parametrize(
    ("state", "event", "expected"),
    [
        (Trust.COLD, TrustEvent.NO_TOKEN, Trust.COLD),
        (Trust.COLD, TrustEvent.LOADED, Trust.PENDING),
        (Trust.COLD, TrustEvent.ADMITTED, Trust.CERTIFIED),
        (Trust.COLD, TrustEvent.ADMISSION_FAILED, Trust.COLD),
        (Trust.PENDING, TrustEvent.ADMITTED, Trust.CERTIFIED),
        (Trust.PENDING, TrustEvent.ADMISSION_FAILED, Trust.UNCERTAIN),
        (Trust.CERTIFIED, TrustEvent.ADMITTED, Trust.CERTIFIED),
        (Trust.CERTIFIED, TrustEvent.ADMISSION_FAILED, Trust.UNCERTAIN),
        (Trust.CERTIFIED, TrustEvent.LOADED, Trust.PENDING),
        (Trust.UNCERTAIN, TrustEvent.ADMITTED, Trust.CERTIFIED),
        (Trust.UNCERTAIN, TrustEvent.ADMISSION_FAILED, Trust.UNCERTAIN),
        (Trust.UNCERTAIN, TrustEvent.LOADED, Trust.PENDING),
        (Trust.COLD, TrustEvent.TOKEN_REJECTED, Trust.COLD),
        (Trust.PENDING, TrustEvent.TOKEN_REJECTED, Trust.UNCERTAIN),
        (Trust.CERTIFIED, TrustEvent.TOKEN_REJECTED, Trust.UNCERTAIN),
        (Trust.PENDING, TrustEvent.WENT_BACK, Trust.UNCERTAIN),
        (Trust.UNCERTAIN, TrustEvent.RESYNCED, Trust.CERTIFIED),
    ],
)
def test_the_table_of_transitions(state: Trust, event: TrustEvent, expected: Trust) -> None:
    moved = advance(CheckpointTrust(state, TrustEvent.NO_TOKEN), event)
    assert moved.state is expected
    assert moved.reason is (event if expected is not state else TrustEvent.NO_TOKEN)


@pytest.mark.parametrize("state", [Trust.PENDING, Trust.CERTIFIED, Trust.UNCERTAIN])
def test_having_no_token_says_nothing_about_a_state_that_has_one(state: Trust) -> None:
    trust = CheckpointTrust(state, TrustEvent.LOADED)
    assert advance(trust, TrustEvent.NO_TOKEN) is trust


@given(st.lists(st.sampled_from(TrustEvent)))
def test_every_history_of_events_leads_somewhere_and_only_an_admission_certifies(events: list[TrustEvent]) -> None:
    """Total, and trust is never higher than the last decisive event allows."""
    trust = COLD
    for event in events:
        trust = advance(trust, event)
    decisive = [event for event in events if event is not TrustEvent.NO_TOKEN]
    admissions = (TrustEvent.ADMITTED, TrustEvent.RESYNCED)
    doubts = (TrustEvent.ADMISSION_FAILED, TrustEvent.TOKEN_REJECTED, TrustEvent.WENT_BACK)
    if trust.state is Trust.CERTIFIED:
        assert decisive[-1] in admissions
    if decisive and decisive[-1] in admissions:
        assert trust.state is Trust.CERTIFIED
    if trust.state is Trust.UNCERTAIN:
        assert decisive[-1] in doubts


@given(st.sampled_from(Trust), st.sampled_from(TrustEvent))
def test_an_event_that_moves_nothing_keeps_the_reason(state: Trust, event: TrustEvent) -> None:
    """The reason and its since-when belong to the change of state."""
    trust = CheckpointTrust(state, TrustEvent.NO_TOKEN)
    moved = advance(trust, event)
    assert moved is trust or moved.state is not state
    assert advance(moved, event) is moved

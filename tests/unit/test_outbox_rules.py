"""outbox.rules: what is done with a row and what a refused send means, for every combination (E3, E4, E6)."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindroom.core.errors import MatrixDeliveryFailure, MatrixFailureClass
from mindroom.core.ids import DeliveryId, DeviceId, Epoch, EventId, SyncToken
from mindroom.core.values import Stage
from mindroom.matrix.failures import classify
from mindroom.outbox.gate import Permission
from mindroom.outbox.records import Delivery, DeliveryKey, DeliveryState, Purpose
from mindroom.outbox.rules import FORBIDDEN, TOMBSTONED, Facts, Remedy, Step, Tried, absent, next_step, remedy
from tests.support.events import ROOM

DEVICE, OTHER = DeviceId("DEVICE"), DeviceId("OTHER")
THREAD = {"m.relates_to": {"rel_type": "m.thread", "event_id": "$root"}}


def delivery(**changes: object) -> Delivery:
    """A claimed FINAL of a moment ago."""
    made = Delivery(
        key=DeliveryKey(DeliveryId(UUID(int=1)), Stage.FINAL),
        turn=None,
        purpose=Purpose.ANSWER,
        room=ROOM,
        epoch=Epoch(1),
        content={},
        notify=(),
        wire=None,
        device_id=DEVICE,
        attempts=1,
        state=DeliveryState.CLAIMED,
        acked_event=None,
        initial_state=None,
        initial_event=None,
        queued_seconds=5.0,
        claimed_seconds=5.0,
        attempted_seconds=5.0,
        claim_token=SyncToken("s1"),
        in_truncated_gap=False,
        last_error="",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def facts(**changes: object) -> Facts:
    """The room may be written to and was heard just now."""
    return replace(Facts(Permission.SEND, DEVICE, False, 0.0), **changes)  # type: ignore[arg-type]


seconds = st.sampled_from([0.0, 1.0, 59.0, 61.0, 1799.0, 1801.0, 90000.0])
rows = st.builds(
    delivery,
    key=st.sampled_from([DeliveryKey(DeliveryId(UUID(int=1)), stage) for stage in (Stage.INITIAL, Stage.FINAL)]),
    purpose=st.sampled_from(Purpose),
    device_id=st.sampled_from([DEVICE, OTHER]),
    state=st.sampled_from(DeliveryState),
    initial_state=st.none() | st.sampled_from(DeliveryState),
    initial_event=st.none() | st.just(EventId("$i")),
    queued_seconds=seconds,
    claimed_seconds=seconds,
    attempted_seconds=seconds,
    in_truncated_gap=st.booleans(),
    last_error=st.sampled_from(["", "network", FORBIDDEN, TOMBSTONED]),
)
anything = st.builds(
    facts, permission=st.sampled_from(Permission), is_tombstoned=st.booleans(), heard_seconds=st.none() | seconds
)


@given(rows, anything)
def test_e4_nothing_goes_out_while_it_may_stand_in_the_room_already(row: Delivery, known: Facts) -> None:
    """E4: a claimed row is sent as it is in its scope only, and anew only when sync has shown that it is absent."""
    step = next_step(row, known).step
    if row.state is not DeliveryState.CLAIMED:
        assert step is not Step.RESEND
        return
    same_scope = row.device_id == known.device_id and row.claimed_seconds < 1800
    if step is Step.RESEND:
        assert same_scope
    if step in (Step.CLAIM, Step.ASK_ROOM):
        assert not same_scope
        assert known.heard_seconds is not None
        assert row.attempted_seconds - known.heard_seconds >= 60
        assert (step is Step.ASK_ROOM) is row.in_truncated_gap


@given(rows, anything)
def test_e3_e10_f2_nothing_goes_out_without_leave_nor_past_a_claimed_placeholder(row: Delivery, known: Facts) -> None:
    """E3, E10, F2."""
    step = next_step(row, known).step
    if step in (Step.CLAIM, Step.RESEND, Step.ASK_ROOM):
        assert known.permission is Permission.SEND
        assert row.state in (DeliveryState.QUEUED, DeliveryState.CLAIMED)
    if row.state is DeliveryState.QUEUED and row.key.stage is Stage.FINAL:
        assert step is not Step.CLAIM or row.initial_state is not DeliveryState.CLAIMED


@pytest.mark.parametrize(
    ("row", "known", "step"),
    [
        (delivery(last_error=FORBIDDEN), facts(heard_seconds=None), Step.LATER),
        (delivery(last_error=FORBIDDEN, attempted_seconds=70.0), facts(heard_seconds=11.0), Step.LATER),
        (delivery(last_error=FORBIDDEN, attempted_seconds=70.0), facts(heard_seconds=9.0), Step.FAIL),
        (delivery(last_error=FORBIDDEN), facts(is_tombstoned=True, heard_seconds=None), Step.FOR_SUCCESSOR),
        (delivery(state=DeliveryState.QUEUED, last_error=TOMBSTONED), facts(is_tombstoned=True), Step.LATER),
        (delivery(state=DeliveryState.QUEUED, last_error=TOMBSTONED), facts(), Step.CLAIM),
        (
            delivery(state=DeliveryState.QUEUED, last_error=TOMBSTONED, queued_seconds=86400.0),
            facts(is_tombstoned=True),
            Step.FAIL,
        ),
    ],
)
def test_e6_f4_a_forbidden_row_waits_until_sync_explains_it(row: Delivery, known: Facts, step: Step) -> None:
    """E6, F4: departed is retired by sync itself, upgraded waits for the successor, else it can never be said."""
    assert next_step(row, known).step is step


def test_e3_a_placeholder_that_was_never_sent_is_given_up_and_an_answer_is_not() -> None:
    assert absent(delivery()).step is Step.CLAIM
    initial = replace(delivery().key, stage=Stage.INITIAL)
    assert absent(delivery(key=initial)).step is Step.RETIRE


@pytest.mark.parametrize(
    ("status", "errcode", "wanted"),
    [
        (408, "", Remedy.AGAIN),
        (429, "M_LIMIT_EXCEEDED", Remedy.AGAIN),
        (500, "M_UNKNOWN", Remedy.AGAIN),
        (502, "", Remedy.AGAIN),
        (401, "M_UNKNOWN_TOKEN", Remedy.AGAIN),
        (401, "M_USER_LOCKED", Remedy.AGAIN),
        (403, "M_CONSENT_NOT_GIVEN", Remedy.AGAIN),
        (403, "M_RESOURCE_LIMIT_EXCEEDED", Remedy.AGAIN),
        (403, "M_USER_SUSPENDED", Remedy.AGAIN),
        (403, "", Remedy.AGAIN),
        (403, "M_FORBIDDEN", Remedy.LOOK_UP),
        (403, "M_GUEST_ACCESS_FORBIDDEN", Remedy.FAIL),
        (404, "M_NOT_FOUND", Remedy.FAIL),
        (413, "M_TOO_LARGE", Remedy.SMALLER),
        (413, "", Remedy.SMALLER),
        (400, "M_DUPLICATE_ANNOTATION", Remedy.SAID),
        (400, "M_UNKNOWN", Remedy.FETCH_RELATED),
        (400, "M_INVALID_PARAM", Remedy.FETCH_RELATED),
        (400, "M_BAD_JSON", Remedy.FAIL),
    ],
)
def test_e6_what_follows_an_answer_of_the_homeserver(status: int, errcode: str, wanted: Remedy) -> None:
    failure = MatrixDeliveryFailure("send", classify(status, errcode), status=status, errcode=errcode)
    assert remedy(failure, stage=Stage.FINAL, content=THREAD, tried=Tried()) is wanted


def test_e6_a_relation_is_dropped_only_after_its_event_was_asked_for_and_only_where_there_is_one() -> None:
    failure = MatrixDeliveryFailure("send", MatrixFailureClass.BAD_REQUEST, status=400, errcode="M_UNKNOWN")
    assert remedy(failure, stage=Stage.FINAL, content=THREAD, tried=Tried(fetched=True)) is Remedy.PLAIN
    assert remedy(failure, stage=Stage.FINAL, content={}, tried=Tried(fetched=True)) is Remedy.FAIL
    assert remedy(failure, stage=Stage.INITIAL, content=THREAD, tried=Tried()) is Remedy.FAIL


@pytest.mark.parametrize(
    ("errors", "others", "wanted"), [(4, 9, Remedy.AGAIN), (5, 0, Remedy.AGAIN), (5, 1, Remedy.FAIL)]
)
def test_e6_a_5xx_is_a_deliverys_own_fault_only_while_others_go_out(errors: int, others: int, wanted: Remedy) -> None:
    failure = MatrixDeliveryFailure("send", MatrixFailureClass.SERVER, status=500)
    tried = Tried(server_errors=errors, said_by_others=others)
    assert remedy(failure, stage=Stage.FINAL, content={}, tried=tried) is wanted
    slow = MatrixDeliveryFailure("send", MatrixFailureClass.SERVER, status=408)
    assert remedy(slow, stage=Stage.FINAL, content={}, tried=tried) is Remedy.AGAIN

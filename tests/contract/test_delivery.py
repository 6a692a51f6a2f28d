"""What is owed is said, once, in order, whatever the homeserver and the network do."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from mindroom.core.content import DELIVERY_KEY
from mindroom.core.errors import MatrixDeliveryFailure, MatrixFailure, MatrixFailureClass
from mindroom.core.ids import DeliveryId, DeviceId
from mindroom.core.ports import WirePayload
from mindroom.core.values import Stage
from mindroom.outbox.worker import IN_FLIGHT, IN_FLIGHT_IN_ROOM
from tests.support.events import (
    ALICE,
    ME,
    OTHER_ROOM,
    ROOM,
    Event,
    joined_room,
    left_room,
    member,
    message,
    redaction,
    said,
    state,
)
from tests.support.spine import LostReply, Spine, open_spine

NETWORK_CLASS = MatrixFailureClass.NETWORK
NETWORK = MatrixDeliveryFailure("send", NETWORK_CLASS)
LOST = LostReply(NETWORK)


def refused(status: int, errcode: str, failure_class: MatrixFailureClass) -> MatrixDeliveryFailure:
    return MatrixDeliveryFailure("send", failure_class, status=status, errcode=errcode)


def limited(seconds: float) -> MatrixDeliveryFailure:
    return MatrixDeliveryFailure(
        "send",
        MatrixFailureClass.RATE_LIMITED,
        status=429,
        errcode="M_LIMIT_EXCEEDED",
        retry_after_seconds=seconds,
    )


@asynccontextmanager
async def serving(dsn: str, *rooms: str, thread_mode: str = "thread") -> AsyncIterator[Spine]:
    async with open_spine(dsn, thread_mode=thread_mode) as spine:
        await spine.start()
        spine.answer(spine.room_batch(*rooms))
        await spine.settle()
        yield spine


async def restart(spine: Spine, *events: Event) -> None:
    """Crash, start, and admit a first response with these events."""
    await spine.crash()
    await spine.start()
    spine.answer(spine.batch((ROOM, joined_room(events))) if events else spine.batch())
    await spine.settle()


def sends(spine: Spine, stage: str) -> list[WirePayload]:
    """Every attempt of that stage."""
    return [wire for wire in spine.gateway.attempts if wire.txn_id.startswith(f"{stage}.")]


async def states(spine: Spine) -> Sequence[tuple[str, str]]:
    """Stage and state of each row."""
    return await spine.rows("SELECT stage, state FROM delivery_outbox ORDER BY queued_at, stage DESC")


async def fate(spine: Spine, room: str = ROOM) -> tuple[str, str | None]:
    """State and reason of the room's newest FINAL."""
    rows = await spine.rows(
        "SELECT state, last_error FROM delivery_outbox WHERE stage = 'final' AND room_id = $1 ORDER BY queued_at DESC",
        room,
    )
    return rows[0][0], rows[0][1]


async def hear_on(spine: Spine, *rooms: tuple[str, Event]) -> None:
    """A response that was asked for after everything so far is admitted, and the rows that wait for one look again."""
    await spine.advance(65, step_seconds=5)
    spine.answer(spine.batch(), spine.batch(*rooms))
    await spine.settle()
    await spine.advance(6)


# ---- E1, E2: identity ------------------------------------------------------------------------------------------------
async def test_e1_r16_a_lost_reply_is_sent_again_as_the_same_payload(database_dsn: str) -> None:
    """R16, E1: same transaction id, same bytes, one event."""
    async with serving(database_dsn) as spine:
        spine.gateway.fail("final", LOST, LOST)
        await spine.hear(message("$1"))
        await spine.advance(10)
        attempts = sends(spine, "final")
        assert len(attempts) == 3
        assert attempts[0] == attempts[1] == attempts[2]
        assert spine.finals() == [["$1"]]
        assert await states(spine) == [("initial", "retired"), ("final", "acked")]


async def test_e1_the_payload_is_committed_before_it_leaves(database_dsn: str) -> None:
    """E1: at the moment of the send the row is claimed and holds these very bytes."""
    async with serving(database_dsn) as spine:
        spine.gateway.held["final"] = held = asyncio.Event()
        await spine.hear(message("$1"))
        rows = await spine.rows("SELECT state, wire ->> 'txn_id', txn_id FROM delivery_outbox WHERE stage = 'final'")
        assert rows == [("claimed", sends(spine, "final")[0].txn_id, sends(spine, "final")[0].txn_id)]
        held.set()
        await spine.settle()


async def test_e2_the_echo_may_come_before_the_reply(database_dsn: str) -> None:
    """E2: the first acknowledgement wins; the late reply changes nothing."""
    async with serving(database_dsn) as spine:
        spine.gateway.held["final"] = held = asyncio.Event()
        await spine.hear(message("$1"))
        wire = sends(spine, "final")[0]
        delivery = DeliveryId(UUID(wire.txn_id.partition(".")[2]))
        await spine.hear(said("$echo", Stage.FINAL, delivery=delivery, sources=["$1"]))
        assert await spine.value("SELECT acked_event_id FROM delivery_outbox WHERE stage = 'final'") == "$echo"
        held.set()
        await spine.settle()
        assert await spine.value("SELECT acked_event_id FROM delivery_outbox WHERE stage = 'final'") == "$echo"
        assert len(sends(spine, "final")) == 1


async def test_r14_restarts_in_the_middle_of_a_delivery_show_one_reply(database_dsn: str) -> None:
    """R14: the homeserver has the event, every reply is lost, the process dies each time."""
    async with serving(database_dsn) as spine:
        spine.gateway.fail("final", *[LOST] * 3)
        await spine.hear(message("$1"))
        for _ in range(4):
            await restart(spine)
            await spine.advance(5)
        assert spine.finals() == [["$1"]]
        assert await states(spine) == [("initial", "retired"), ("final", "acked")]


def trouble(spine: Spine, kind: str) -> None:
    """What the next minutes of a process meet: a commit that fails, or a send that hangs or loses its reply."""
    spine.database.outage = lambda name: name == kind
    if kind == "send hangs":
        spine.gateway.held["final"] = asyncio.Event()
    elif kind == "reply lost":
        spine.gateway.fail("final", *[LOST] * 3)
    elif kind == "not sent":
        spine.gateway.fail("final", *[NETWORK] * 3)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("placeholder", [True, False])
async def test_r14_e2_killed_again_and_again_at_every_point_of_a_delivery(
    database_dsn: str, seed: int, placeholder: bool
) -> None:
    """R14, E1, E2: before and after each commit and each send, a dozen times, with a placeholder and without."""
    rng = random.Random(seed)
    points = ["hand_off", "claim_delivery", "ack_delivery", "fail_delivery", "send hangs", "reply lost", "not sent"]
    async with serving(database_dsn) as spine:
        if placeholder:
            spine.model.go.clear()
        await spine.hear(message("$1"))
        await spine.advance(1)
        trouble(spine, rng.choice(points))
        spine.model.go.set()
        for _ in range(12):
            await spine.advance(rng.choice([0.1, 1, 3]))
            await spine.crash()
            spine.gateway.held.clear()
            spine.gateway.faults.clear()
            trouble(spine, rng.choice(points))
            await spine.start()
            spine.answer(spine.batch())
            await spine.settle()
        spine.gateway.held.clear()
        spine.gateway.faults.clear()
        await spine.crash()
        trouble(spine, "none")
        await restart(spine)
        await spine.advance(30)
        assert spine.finals() == [["$1"]]
        assert (await states(spine))[-1] == ("final", "acked")
        first, *more = sends(spine, "final")
        assert all(wire == first for wire in more)


# ---- E3: the two stages ----------------------------------------------------------------------------------------------
async def test_e3_a_final_never_overtakes_a_claimed_initial(database_dsn: str) -> None:
    """E3: while the placeholder is on its way the answer waits, then it edits it."""
    async with serving(database_dsn) as spine:
        spine.gateway.held["initial"] = held = asyncio.Event()
        spine.model.go.clear()
        await spine.hear(message("$1"))
        await spine.advance(1)
        spine.model.go.set()
        await spine.advance(3)
        assert await states(spine) == [("initial", "claimed"), ("final", "queued")]
        assert sends(spine, "final") == []
        held.set()
        await spine.settle()
        placeholder, final = spine.gateway.visible()
        assert final[1].content["m.relates_to"] == {"rel_type": "m.replace", "event_id": placeholder[0]}


async def test_e3_an_unclaimed_initial_is_dropped(database_dsn: str) -> None:
    """E3: an answer that is there within the delay needs no placeholder."""
    async with serving(database_dsn) as spine:
        await spine.hear(message("$1"))
        await spine.advance(5)
        assert spine.gateway.stages() == ["final"]
        assert await states(spine) == [("initial", "retired"), ("final", "acked")]


async def test_e3_a_refused_initial_never_holds_the_answer_back(database_dsn: str) -> None:
    """E3: the answer becomes a plain message in the thread."""
    async with serving(database_dsn) as spine:
        spine.gateway.fail("initial", refused(400, "M_UNKNOWN", MatrixFailureClass.BAD_REQUEST))
        spine.model.go.clear()
        await spine.hear(message("$1"))
        await spine.advance(1)
        spine.model.go.set()
        await spine.settle()
        ((_, final),) = spine.gateway.visible()
        assert "m.new_content" not in final.content
        assert final.content["m.relates_to"]["rel_type"] == "m.thread"
        assert await states(spine) == [("initial", "failed"), ("final", "acked")]


async def test_e3_a_placeholder_with_a_lost_reply_is_found_by_its_echo(database_dsn: str) -> None:
    """E3, A6: the row is acknowledged by sync, and the answer edits what stands there."""
    async with serving(database_dsn) as spine:
        spine.gateway.fail("initial", *[LOST] * 100)
        spine.model.go.clear()
        await spine.hear(message("$1"))
        await spine.advance(1)
        delivery = DeliveryId(UUID(sends(spine, "initial")[0].txn_id.partition(".")[2]))
        await spine.hear(said("$said0", Stage.INITIAL, delivery=delivery))
        spine.model.go.set()
        await spine.advance(30)
        final = spine.gateway.visible()[-1][1]
        assert final.content["m.relates_to"] == {"rel_type": "m.replace", "event_id": "$said0"}


# ---- E4: unknown outcomes --------------------------------------------------------------------------------------------
async def test_e4_within_half_an_hour_the_same_device_sends_the_same_again(database_dsn: str) -> None:
    """E4."""
    async with serving(database_dsn) as spine:
        spine.gateway.fail("final", LOST)
        await spine.hear(message("$1"))
        await spine.crash()
        await spine.advance(29 * 60, step_seconds=60)
        await restart(spine)
        await spine.advance(2)
        first, second = sends(spine, "final")
        assert first == second
        assert spine.finals() == [["$1"]]


@pytest.mark.parametrize("change", ["after half an hour", "on another device"])
async def test_e4_otherwise_it_is_not_sent_again_blindly(database_dsn: str, change: str) -> None:
    """E4: the transaction scope is gone, so another send could be a second message; the echo settles it."""
    async with serving(database_dsn) as spine:
        spine.gateway.fail("final", LOST)
        await spine.hear(message("$1"))
        wire = sends(spine, "final")[0]
        await spine.crash()
        if change == "on another device":
            spine.gateway.device_id = DeviceId("OTHER")
        else:
            await spine.advance(31 * 60, step_seconds=60)
        delivery = DeliveryId(UUID(wire.txn_id.partition(".")[2]))
        await restart(spine, said("$said0", Stage.FINAL, delivery=delivery, sources=["$1"], with_txn=False))
        await spine.advance(300, step_seconds=10)
        assert len(sends(spine, "final")) == 1
        assert spine.finals() == [["$1"]]
        assert await states(spine) == [("initial", "retired"), ("final", "acked")]


@pytest.mark.parametrize("change", ["after half an hour", "on another device"])
async def test_e4_a_send_that_never_happened_is_made_up_for(database_dsn: str, change: str) -> None:
    """E4: sync has shown everything since, and no echo among it: the answer goes out, once."""
    async with serving(database_dsn) as spine:
        spine.gateway.fail("final", NETWORK)
        await spine.hear(message("$1"))
        await spine.crash()
        if change == "on another device":
            spine.gateway.device_id = DeviceId("OTHER")
            await spine.advance(70, step_seconds=10)
        else:
            await spine.advance(31 * 60, step_seconds=60)
        await restart(spine)
        await spine.advance(120, step_seconds=5)
        assert spine.finals() == [["$1"]]
        assert await states(spine) == [("initial", "retired"), ("final", "acked")]


async def test_e3_e4_a_placeholder_that_was_never_sent_is_given_up(database_dsn: str) -> None:
    """E3: proven absent by sync, so the answer becomes a plain message."""
    async with serving(database_dsn) as spine:
        spine.gateway.fail("initial", *[NETWORK] * 100)
        spine.model.go.clear()
        await spine.hear(message("$1"))
        await spine.advance(1)
        await spine.crash()
        spine.gateway.device_id = DeviceId("OTHER")
        spine.model.go.set()
        await spine.advance(70, step_seconds=10)
        await restart(spine)
        await spine.advance(30)
        assert spine.gateway.stages() == ["final"]
        assert "m.new_content" not in spine.gateway.visible()[0][1].content
        assert await states(spine) == [("initial", "retired"), ("final", "acked")]


async def unknown_in_truncated_gap(spine: Spine, fault: Exception) -> None:
    """A FINAL of another device whose fate sync cannot tell: a part of the timeline since the claim is lost to it."""
    spine.gateway.fail("final", fault)
    await spine.hear(message("$1"))
    await spine.crash()
    spine.gateway.device_id = DeviceId("OTHER")
    await spine.advance(70, step_seconds=10)
    await spine.rows(
        "INSERT INTO room_history_recovery (principal, room_id, to_token, from_token, floor, epoch, state) "
        "VALUES (1, $1, 't', 'f', 0, 1, 'truncated')",
        ROOM,
    )


def read_from(spine: Spine) -> list[str]:
    """Where each reading of the room began."""
    return [start for _, start in spine.room.asked if not start.startswith("$")]


async def test_e4_in_a_truncated_gap_the_room_shows_that_it_was_said(database_dsn: str) -> None:
    """E4: found behind other events of ours, read from the token of the claim on; never a second message."""
    async with serving(database_dsn) as spine:
        await spine.hear(message("$0"))
        await unknown_in_truncated_gap(spine, LOST)
        claimed_at = await spine.value("SELECT claim_token FROM delivery_outbox WHERE state = 'claimed'")
        await restart(spine)
        await spine.advance(120, step_seconds=5)
        assert read_from(spine)[0] == claimed_at
        assert len(sends(spine, "final")) == 2
        assert spine.finals() == [["$0"], ["$1"]]
        assert await fate(spine) == ("acked", None)


async def test_e4_in_a_truncated_gap_what_the_room_does_not_hold_is_sent(database_dsn: str) -> None:
    """E4: read to the end and not found, so it never happened."""
    async with serving(database_dsn) as spine:
        await spine.hear(message("$0"))
        await unknown_in_truncated_gap(spine, NETWORK)
        await restart(spine)
        await spine.advance(120, step_seconds=5)
        assert len(read_from(spine)) == 2
        assert spine.finals() == [["$0"], ["$1"]]


@pytest.mark.parametrize(
    "failure", [refused(403, "M_FORBIDDEN", MatrixFailureClass.FORBIDDEN), MatrixFailure("messages", NETWORK_CLASS)]
)
async def test_e4_what_nobody_can_tell_stays_owed_and_is_never_said_twice(
    database_dsn: str, failure: MatrixFailure
) -> None:
    """E4: unknown is neither failed nor doubled, and the conversation goes on."""
    async with serving(database_dsn) as spine:
        await unknown_in_truncated_gap(spine, LOST)
        spine.room.failure = failure
        await restart(spine)
        await spine.advance(700, step_seconds=20)
        assert await states(spine) == [("initial", "retired"), ("final", "claimed")]
        await spine.hear(message("$2", thread="$1"))
        await spine.advance(2)
        assert spine.finals() == [["$1"], ["$2"]]
        spine.room.failure = None
        await spine.advance(400, step_seconds=20)
        assert len(sends(spine, "final")) == 2
        assert await spine.value("SELECT count(*) FROM delivery_outbox WHERE state = 'claimed'") == 0


# ---- E5: limits ------------------------------------------------------------------------------------------------------
async def test_e5_a_429_pauses_every_room(database_dsn: str) -> None:
    """E5: limits are per user, so no room tries before the pause is over."""
    async with serving(database_dsn, ROOM, OTHER_ROOM) as spine:
        spine.gateway.fail(ROOM, limited(60))
        await spine.hear(message("$1"))
        await spine.hear(message("$2"), room=OTHER_ROOM)
        await spine.advance(50)
        assert len(spine.gateway.attempts) == 1
        await spine.advance(15)
        assert spine.finals() == [["$1"]]
        assert spine.finals(OTHER_ROOM) == [["$2"]]
        assert spine.metrics.registry.get_sample_value("mindroom_rate_limited_seconds_total") == 60


async def test_e5_r27_two_minutes_of_429_drop_progress_and_never_the_final(database_dsn: str) -> None:
    """R27: edits are refused for two minutes; the answer arrives, and nothing hammers."""
    async with serving(database_dsn) as spine:
        spine.model.go.clear()
        await spine.hear(message("$1"))
        await spine.advance(1)
        spine.gateway.fail("progress", *[limited(20)] * 50)
        spine.gateway.fail("final", *[limited(20)] * 5)
        spine.model.answer, spine.model.pieces = "word " * 400, 40
        spine.model.go.set()
        await spine.advance(130)
        assert spine.finals() == [["$1"]]
        assert len(spine.gateway.attempts) <= 12


# ---- E11 -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("comes_back", [True, False])
async def test_e11_the_hand_over_waits_for_the_progress_edit_in_flight(database_dsn: str, comes_back: bool) -> None:
    """E11: at most five seconds, so that what is newer stays newer."""
    async with serving(database_dsn) as spine:
        spine.gateway.held["progress"] = held = asyncio.Event()
        spine.model.go.clear()
        spine.model.finish.clear()
        await spine.hear(message("$1"))
        await spine.advance(1)
        spine.model.answer = "word " * 40
        spine.model.go.set()
        await spine.advance(2)
        assert sends(spine, "progress") != []
        spine.model.finish.set()
        await spine.advance(3)
        assert await spine.value("SELECT count(*) FROM turns WHERE state = 'open'") == 1
        if comes_back:
            held.set()
            await spine.settle()
        else:
            await spine.advance(3)
        assert await spine.value("SELECT count(*) FROM turns WHERE state = 'open'") == 0
        assert spine.finals() == [["$1"]]


async def answered_with_progress(spine: Spine) -> tuple[DeliveryId, str]:
    """An answer that edited its placeholder and whose echoes are admitted; its delivery and placeholder."""
    spine.model.go.clear()
    await spine.hear(message("$1"))
    await spine.advance(1)
    spine.model.go.set()
    await spine.advance(1)
    (placeholder, _), (final, wire) = spine.gateway.visible()
    delivery = DeliveryId(UUID(wire.txn_id.partition(".")[2]))
    await spine.hear(said(final, Stage.FINAL, delivery=delivery, sources=["$1"], edits=placeholder, ts=5000))
    return delivery, placeholder


@pytest.mark.parametrize(("ts", "repeats"), [(5001, 1), (4999, 0)])
async def test_e11_a_progress_edit_newer_than_its_final_makes_it_said_once_more(
    database_dsn: str, ts: int, repeats: int
) -> None:
    """E11: however often that edit is shown, and after a restart; an older edit hides nothing."""
    async with serving(database_dsn) as spine:
        delivery, placeholder = await answered_with_progress(spine)
        late = said("$late", Stage.PROGRESS, delivery=delivery, edits=placeholder, ts=ts, with_txn=False)
        await spine.hear(late)
        await spine.hear(late)
        await restart(spine, late)
        await spine.advance(30)
        first, *more = sends(spine, "final")
        assert len(more) == repeats
        for again in more:
            assert again.txn_id != first.txn_id
            assert again.content["m.new_content"]["body"] == first.content["m.new_content"]["body"]
            assert again.content["m.relates_to"] == {"rel_type": "m.replace", "event_id": placeholder}
            assert again.content["m.mentions"] == {}
            assert again.content[DELIVERY_KEY]["delivery"] == again.txn_id.partition(".")[2]


async def test_e11_a_redacted_answer_is_not_said_again(database_dsn: str) -> None:
    """E11, A4."""
    async with serving(database_dsn) as spine:
        delivery, placeholder = await answered_with_progress(spine)
        await spine.hear(redaction("$r", placeholder))
        await spine.hear(said("$late", Stage.PROGRESS, delivery=delivery, edits=placeholder, ts=9000, with_txn=False))
        await spine.advance(30)
        assert len(sends(spine, "final")) == 1


# ---- E6, rooms apart -------------------------------------------------------------------------------------------------
async def test_e6_a_permanent_refusal_in_one_room_delays_no_other(database_dsn: str) -> None:
    """E6: the reason stays on the row, the other room has its answer at once."""
    async with serving(database_dsn, ROOM, OTHER_ROOM) as spine:
        spine.gateway.fail(ROOM, refused(403, "M_FORBIDDEN", MatrixFailureClass.FORBIDDEN))
        await spine.hear(message("$1"))
        await spine.hear(message("$2"), room=OTHER_ROOM)
        assert spine.finals(OTHER_ROOM) == [["$2"]]
        assert await fate(spine) == ("claimed", "M_FORBIDDEN")
        await hear_on(spine)
        assert await fate(spine) == ("failed", "M_FORBIDDEN")
        assert len(spine.gateway.attempts) == 2


async def test_e6_a_room_whose_sends_hang_delays_no_other(database_dsn: str) -> None:
    async with serving(database_dsn, ROOM, OTHER_ROOM) as spine:
        spine.gateway.held[ROOM] = asyncio.Event()
        await spine.hear(message("$1"))
        await spine.hear(message("$2"), room=OTHER_ROOM)
        assert spine.finals(OTHER_ROOM) == [["$2"]]
        spine.gateway.held[ROOM].set()
        await spine.settle()
        assert spine.finals() == [["$1"]]


async def test_e5_progress_edits_leave_room_for_what_must_arrive(database_dsn: str) -> None:
    """E5: after a 429 a progress edit waits for a token of its own, while another answer goes out at once."""
    async with serving(database_dsn, ROOM, OTHER_ROOM) as spine:
        spine.model.held["long"] = held = asyncio.Event()
        spine.model.finish.clear()
        spine.model.answer, spine.model.pieces = "word " * 400, 40
        await spine.hear(message("$1", "long"))
        await spine.advance(1)
        spine.gateway.fail("progress", limited(5))
        held.set()
        await spine.advance(10)
        assert len(sends(spine, "progress")) == 1
        spine.model.finish.set()
        await spine.hear(message("$2"), room=OTHER_ROOM)
        assert spine.finals(OTHER_ROOM) == [["$2"]]
        await spine.advance(1)
        assert spine.finals() == [["$1"]]


async def test_e5_a_progress_edit_that_was_refused_comes_with_the_newest_text(database_dsn: str) -> None:
    """E5: the model pauses, and the room sees all that it has written once the homeserver takes edits again."""
    async with serving(database_dsn) as spine:
        spine.model.held["long"] = held = asyncio.Event()
        spine.model.finish.clear()
        spine.model.answer, spine.model.pieces = "word " * 400, 40
        await spine.hear(message("$1", "long"))
        await spine.advance(1)
        spine.gateway.fail("progress", limited(5))
        held.set()
        await spine.advance(60)
        refused_edit, taken = sends(spine, "progress")
        assert taken.txn_id != refused_edit.txn_id
        assert taken.content["m.new_content"]["body"].startswith(spine.model.answer.strip())
        spine.model.finish.set()
        await spine.settle()


async def test_e6_a_room_upgraded_under_an_answer_keeps_it_for_its_successor(database_dsn: str) -> None:
    """E6, F4: the refusal is explained by the tombstone; the row waits, and after a day it fails."""
    async with serving(database_dsn) as spine:
        spine.gateway.fail("final", *[refused(403, "M_FORBIDDEN", MatrixFailureClass.FORBIDDEN)] * 9)
        await spine.hear(message("$1"))
        await spine.advance(20)
        assert await fate(spine) == ("claimed", "M_FORBIDDEN")
        tombstone = state("$t", "m.room.tombstone", {"replacement_room": "!new:x", "body": ""})
        await hear_on(spine, (ROOM, joined_room([tombstone])))
        assert await fate(spine) == ("queued", "tombstoned")
        await spine.advance(600, step_seconds=30)
        assert len(sends(spine, "final")) == 1
        await spine.advance(86400, step_seconds=3600)
        assert await fate(spine) == ("failed", "tombstoned")


async def test_e6_a_refusal_that_a_departure_explains_is_retired(database_dsn: str) -> None:
    """E6, F2: sync shows that we were removed."""
    async with serving(database_dsn) as spine:
        spine.gateway.fail("final", refused(403, "M_FORBIDDEN", MatrixFailureClass.FORBIDDEN))
        await spine.hear(message("$1"))
        spine.answer(spine.batch(leave={ROOM: left_room([member("$l", ME, "leave", sender=ALICE)])}))
        await spine.settle()
        await spine.advance(30)
        assert await fate(spine) == ("retired", "departed")


async def test_e6_a_server_error_that_meets_one_delivery_alone_is_its_own_fault(database_dsn: str) -> None:
    """E6: five in a row while others go out; as long as nothing goes out it is the server's."""
    async with serving(database_dsn, ROOM, OTHER_ROOM) as spine:
        spine.gateway.fail(ROOM, *[refused(500, "M_UNKNOWN", MatrixFailureClass.SERVER)] * 100)
        await spine.hear(message("$1"))
        await spine.advance(300, step_seconds=5)
        assert await fate(spine) == ("claimed", "M_UNKNOWN")
        await spine.hear(message("$2"), room=OTHER_ROOM)
        await spine.advance(60, step_seconds=5)
        assert await fate(spine) == ("failed", "M_UNKNOWN")
        assert spine.finals(OTHER_ROOM) == [["$2"]]


@pytest.mark.parametrize("errcode", ["M_USER_LOCKED", "M_CONSENT_NOT_GIVEN", "M_USER_SUSPENDED", "M_UNKNOWN_TOKEN"])
async def test_e6_a_refused_account_waits_and_nothing_it_owes_fails(database_dsn: str, errcode: str) -> None:
    """E6: sends pause, a metric says so, and all goes out once somebody lifts it."""
    async with serving(database_dsn, ROOM, OTHER_ROOM) as spine:
        spine.gateway.fail(ROOM, *[refused(403, errcode, MatrixFailureClass.AUTH)] * 3)
        await spine.hear(message("$1"))
        await spine.hear(message("$2"), room=OTHER_ROOM)
        value = spine.metrics.registry.get_sample_value
        assert value("mindroom_sends_refused", {"principal": "agent"}) == 1
        await spine.advance(25)
        assert len(spine.gateway.attempts) == 1
        await spine.advance(180, step_seconds=5)
        assert spine.finals() == [["$1"]]
        assert spine.finals(OTHER_ROOM) == [["$2"]]
        assert value("mindroom_sends_refused", {"principal": "agent"}) == 0


async def test_e6_too_large_for_this_server_goes_out_smaller_and_says_so(database_dsn: str) -> None:
    """E6: same transaction id, less text, a note."""
    async with serving(database_dsn) as spine:
        spine.gateway.fail("final", *[refused(413, "M_TOO_LARGE", MatrixFailureClass.TOO_LARGE)] * 2)
        spine.model.answer = "word " * 400
        await spine.hear(message("$1"))
        await spine.advance(5)
        attempts = sends(spine, "final")
        assert len({wire.txn_id for wire in attempts}) == 1
        assert "rest was left out" in attempts[-1].content["body"]
        assert await fate(spine) == ("acked", None)


async def test_e6_a_refused_relation_is_fetched_and_then_left_out(database_dsn: str) -> None:
    """E6: 400 proves that nothing was sent; the same transaction id carries the plain reply."""
    async with serving(database_dsn) as spine:
        spine.gateway.fail("final", *[refused(400, "M_UNKNOWN", MatrixFailureClass.BAD_REQUEST)] * 2)
        await spine.hear(message("$1"))
        await spine.advance(5)
        assert spine.room.asked == [(ROOM, "$1")]
        first, second, third = sends(spine, "final")
        assert first == second
        assert third.txn_id == first.txn_id
        assert third.content["m.relates_to"] == {"m.in_reply_to": {"event_id": "$1"}}
        assert await fate(spine) == ("acked", None)


async def test_e6_conversations_of_one_room_do_not_wait_for_each_other(database_dsn: str) -> None:
    """E6: one delivery that hangs, and one that fails again and again, leave twelve others their placeholders."""
    async with serving(database_dsn) as spine:
        spine.gateway.fail("final", *[refused(502, "", MatrixFailureClass.SERVER)] * 2)
        spine.gateway.held["initial"] = held = asyncio.Event()
        spine.model.held["slow"] = slow = asyncio.Event()
        await spine.hear(message("$hang", "slow"))
        await spine.advance(1)
        assert len(sends(spine, "initial")) == 1
        spine.gateway.held.pop("initial")
        await spine.hear(*[message(f"${n}", "slow") for n in range(12)])
        await spine.advance(1)
        assert spine.gateway.stages().count("initial") == 12
        slow.set()
        await spine.advance(5)
        assert len(spine.finals()) == 12
        held.set()
        await spine.advance(10)
        assert len(spine.finals()) == 13


async def test_at_most_eight_sends_of_a_principal_are_in_flight(database_dsn: str) -> None:
    async with serving(database_dsn) as spine:
        spine.gateway.held["final"] = held = asyncio.Event()
        rooms = (ROOM, OTHER_ROOM, "!third:x")
        spine.answer(spine.room_batch(*rooms))
        for room in rooms:
            await spine.hear(*[message(f"${room}{n}") for n in range(20)], room=room)
        await spine.advance(2)
        assert len(sends(spine, "final")) == IN_FLIGHT
        held.set()
        await spine.advance(2)
        assert [len(spine.finals(room)) for room in rooms] == [20, 20, 20]


async def test_e6_a_room_whose_sends_all_hang_leaves_slots_to_others(database_dsn: str) -> None:
    async with serving(database_dsn, ROOM, OTHER_ROOM) as spine:
        spine.gateway.held[ROOM] = asyncio.Event()
        await spine.hear(*[message(f"$a{n}") for n in range(20)])
        assert len(spine.gateway.attempts) == IN_FLIGHT_IN_ROOM
        await spine.hear(*[message(f"$b{n}") for n in range(20)], room=OTHER_ROOM)
        await spine.advance(2)
        assert len(spine.finals(OTHER_ROOM)) == 20


# ---- E8 … E10, F2 ----------------------------------------------------------------------------------------------------
async def test_e8_a_slow_answer_tells_its_requester(database_dsn: str) -> None:
    """R44, E8: an edit notifies nobody by itself, so a slow FINAL names the requester at its top."""
    async with serving(database_dsn) as spine:
        spine.model.go.clear()
        await spine.hear(message("$1"))
        await spine.advance(61)
        spine.model.go.set()
        await spine.settle()
        final = spine.gateway.visible()[-1][1].content
        assert final["m.mentions"] == {"user_ids": [ALICE]}
        assert final["m.new_content"]["m.mentions"] == {}


async def test_e9_everything_final_in_a_room_is_an_outbox_row(database_dsn: str) -> None:
    """E9: answers, error sentences, the withdrawal of a placeholder and the sentence of A7."""
    async with serving(database_dsn, ROOM, OTHER_ROOM) as spine:
        await spine.hear(message("$1"))
        spine.answer(spine.batch((OTHER_ROOM, joined_room([_encryption(), _ciphertext("$c")]))))
        await spine.settle()
        await spine.advance(2)
        rows = await spine.rows("SELECT acked_event_id FROM delivery_outbox WHERE state = 'acked'")
        visible = {event for room in (ROOM, OTHER_ROOM) for event, wire in spine.gateway.visible(room)}
        assert {row[0] for row in rows} == visible
        assert len(visible) == 2


def _encryption() -> Event:
    return state("$enc", "m.room.encryption", {"algorithm": "m.megolm.v1.aes-sha2"})


def _ciphertext(event_id: str) -> Event:
    made = message(event_id)
    made["type"], made["content"] = "m.room.encrypted", {"algorithm": "m.megolm.v1.aes-sha2", "ciphertext": "x"}
    return made


async def test_e10_a_room_that_becomes_encrypted_during_the_answer_gets_nothing_in_plain(database_dsn: str) -> None:
    """E10: neither progress nor FINAL follows the placeholder that was said before."""
    async with serving(database_dsn) as spine:
        spine.model.held["hello"] = held = asyncio.Event()
        await spine.hear(message("$1"))
        await spine.advance(1)
        assert spine.gateway.stages() == ["initial"]
        await spine.hear(_encryption())
        spine.model.answer, spine.model.pieces = "word " * 200, 20
        held.set()
        await spine.advance(30)
        assert spine.gateway.stages() == ["initial"]
        assert await spine.value("SELECT state FROM delivery_outbox WHERE stage = 'final'") == "failed"


async def test_e10_d9_a_placeholder_is_withdrawn_from_a_room_that_became_encrypted(database_dsn: str) -> None:
    """E10, D9: a redaction says nothing, so the placeholder does not stand there for ever."""
    async with serving(database_dsn) as spine:
        spine.model.go.clear()
        await spine.hear(message("$1"))
        await spine.advance(1)
        await spine.hear(_encryption())
        await spine.hear(redaction("$r", "$1"))
        await spine.advance(1)
        (placeholder, _), (_, withdrawal) = spine.gateway.visible()
        assert (withdrawal.event_type, withdrawal.content) == ("m.room.redaction", {"redacts": placeholder})


async def test_e10_a_room_whose_encryption_is_unknown_is_not_written_to(database_dsn: str) -> None:
    """E10: without the create event nothing is said; once it is known the answer goes out."""
    async with open_spine(database_dsn) as spine:
        await spine.start()
        spine.answer(spine.batch((ROOM, joined_room(state=[member("$me", ME, "join"), member("$a", ALICE, "join")]))))
        await spine.settle()
        await spine.hear(message("$1"))
        await spine.advance(30)
        assert spine.gateway.attempts == []
        assert await states(spine) == [("initial", "retired"), ("final", "queued")]
        await spine.hear(state("$create", "m.room.create", {"room_version": "12"}))
        await spine.advance(30)
        assert spine.finals() == [["$1"]]


async def test_f2_nothing_of_an_ended_epoch_is_sent(database_dsn: str) -> None:
    """F2: what waits for a pause when we are removed is retired; the rejoin starts clean."""
    async with serving(database_dsn) as spine:
        spine.gateway.fail("final", limited(60))
        await spine.hear(message("$1"))
        attempts = len(spine.gateway.attempts)
        spine.answer(spine.batch(leave={ROOM: left_room([member("$l", ME, "leave", sender=ALICE)])}))
        await spine.settle()
        await spine.advance(120, step_seconds=5)
        assert len(spine.gateway.attempts) == attempts
        assert await states(spine) == [("initial", "retired"), ("final", "retired")]
        spine.answer(spine.room_batch(ROOM))
        await spine.settle()
        await spine.hear(message("$2"))
        await spine.advance(1)
        assert spine.finals() == [["$2"]]


async def test_a_row_that_cannot_be_read_fails_alone(database_dsn: str) -> None:
    """E6: what is stored wrongly is failed with its kind, and the room's next answer goes out."""
    async with serving(database_dsn) as spine:
        spine.gateway.held["initial"] = held = asyncio.Event()
        spine.model.go.clear()
        await spine.hear(message("$1"))
        await spine.advance(1)
        spine.model.go.set()
        await spine.advance(1)
        await spine.rows("UPDATE delivery_outbox SET content = '[1]' WHERE stage = 'final'")
        held.set()
        await spine.advance(30)
        assert await spine.value("SELECT state FROM delivery_outbox WHERE stage = 'final'") == "failed"
        await spine.hear(message("$2"))
        await spine.advance(5)
        assert spine.finals() == [["$2"]]

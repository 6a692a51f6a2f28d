"""Admission as a whole: one response, one commit, over three ledgers; and the loop that never loses one."""

import random
import time
from uuid import UUID

import pytest

from mindroom.core.errors import MatrixDeliveryFailure, MatrixFailure, MatrixFailureClass
from mindroom.core.ids import EventId, SyncToken
from mindroom.core.ports import HistoryPage
from mindroom.core.values import Stage
from tests.support.events import (
    ALICE,
    BOB,
    ME,
    OTHER_ROOM,
    ROOM,
    STRANGER,
    Event,
    edit,
    event,
    invited_room,
    joined_room,
    left_room,
    member,
    message,
    redacted,
    redaction,
    said,
    state,
)
from tests.support.runtime import eventually
from tests.support.spine import Spine, open_spine


def _kinds(number: int) -> list[Event]:
    """One event of each kind that admission tells apart, `number` at a time."""
    events: list[Event] = []
    for n in range(number):
        events += [
            message(f"$m{n}"),
            message(f"$u{n}", sender=STRANGER),
            edit(f"$e{n}", f"$m{n}", "hi"),
            edit(f"$early{n}", f"$unseen{n}", "hi"),
            message(f"$gone{n}"),
            redaction(f"$r{n}", f"$gone{n}"),
            event(f"$reaction{n}", type_="m.reaction"),
            event(f"$x{n}", type_="m.room.encrypted"),
            said(f"$f{n}", Stage.FINAL, sources=[f"$old{n}"]),
            redacted(f"$rf{n}", sender=ME, transaction_id=f"final.{UUID(int=1000 + n)}"),
            member(f"$ban{n}", f"@troll{n}:x", "ban", sender=ALICE, redact_events=True),
            state(f"$topic{n}", "m.room.topic", {"topic": f"{n}"}),
            member(f"$join{n}", f"@guest{n}:x", "join"),
        ]
    return events


@pytest.mark.parametrize("shape", ["messages", "every kind"])
async def test_a8_the_number_of_statements_does_not_depend_on_the_number_of_events(
    database_dsn: str, shape: str
) -> None:
    """A8: 1, 50 and 500 events take the same statements."""
    counts = []
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.go.clear()
        for size in (1, 50, 500):
            events = [message(f"${size}.{n}") for n in range(size)] if shape == "messages" else _kinds(size)
            for number, made in enumerate(events):
                made["event_id"] = made["event_id"] if shape == "messages" else f"{made['event_id']}.{size}.{number}"
            before = len(spine.database.statements_of("admit"))
            spine.answer(spine.batch((ROOM, joined_room(events))))

            async def admitted(before: int = before) -> bool:
                return len(spine.database.statements_of("admit")) > before

            await eventually(admitted, what="admitted")
            counts.append(spine.database.statements_of("admit")[-1])
    assert counts[0] == counts[1] == counts[2]


async def test_a1_a_response_that_could_not_be_committed_is_tried_again_as_the_same_object(database_dsn: str) -> None:
    """A1: never fetched a second time; token and rows appear together."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.database.outage = lambda name: name == "admit"
        spine.answer(spine.batch((ROOM, joined_room([message("$1")]))))

        async def uncertain() -> bool:
            await spine.advance(1)
            return bool(await spine.value("SELECT count(*) = 0 FROM journal_pending")) and len(spine.sync.asked) == 2

        await eventually(uncertain)
        for _ in range(3):
            await spine.advance(30)
        assert spine.sync.asked == [None, "s1"], "the response in hand is not asked for again"
        assert await spine.value("SELECT token FROM sync_checkpoints") == "s1"
        assert await spine.value("SELECT count(*) FROM journal_receipts WHERE event_id = '$1'") == 0
        spine.database.outage = lambda _name: False

        async def answered() -> bool:
            await spine.advance(5)
            return await spine.outcome("$1") == "answered"

        await eventually(answered)
        assert await spine.value("SELECT token FROM sync_checkpoints") == "s2"
        assert spine.sync.asked == [None, "s1", "s2"]
        assert spine.finals() == [["$1"]]


async def test_a1_a_token_of_empty_responses_is_saved_late_and_never_backwards(database_dsn: str) -> None:
    """A1: what brought nothing may ride with the next commit."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.answer(spine.batch(), spine.batch())
        await spine.settle()
        assert spine.sync.asked == [None, "s1", "s2", "s3"]
        assert await spine.value("SELECT token FROM sync_checkpoints") == "s1"
        await spine.advance(6)
        spine.answer(spine.batch())
        await spine.settle()
        assert await spine.value("SELECT token FROM sync_checkpoints") == "s4"


async def test_a2_r15_an_event_delivered_three_times_is_work_once(database_dsn: str) -> None:
    """R15, A2: one model call, one send."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        same = message("$1")
        spine.answer(*(spine.batch((ROOM, joined_room([same]))) for _ in range(3)))
        await spine.settle()
        await spine.advance(1)
        assert len(spine.model.requests) == 1
        assert spine.finals() == [["$1"]]
        assert spine.metrics.registry.get_sample_value("mindroom_duplicates_total") == 2


async def test_a3_the_first_response_of_an_account_starts_nothing(database_dsn: str) -> None:
    """A3: all of it is history, committed before anything else happens."""
    async with open_spine(database_dsn) as spine:
        await spine.start()
        spine.answer(spine.room_batch(also=[message(f"$old{n}") for n in range(50)]))
        await spine.settle()
        await spine.advance(5)
        assert spine.model.requests == []
        assert await spine.value("SELECT count(*) FROM journal_receipts WHERE class = 'history'") == 50
        await spine.hear(message("$new"))
        assert spine.finals() == [["$new"]]


async def test_a7_one_bad_event_never_blocks_a_response(database_dsn: str) -> None:
    """A7, R41: the rest of the response is admitted and answered."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        bad: list[object] = [
            {"event_id": "$bad1", "type": "m.room.message", "sender": ALICE, "content": "a string"},
            {"event_id": "$bad2", "type": 7, "sender": ALICE, "content": {}},
            {"event_id": "$bad3", "type": "m.room.message", "sender": ALICE, "origin_server_ts": 2**80, "content": {}},
            message("$nul", "a \x00 and a \ud800"),
            message("$self") | {"content": {"msgtype": "m.text", "body": "x", "m.relates_to": "$self"}},
            "not an object",
            None,
        ]
        spine.answer(spine.batch((ROOM, joined_room([*bad, message("$good")]))))
        await spine.settle()
        await spine.advance(1)
        assert await spine.outcome("$good") == "answered"
        assert await spine.value("SELECT count(*) FROM journal_pending") == 0
        assert await spine.value("SELECT token FROM sync_checkpoints") == "s2"


async def test_a9_leaves_are_taken_before_invites_before_joins(database_dsn: str) -> None:
    """A9: left and invited again in one response is a new epoch with an open invitation."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        again = invited_room(member("$i", ME, "invite", sender=ALICE, is_direct=True))
        spine.answer(
            spine.batch(leave={ROOM: left_room([member("$l", ME, "leave", sender=BOB)])}, invite={ROOM: again})
        )
        await spine.settle()
        assert spine.membership.joined == [ROOM]
        rows = await spine.rows("SELECT epoch, membership, inviter, is_direct FROM room_membership")
        assert rows == [(2, "invite", ALICE, True)]


async def test_a9_a_stranger_is_refused_and_not_asked_twice(database_dsn: str) -> None:
    """A9, R12: by the same decision, and only once."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.answer(spine.batch(invite={OTHER_ROOM: invited_room(member("$i", ME, "invite", sender=STRANGER))}))
        await spine.settle()
        await spine.advance(30)
        assert spine.membership.joined == []
        assert spine.membership.left == [OTHER_ROOM]


# ---- the loop --------------------------------------------------------------------------------------------------------
def _failure(
    failure_class: MatrixFailureClass, status: int = 0, errcode: str = "", wait: float | None = None
) -> Exception:
    return MatrixFailure("sync", failure_class, status=status, errcode=errcode, retry_after_seconds=wait)


FAILURES = {
    "500 as JSON": _failure(MatrixFailureClass.SERVER, 500, "M_UNKNOWN"),
    "502 as HTML": _failure(MatrixFailureClass.SERVER, 502),
    "reset, hang or a truncated body": _failure(MatrixFailureClass.NETWORK),
    "an empty or HTML 200": _failure(MatrixFailureClass.NOT_JSON, 200),
    "401 of a proxy": _failure(MatrixFailureClass.NOT_JSON, 401),
    "401 without a token": _failure(MatrixFailureClass.AUTH, 401, "M_MISSING_TOKEN"),
    "403": _failure(MatrixFailureClass.FORBIDDEN, 403, "M_FORBIDDEN"),
    "404": _failure(MatrixFailureClass.NOT_FOUND, 404, "M_UNRECOGNIZED"),
    "a locked user": _failure(MatrixFailureClass.AUTH, 401, "M_USER_LOCKED"),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES.keys())
async def test_b5_r6_a_failing_sync_backs_off_and_keeps_its_token(database_dsn: str, failure: Exception) -> None:
    """B5, R6: ten minutes of it cost few requests; the token is never dropped; it heals by itself."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.answer(*[failure] * 40)
        await spine.advance(600, step_seconds=5)
        asked = len(spine.sync.asked)
        assert 10 <= asked <= 30, "neither asleep nor hammering"
        assert set(spine.sync.asked[1:]) == {SyncToken("s1")}
        assert await spine.value("SELECT token FROM sync_checkpoints") == "s1"
        spine.sync.drop()
        await _heal(spine)
        assert await spine.outcome("$after") == "answered"


async def _heal(spine: Spine) -> None:
    spine.answer(spine.batch((ROOM, joined_room([message("$after")]))))
    await spine.advance(70, step_seconds=5)


async def test_b5_a_429_is_obeyed_to_the_second(database_dsn: str) -> None:
    """B5: retry_after of the homeserver is the least that is waited."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.answer(_failure(MatrixFailureClass.RATE_LIMITED, 429, "M_LIMIT_EXCEEDED", 90.0))
        await spine.settle()
        asked = len(spine.sync.asked)
        await spine.advance(89)
        assert len(spine.sync.asked) == asked
        await spine.advance(2)
        assert len(spine.sync.asked) == asked + 1


async def test_b7_nothing_old_moves_before_the_first_admitted_response(database_dsn: str) -> None:
    """B7: neither a pending source nor an owed delivery, however long the homeserver stays away."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.gateway.fail("final", *[_send_failure() for _ in range(50)])
        await spine.hear(message("$owed"))
        spine.model.go.clear()
        await spine.hear(message("$pending"))
        await spine.crash()
        spine.model.go.set()
        spine.gateway.faults.clear()
        attempts, requests = len(spine.gateway.attempts), len(spine.model.requests)
        await spine.start()
        assert spine.sync.timeouts == [0.0]
        spine.answer(_failure(MatrixFailureClass.NETWORK))
        await spine.advance(60)
        assert len(spine.gateway.attempts) == attempts
        assert len(spine.model.requests) == requests
        spine.answer(spine.batch())
        await spine.settle()
        await spine.advance(1)
        assert sorted(spine.finals()) == [["$owed"], ["$pending"]]


def now_ms() -> int:
    """Young enough for the recovery horizon (B3)."""
    return round(time.time() * 1000)


async def test_b7_a_room_with_a_gap_waits_and_the_others_do_not(database_dsn: str) -> None:
    """B7, B2: recovered messages come first, in timeline order; the room's own later ones after them."""
    async with open_spine(database_dsn, thread_mode="room") as spine:
        await spine.start()
        spine.answer(spine.room_batch(ROOM, OTHER_ROOM))
        await spine.settle()
        limited = joined_room([message("$new")], limited=True, prev_batch="p9")
        spine.history.pages.append(
            HistoryPage([message("$gap2", ts=now_ms()), message("$gap1", ts=now_ms())], SyncToken("p8"))
        )
        spine.history.pages.append(HistoryPage([message("$gap0", ts=now_ms())], None))
        spine.history.pages.append(HistoryPage([], None))
        spine.answer(spine.batch((ROOM, limited), (OTHER_ROOM, joined_room([message("$other")]))))
        await spine.settle()
        await spine.advance(1)
        assert spine.finals(OTHER_ROOM) == [["$other"]]
        assert spine.finals() == []
        spine.history.open.set()
        await spine.settle()
        await spine.advance(3)
        assert spine.history.asked == [("p9", "s1"), ("p8", "s1"), ("p9", None)]
        order = await spine.rows(
            "SELECT event_id FROM journal_receipts WHERE kind = 'message' AND room_id = $1 ORDER BY base, page, idx",
            ROOM,
        )
        assert [row[0] for row in order] == ["$gap0", "$gap1", "$gap2", "$new"]
        assert [source for sources in spine.finals() for source in sources] == ["$gap0", "$gap1", "$gap2", "$new"]


async def test_b3_network_trouble_never_gives_up_a_gap(database_dsn: str) -> None:
    """B3: pages fail for a while, then come; the room is free again after two minutes at most."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.history.open.set()
        trouble = [
            MatrixFailure("messages", MatrixFailureClass.NETWORK),
            MatrixFailure("messages", MatrixFailureClass.RATE_LIMITED, status=429),
            MatrixFailure("messages", MatrixFailureClass.SERVER, status=502),
        ]
        spine.history.pages.extend(trouble * 4)
        spine.history.pages.append(HistoryPage([message("$lost", ts=now_ms())], None))
        spine.history.pages.extend([*trouble, HistoryPage([], None)])
        spine.answer(spine.batch((ROOM, joined_room([message("$new")], limited=True, prev_batch="p9"))))
        await spine.settle()
        await spine.advance(125, step_seconds=5)
        assert spine.finals() == [["$new"]]
        assert await spine.value("SELECT state FROM room_history_recovery") == "repairable"
        await spine.advance(900, step_seconds=10)
        assert await spine.value("SELECT state FROM room_history_recovery") == "repaired"
        assert spine.finals() == [["$new"], ["$lost"]]


def _send_failure() -> Exception:
    return MatrixDeliveryFailure("send", MatrixFailureClass.NETWORK)


async def test_a6_a_batch_holds_a_hundred_sources_and_the_rest_form_the_next_turn(database_dsn: str) -> None:
    """A6: what came while an answer ran; each source is named by exactly one FINAL."""
    async with open_spine(database_dsn, thread_mode="room") as spine:
        await spine.serve()
        spine.model.go.clear()
        await spine.hear(message("$first"))
        await spine.hear(*(message(f"$m{n}") for n in range(130)))
        spine.model.go.set()
        await spine.advance(3)
        assert [len(sources) for sources in spine.finals()] == [1, 100, 30]
        assert {s for sources in spine.finals() for s in sources} == {"$first", *(f"$m{n}" for n in range(130))}


async def test_a6_the_room_itself_proves_what_was_said(database_dsn: str) -> None:
    """A6: a database that never heard of an answer learns of it from the echo, whichever comes first."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.go.clear()
        await spine.hear(message("$before"), said("$f1", Stage.FINAL, sources=["$before", "$later"]))
        assert await spine.outcome("$before") == "answered"
        await spine.hear(message("$later"))
        assert await spine.outcome("$later") == "answered"
        assert spine.model.requests == []
        adopted = await spine.rows("SELECT purpose, state, acked_event_id FROM delivery_outbox")
        assert adopted == [("adopted", "acked", EventId("$f1"))]


async def test_a6_an_echo_ends_a_run_that_answers_the_same_source(database_dsn: str) -> None:
    """A6: the answer is seen in the room while another run of it is on its way: nothing more is said."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.go.clear()
        await spine.hear(message("$1"))
        assert len(spine.model.requests) == 1
        await spine.hear(said("$f1", Stage.FINAL, sources=["$1"]))
        spine.model.go.set()
        await spine.advance(30)
        assert spine.finals() == []
        assert await spine.outcome("$1") == "answered"
        assert await spine.value("SELECT count(*) FROM turns WHERE state = 'open'") == 0


async def test_j1_time_is_moved_not_waited_for(database_dsn: str) -> None:
    """J1: a minute of back-off passes at once, for the process and in SQL alike."""
    async with open_spine(database_dsn) as spine:
        before = await spine.value("SELECT mindroom_now()")
        began = spine.clock.now()
        await spine.advance(3600, step_seconds=random.Random(1).uniform(600, 900))
        assert (await spine.value("SELECT mindroom_now()") - before).total_seconds() >= 3600
        assert (spine.clock.now() - began).total_seconds() == 3600

"""How far the sync token is believed, what the loop survives, and what is too late to be answered."""

import asyncio

import pytest

from mindroom.bot.agent_bot import ServiceEnded
from mindroom.bot.sync import SyncLoop
from mindroom.core.errors import MatrixFailure, MatrixFailureClass
from mindroom.core.ids import SyncToken
from mindroom.core.ports import HistoryPage
from mindroom.journal.classify import classify_sync
from mindroom.matrix.failures import read_failure
from tests.support.events import OTHER_ROOM, ROOM, joined_room, message
from tests.support.runtime import eventually
from tests.support.spine import Spine, open_spine

HOUR_MS = 3600 * 1000
DAY_MS = 24 * HOUR_MS
DAY_SECONDS = 86400.0
REFUSED = read_failure("sync", status=400, document={"errcode": "M_UNKNOWN"}, retry_after_header=None)
FORGOTTEN = read_failure("get_event", status=404, document={"errcode": "M_NOT_FOUND"}, retry_after_header=None)


async def trust(spine: Spine) -> tuple[str, str, str]:
    row = (await spine.rows("SELECT token, trust, reason FROM sync_checkpoints"))[0]
    return (row[0], row[1], row[2])


def late_verdicts(spine: Spine) -> float:
    return (
        spine.metrics.registry.get_sample_value("mindroom_verdicts_total", {"action": "ignore", "reason": "late"})
        or 0.0
    )


# ---- too late --------------------------------------------------------------------------------------------------------
async def test_r42_a3_backfill_of_old_messages_is_history_and_counted(database_dsn: str) -> None:
    """R42, A3: a bridge shows a message of 90 days ago as live; no answer, outcome `ignored.late`, counted."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        await spine.hear(message("$old", ts=-90 * DAY_MS), message("$day", ts=-DAY_MS - HOUR_MS))
        await spine.hear(message("$recent", ts=-DAY_MS + HOUR_MS))
        assert [await spine.outcome(event) for event in ("$old", "$day")] == ["ignored.late"] * 2
        assert await spine.value("SELECT class FROM journal_receipts WHERE event_id = '$old'") == "history"
        assert late_verdicts(spine) == 2
        assert spine.finals() == [["$recent"]]


@pytest.mark.parametrize("in_a_gap", [False, True])
async def test_a3_our_own_downtime_is_not_lateness(database_dsn: str, in_a_gap: bool) -> None:
    """A3: three days of downtime; what was written on the first day is answered, whichever way it comes."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        await spine.crash()
        await spine.advance(3 * DAY_SECONDS, step_seconds=DAY_SECONDS)
        spine.history.open.set()
        await spine.start()
        written = message("$day1", ts=DAY_MS // 2)
        if in_a_gap:
            spine.history.pages.append(HistoryPage((written,), None))
            spine.history.pages.append(HistoryPage((), None))
        spine.answer(spine.batch((ROOM, joined_room([] if in_a_gap else [written], limited=in_a_gap))))

        async def answered() -> bool:
            await spine.advance(1)
            return spine.finals() == [["$day1"]]

        await eventually(answered)


# ---- a token that is refused -----------------------------------------------------------------------------------------
async def test_b4_a_token_refused_twice_is_given_up_and_nothing_is_lost(database_dsn: str) -> None:
    """B4, B1: known events stay known, unknown ones are recovered and answered, limited rooms are gaps."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        await spine.hear(message("$known"))
        token = (await trust(spine))[0]
        spine.answer(REFUSED, REFUSED)
        await spine.advance(10)
        assert spine.sync.asked[-3:] == [token, token, None]
        assert (await trust(spine))[0] == token, "until the next one is admitted"
        spine.history.open.set()
        spine.history.pages.extend([HistoryPage((), None)] * 3)
        rooms = [(ROOM, joined_room([message("$known"), message("$new")], limited=True))]
        spine.answer(spine.batch(*rooms))
        await spine.settle()
        await spine.advance(5)
        moved = await trust(spine)
        assert moved[0] != token
        assert moved[1:] == ("certified", "resynced")
        labels = {"principal": "agent", "state": "certified"}
        told = [
            spine.metrics.registry.get_sample_value("mindroom_checkpoint_trust", {**labels, "reason": reason})
            for reason in ("admitted", "resynced")
        ]
        assert told == [0, 1]
        since = {"principal": "agent"}
        assert spine.metrics.registry.get_sample_value("mindroom_checkpoint_trust_since_timestamp", since)
        assert await spine.value("SELECT class FROM journal_receipts WHERE event_id = '$new'") == "recovered"
        assert await spine.value("SELECT to_token FROM room_history_recovery") == ""
        assert sorted(spine.finals()) == [["$known"], ["$new"]]
        assert spine.sync.asked[-1] == moved[0]


@pytest.mark.parametrize("between", [None, MatrixFailure("sync", MatrixFailureClass.NETWORK)])
async def test_b4_one_refusal_gives_up_nothing(database_dsn: str, between: Exception | None) -> None:
    """B4: twice in a row, and only while the same request without a token is answered."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        answers: list[Exception] = [REFUSED, between, REFUSED] if between else [REFUSED]
        spine.answer(*answers)
        await spine.advance(20)
        assert set(spine.sync.asked[1:]) == {"s1"}


async def test_b4_a_server_that_refuses_everything_keeps_the_token(database_dsn: str) -> None:
    """B4: refused with and without it, the token is not what is wrong."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.answer(*[REFUSED] * 6)
        await spine.advance(200, step_seconds=5)
        assert spine.sync.asked[1:8] == ["s1", "s1", None, "s1", "s1", None, "s1"]
        assert (await trust(spine))[:2] == ("s1", "certified")


async def test_b4_a_homeserver_that_forgot_our_answer_went_back_in_time(database_dsn: str) -> None:
    """B4: after a lease take the newest acknowledged event is fetched once; 404 gives up the token."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        await spine.hear(message("$1"))
        assert spine.finals() == [["$1"]]
        await spine.crash()
        spine.room.failure = FORGOTTEN
        await spine.start()
        assert spine.sync.asked == [None]
        spine.answer(spine.batch((ROOM, joined_room([message("$1"), message("$2")]))))
        await spine.settle()
        await spine.advance(1)
        assert (await trust(spine))[1:] == ("certified", "resynced")
        assert spine.finals() == [["$1"], ["$2"]]


async def test_b4_a_homeserver_that_is_away_is_asked_again_before_the_first_sync(database_dsn: str) -> None:
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        await spine.hear(message("$1"))
        await spine.crash()
        spine.room.failure = MatrixFailure("get_event", MatrixFailureClass.SERVER, status=502)
        await spine.start()
        await spine.advance(5)
        assert spine.sync.asked == []
        spine.room.failure = None
        await spine.advance(10)
        assert spine.sync.asked == ["s2"]


async def test_f1_b4_a_joined_room_that_a_complete_response_does_not_name_was_left(database_dsn: str) -> None:
    """F1: a departure nobody showed us; its sources are settled `departed`."""
    async with open_spine(database_dsn) as spine:
        await spine.start()
        spine.answer(spine.room_batch(ROOM, OTHER_ROOM))
        spine.model.go.clear()
        await spine.hear(message("$gone"), room=OTHER_ROOM)
        spine.answer(REFUSED, REFUSED)
        await spine.advance(10)
        spine.answer(spine.batch((ROOM, joined_room())))
        await spine.settle()
        rows = await spine.rows("SELECT room_id, membership, epoch FROM room_membership ORDER BY room_id")
        assert rows == [(OTHER_ROOM, "leave", 2), (ROOM, "join", 1)]
        assert await spine.outcome("$gone") == "departed"


# ---- failures --------------------------------------------------------------------------------------------------------
def failures() -> list[MatrixFailure]:
    document = {"errcode": "M_UNRECOGNIZED"}
    spoken = [
        read_failure("sync", status=s, document=d, retry_after_header=None)
        for s, d in ((401, None), (403, document), (404, document), (429, document), (500, document), (502, None))
    ]
    locked = read_failure("sync", status=401, document={"errcode": "M_USER_LOCKED"}, retry_after_header=None)
    return [*spoken, locked, MatrixFailure("sync", MatrixFailureClass.NETWORK)]


@pytest.mark.parametrize("failure", failures(), ids=str)
async def test_b5_r6_ten_minutes_of_any_failure_are_a_handful_of_requests(
    database_dsn: str, failure: MatrixFailure
) -> None:
    """B5, R6: back-off with jitter and a cap of a minute; counted; the token stays; it recovers by itself."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.answer(*[failure] * 200)
        await spine.advance(600, step_seconds=2)
        asked = len(spine.sync.asked) - 2
        assert 10 <= asked <= 30
        counted = sum(
            sample.value
            for metric in spine.metrics.sync_failures.collect()
            for sample in metric.samples
            if sample.name.endswith("_total")
        )
        assert counted == asked + 1
        assert set(spine.sync.asked[1:]) == {"s1"}
        spine.sync.drop()
        spine.answer(spine.batch((ROOM, joined_room([message("$1")]))))
        await spine.advance(65, step_seconds=5)
        assert spine.finals() == [["$1"]]


async def test_b5_an_answer_that_comes_at_once_and_says_nothing_is_not_hammered(database_dsn: str) -> None:
    """B5: a proxy that repeats one response costs one request a second."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        same = spine.batch()
        spine.answer(*[same] * 100)
        await spine.advance(20)
        assert 15 <= len(spine.sync.asked) <= 25


async def test_b6_r11_a_silent_request_is_abandoned_alone(database_dsn: str) -> None:
    """B6, R11: the request goes, the receive loop goes on, the answer being written completes."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.finish.clear()
        await spine.hear(message("$1"))
        asked = len(spine.sync.asked)
        await spine.advance(115, step_seconds=5)
        assert (len(spine.sync.asked), spine.sync.cancelled) == (asked, 0)
        await spine.advance(15, step_seconds=5)
        assert (len(spine.sync.asked), spine.sync.cancelled) == (asked + 1, 1)
        spine.model.finish.set()
        await spine.settle()
        await spine.advance(1)
        assert spine.finals() == [["$1"]]
        assert len(spine.model.requests) == 1


async def test_r10_b6_a_blocked_event_loop_is_not_taken_for_a_silent_server(database_dsn: str) -> None:
    """R10: minutes pass in one step, and nothing is cancelled for it."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        await spine.advance(300, step_seconds=300)
        assert spine.sync.cancelled == 0
        await spine.hear(message("$1"))
        assert spine.finals() == [["$1"]]


async def test_r9_b6_a_database_that_takes_130_seconds_is_waited_for(database_dsn: str) -> None:
    """R9, B6: no request, no cancellation, no token lost, no cold start; the commit is in flight all the time."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        slow, committed = asyncio.Event(), asyncio.Event()
        assert spine.lease is not None
        run = spine.lease.run

        async def slowly(name: str, body: object) -> object:
            if name == "admit" and not committed.is_set():
                await slow.wait()
                committed.set()
            return await run(name, body)  # type: ignore[arg-type]

        spine.lease.run = slowly  # type: ignore[method-assign, assignment]
        await spine.hear(message("$1"))
        await spine.advance(130, step_seconds=5)
        assert (spine.sync.asked, spine.sync.cancelled) == ([None, "s1"], 0)
        slow.set()
        await spine.settle()
        await spine.advance(1)
        assert spine.sync.asked == [None, "s1", "s2"]
        assert (await trust(spine))[:2] == ("s2", "certified")
        assert spine.finals() == [["$1"]]


async def test_r8_a_service_that_returns_is_not_mistaken_for_a_stop(
    database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R8: the loop ends without an error; the bot ends with one, so that its supervisor starts it again."""

    async def ends(_loop: SyncLoop) -> None:
        return None

    async with open_spine(database_dsn) as spine:
        monkeypatch.setattr(SyncLoop, "run", ends)
        with pytest.raises(ServiceEnded):
            await spine.start()
        spine.task = None


# ---- what cannot be admitted -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("where", ["classify", "commit"])
async def test_a1_a7_an_event_that_cannot_be_admitted_becomes_unreadable(
    database_dsn: str, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A1, A7: one poisonous event among many blocks nothing: the response in hand is admitted without it."""

    def spoiled(raw: dict[str, object], **rest: object) -> object:
        admission = classify_sync(raw, **rest)  # type: ignore[arg-type]
        for heard in admission.heard:
            if heard.event_id == "$bad" and heard.source is not None:
                if where == "classify":
                    raise KeyError("a bug")
                heard.origin_ts = 2**70
        return admission

    async with open_spine(database_dsn) as spine:
        await spine.serve()
        monkeypatch.setattr("mindroom.bot.admit.classify_sync", spoiled)
        events = [message(f"${n}") for n in range(9)]
        spine.answer(spine.batch((ROOM, joined_room([*events[:5], message("$bad"), *events[5:]]))))
        await spine.settle()
        await spine.advance(1)
        assert spine.sync.asked == [None, "s1", "s2"], "never fetched again"
        assert await spine.value("SELECT kind FROM journal_receipts WHERE event_id = '$bad'") == "unreadable"
        assert sorted(source for final in spine.finals() for source in final) == [f"${n}" for n in range(9)]


async def test_a1_a_fault_that_is_in_no_event_ends_the_service_and_keeps_the_token(
    database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A1: told by the supervisor, with its back-off; the next start asks from the same token."""

    def broken(raw: dict[str, object], **rest: object) -> object:
        raise KeyError("a bug")

    async with open_spine(database_dsn) as spine:
        await spine.serve()
        with monkeypatch.context() as patch:
            patch.setattr("mindroom.bot.admit.classify_sync", broken)
            spine.answer(spine.batch((ROOM, joined_room([message("$1")]))))
            with pytest.raises(KeyError):
                await spine.settle()
        spine.task = None
        await spine.start()
        assert spine.sync.asked == [SyncToken("s1")]


# ---- restarts --------------------------------------------------------------------------------------------------------
async def test_r2_a1_a_crash_between_response_and_commit_asks_from_before_it(database_dsn: str) -> None:
    """R2: token and event are stored together or not at all."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.database.outage = lambda name: name == "admit"
        response = spine.batch((ROOM, joined_room([message("$1")])))
        spine.answer(response)
        await spine.advance(1)
        await spine.crash()
        spine.database.outage = lambda _name: False
        assert (await trust(spine))[0] == "s1"
        await spine.start()
        assert spine.sync.asked == ["s1"]
        spine.answer(response)
        await spine.settle()
        await spine.advance(1)
        assert spine.finals() == [["$1"]]


async def test_r3_a_lost_checkpoint_and_a_month_old_timeline_start_nothing(database_dsn: str) -> None:
    """R3: a month-old timeline is history, without a cursor and with a stale one."""
    async with open_spine(database_dsn) as spine:
        await spine.start()
        old = [message(f"$old{n}", ts=-30 * DAY_MS) for n in range(20)]
        spine.answer(spine.room_batch(also=old))
        await spine.settle()
        await spine.crash()
        await spine.start()
        stale = [message(f"$older{n}", ts=-31 * DAY_MS) for n in range(20)]
        spine.answer(spine.batch((ROOM, joined_room([*stale, *old]))))
        await spine.settle()
        await spine.advance(5)
        assert spine.model.requests == []
        assert await spine.value("SELECT count(*) FROM journal_receipts WHERE class = 'live'") == 0

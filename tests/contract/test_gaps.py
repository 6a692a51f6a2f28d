"""Gaps from their discovery to their end, over a whole principal: both walks, crashes, refusals (A13, B2, B3, B7)."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from mindroom.core.errors import MatrixFailure, MatrixFailureClass
from mindroom.core.ids import RoomId, SyncToken
from mindroom.core.ports import HistoryPage
from tests.support.events import BOB, ME, OTHER_ROOM, ROOM, Event, joined_room, member, message, state
from tests.support.spine import Spine, open_spine


def young(event: Event) -> Event:
    """Sent just now: within the recovery horizon."""
    return event | {"origin_server_ts": round(time.time() * 1000)}


def ask(event_id: str) -> Event:
    return young(message(event_id))


@dataclass
class FederatedHistory:
    """HistoryPort of a homeserver whose copy has holes, and which fetches what is missing only when asked without `to`.

    A token is the number of events that are older; tokens of sync name the same line.
    """

    timelines: dict[str, list[Event]]
    holes: dict[str, set[str]] = field(default_factory=dict)
    page_events: int = 100
    trouble: dict[str, deque[Exception]] = field(default_factory=dict)
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    held: dict[str, asyncio.Event] = field(default_factory=dict)

    async def messages_back(self, room: RoomId, *, start: SyncToken, stop: SyncToken | None, limit: int) -> HistoryPage:
        if stop is None and start.startswith("s"):
            return HistoryPage((), None)  # read for a prompt, from a token of sync (A12)
        self.asked.append((room, start, stop))
        if room in self.held:
            await self.held[room].wait()
        if self.trouble.get(room):
            raise self.trouble[room].popleft()
        holes = self.holes.get(room, set()) if stop is not None else set()
        first = int(stop.removeprefix("s")) if stop is not None else 0
        below = max(first, int(start) - self.page_events)
        chunk = [e for e in reversed(self.timelines[room][below : int(start)]) if e["event_id"] not in holes]
        return HistoryPage(chunk, SyncToken(str(below)) if below > first else None)


def history_of(spine: Spine, *timelines: tuple[str, Sequence[Event]], **options: int) -> FederatedHistory:
    """That history is what the principal will read."""
    history = FederatedHistory({room: list(events) for room, events in timelines}, **options)
    spine.history = history  # type: ignore[assignment]
    return history


async def serve(spine: Spine, *rooms: str) -> None:
    """The baseline; its token is 0: what comes later is counted from there."""
    spine._tokens = -1
    await spine.start()
    batch = spine.room_batch(*rooms)
    spine.answer(type(batch)(SyncToken("0"), batch.raw | {"next_batch": "0"}))
    await spine.settle()


def limited(*events: Event, prev: int, **options: Sequence[Event]) -> Event:
    return joined_room(list(events), limited=True, prev_batch=str(prev), **options)


async def gap_states(spine: Spine) -> list[str]:
    return [row[0] for row in await spine.rows("SELECT state FROM room_history_recovery ORDER BY opened_at, room_id")]


async def in_order(spine: Spine, room: str = ROOM) -> list[str]:
    """Messages of the room in the order of work."""
    statement = (
        "SELECT event_id FROM journal_receipts WHERE kind = 'message' AND room_id = $1 "
        "ORDER BY base, page, idx, receipt"
    )
    return [row[0] for row in await spine.rows(statement, room)]


# ---- the second walk -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("page_events", [7, 100])
async def test_r43_b2_a_hole_of_the_homeserver_is_found_by_the_second_walk(database_dsn: str, page_events: int) -> None:
    """R43, B2: sync shows 11 of 80, the first walk 9 more, and the other 60 between them come without `to`."""
    async with open_spine(database_dsn, thread_mode="room") as spine:
        events = [ask(f"$m{n:02}") for n in range(80)]
        history = history_of(spine, (ROOM, events), page_events=page_events)
        history.holes[ROOM] = {f"$m{n:02}" for n in range(9, 69)}
        await serve(spine)
        spine.answer(spine.batch((ROOM, limited(*events[69:], prev=69))))
        await spine.settle()
        await spine.advance(8)
        assert await gap_states(spine) == ["repaired"]
        wanted = [f"$m{n:02}" for n in range(80)]
        assert await in_order(spine) == wanted
        assert [source for sources in spine.finals() for source in sources] == wanted
        assert {stop for _, _, stop in history.asked} == {"0", None}


async def test_b2_the_second_walk_ends_at_a_page_that_was_known_before(database_dsn: str) -> None:
    """B2, A3: and never reaches what stood in the room before the account's baseline."""
    async with open_spine(database_dsn, thread_mode="room") as spine:
        old = [ask(f"$old{n}") for n in range(10)]
        lived = [ask(f"$lived{n}") for n in range(10)]
        missed = [ask(f"$missed{n}") for n in range(3)]
        history = history_of(spine, (ROOM, [*old, *lived, *missed]), page_events=5)
        await serve(spine)
        await spine.hear(*lived)
        await spine.advance(5)
        before = await spine.value("SELECT count(*) FROM journal_receipts")
        spine._tokens = 19
        await spine.hear(member("$tick", BOB, "join", before="join"))
        spine.answer(spine.batch((ROOM, limited(prev=23))))
        await spine.settle()
        await spine.advance(3)
        assert await gap_states(spine) == ["repaired"]
        assert [(start, stop) for _, start, stop in history.asked] == [("23", "s20"), ("23", None), ("18", None)]
        assert await spine.value("SELECT count(*) FROM journal_receipts") == before + 1 + 3
        assert await in_order(spine) == [e["event_id"] for e in [*lived, *missed]]


async def test_b2_an_empty_page_with_an_end_is_not_the_end(database_dsn: str) -> None:
    async with open_spine(database_dsn) as spine:
        events = [ask("$lost"), *[ask(f"$hole{n}") for n in range(10)]]
        history = history_of(spine, (ROOM, events), page_events=5)
        history.holes[ROOM] = {f"$hole{n}" for n in range(10)}
        await serve(spine)
        history.trouble[ROOM] = deque([_failure(MatrixFailureClass.NETWORK)])
        spine.answer(spine.batch((ROOM, limited(prev=11))))
        await spine.settle()
        await spine.advance(5)
        firsts = [start for _, start, stop in history.asked if stop is not None]
        assert firsts == ["11", "11", "6", "1"]
        assert await spine.outcome("$lost") == "answered"


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5])
async def test_b2_a_killed_walk_goes_on_where_it_was(database_dsn: str, cut: int) -> None:
    """B2: after each page of both walks; nothing is read twice by the same walk, and the order is the same."""
    async with open_spine(database_dsn, thread_mode="room") as spine:
        events = [ask(f"$m{n:02}") for n in range(15)]
        history = history_of(spine, (ROOM, events), page_events=5)
        history.holes[ROOM] = {"$m06", "$m07"}
        await serve(spine)
        spine.database.outage = lambda name: name.startswith("gap") and len(history.asked) > cut
        spine.answer(spine.batch((ROOM, limited(prev=15))))
        await spine.settle()
        await spine.advance(1)
        assert await spine.value("SELECT page FROM room_history_recovery") == cut
        await spine.crash()
        spine.database.outage = lambda _name: False
        asked = len(history.asked)
        await spine.start()
        spine.answer(spine.batch())
        await spine.settle()
        await spine.advance(4)
        walk = [("15", "0"), ("10", "0"), ("5", "0"), ("15", None), ("10", None), ("5", None)]
        assert [(start, stop) for _, start, stop in history.asked[asked:]] == walk[cut:]
        assert await in_order(spine) == [e["event_id"] for e in events]
        assert [source for sources in spine.finals() for source in sources] == [e["event_id"] for e in events]


# ---- several gaps ----------------------------------------------------------------------------------------------------
async def test_b2_a_gap_that_fails_stops_neither_its_room_nor_another(database_dsn: str) -> None:
    """B2: the older gap of the room is in back-off, the younger one and the other room are walked."""
    async with open_spine(database_dsn) as spine:
        events = [ask("$first"), ask("$second"), ask("$third")]
        history = history_of(spine, (ROOM, events), (OTHER_ROOM, [ask("$other")]))
        await serve(spine, ROOM, OTHER_ROOM)
        history.trouble[ROOM] = deque([_failure(MatrixFailureClass.RATE_LIMITED, retry_after_seconds=40)])
        spine.answer(spine.batch((ROOM, limited(prev=1))))
        spine._tokens = 0
        await spine.settle()
        spine.answer(spine.batch((ROOM, limited(events[1], prev=1)), (OTHER_ROOM, limited(prev=1))))
        await spine.settle()
        await spine.advance(5)
        assert sorted(await gap_states(spine)) == ["repairable", "repaired", "repaired"]
        asked = [room for room, _, stop in history.asked if stop == "0"].count(ROOM)
        assert asked == 1, "retry_after is obeyed"
        await spine.advance(40)
        assert await gap_states(spine) == ["repaired"] * 3


async def test_b2_a_page_that_hangs_stops_no_other_room(database_dsn: str) -> None:
    async with open_spine(database_dsn) as spine:
        history = history_of(spine, (OTHER_ROOM, [ask("$first")]), (ROOM, [ask("$second")]))
        history.held[OTHER_ROOM] = asyncio.Event()
        await serve(spine, ROOM, OTHER_ROOM)
        spine.answer(spine.batch((OTHER_ROOM, limited(prev=1)), (ROOM, limited(prev=1))))
        await spine.settle()
        await spine.advance(3)
        assert history.asked[0][0] == OTHER_ROOM
        assert spine.finals() == [["$second"]]
        assert spine.finals(OTHER_ROOM) == []
        history.held[OTHER_ROOM].set()
        await spine.settle()
        await spine.advance(3)
        assert spine.finals(OTHER_ROOM) == [["$first"]]


async def test_b2_a_room_waits_two_minutes_from_when_its_walk_can_begin(database_dsn: str) -> None:
    """B2, B7: a gap that an earlier process left an hour ago still comes first after a start."""
    async with open_spine(database_dsn, thread_mode="room") as spine:
        history = history_of(spine, (ROOM, [ask("$lost")]))
        history.held[ROOM] = asyncio.Event()
        await serve(spine)
        spine.answer(spine.batch((ROOM, limited(prev=1))))
        await spine.settle()
        await spine.crash()
        await spine._move_database_clock(3600)
        await spine.clock.advance(3600)
        await spine.start()
        spine.answer(spine.batch((ROOM, joined_room([ask("$new")]))))
        await spine.settle()
        await spine.advance(100, step_seconds=10)
        assert spine.finals() == []
        history.held[ROOM].set()
        await spine.advance(5)
        assert [source for sources in spine.finals() for source in sources] == ["$lost", "$new"]


# ---- giving up -------------------------------------------------------------------------------------------------------
def _failure(kind: MatrixFailureClass, *, retry_after_seconds: float | None = None) -> MatrixFailure:
    return MatrixFailure("messages", kind, errcode="M_X", retry_after_seconds=retry_after_seconds)


async def test_b3_a_refused_gap_is_truncated_visibly_and_frees_its_room(database_dsn: str) -> None:
    """B3, B7: after ten minutes of refusals with a working sync, not before, and nothing old starts."""
    async with open_spine(database_dsn) as spine:
        history = history_of(spine, (ROOM, [ask("$lost")]))
        await serve(spine)
        history.trouble[ROOM] = deque(_failure(MatrixFailureClass.FORBIDDEN) for _ in range(1000))
        spine.answer(spine.batch((ROOM, limited(ask("$new"), prev=1))))
        await spine.settle()
        await spine.advance(900, step_seconds=10)
        assert await gap_states(spine) == ["repairable"], "sync does not work"
        spine.answer(spine.batch(), spine.batch())
        await spine.advance(80, step_seconds=5)
        assert await gap_states(spine) == ["truncated"]
        assert await spine.value("SELECT last_error FROM room_history_recovery") == "M_X"
        value = spine.metrics.registry.get_sample_value
        assert value("mindroom_sync_limited_total", {"outcome": "truncated"}) == 1
        assert await in_order(spine) == ["$new"]
        asked = len(history.asked)
        await spine.advance(120, step_seconds=10)
        assert len(history.asked) == asked
        await spine.hear(ask("$later"))
        await spine.advance(2)
        assert spine.finals() == [["$new"], ["$later"]]


async def test_b3_beyond_the_horizon_nothing_starts(database_dsn: str) -> None:
    """B3: what was said eight days ago is context, and the gap says so."""
    async with open_spine(database_dsn) as spine:
        eight_days_ago = round((time.time() - 8 * 86_400) * 1000)
        old = [message(f"$old{n}", ts=eight_days_ago) for n in range(5)]
        history_of(spine, (ROOM, [*old, *[ask(f"$new{n}") for n in range(5)]]), page_events=5)
        await serve(spine)
        spine.answer(spine.batch((ROOM, limited(prev=10))))
        await spine.settle()
        await spine.advance(5)
        assert await gap_states(spine) == ["truncated"]
        answered = sorted(source for sources in spine.finals() for source in sources)
        assert answered == [f"$new{n}" for n in range(5)]


# ---- state -----------------------------------------------------------------------------------------------------------
async def test_r45_a13_kick_invite_and_rejoin_in_a_gap_are_one_departure_and_bring_no_old_name_back(
    database_dsn: str,
) -> None:
    """R45, A13, F1: the state block tells of one departure; the kick in the gap is no second one."""
    async with open_spine(database_dsn, thread_mode="room") as spine:
        events = [
            ask("$before"),
            young(state("$name1", "m.room.name", {"name": "old"})),
            young(member("$bob1", BOB, "join", before="join", displayname="Old Bob")),
            young(member("$kick", ME, "leave", sender=BOB, before="join")),
            ask("$between"),
            young(member("$invite", ME, "invite", sender=BOB, before="leave")),
            young(member("$join", ME, "join", before="invite")),
            young(state("$name2", "m.room.name", {"name": "new"})),
            young(member("$bob2", BOB, "join", before="join", displayname="New Bob")),
            ask("$after"),
        ]
        history_of(spine, (ROOM, events), page_events=4)
        await serve(spine)
        epoch = await spine.value("SELECT epoch FROM room_membership")
        furniture = spine.room_batch(ROOM).raw["rooms"]["join"][ROOM]["state"]["events"]
        new_state = [*furniture, events[6], events[7], events[8]]
        spine.answer(spine.batch((ROOM, limited(ask("$now"), prev=10, state=new_state))))
        await spine.settle()
        memberships = "SELECT membership, epoch FROM room_membership"
        contents = "SELECT type, state_key, content FROM room_state ORDER BY 1, 2"
        found = (await spine.rows(memberships), await spine.rows(contents))
        assert found[0] == [("join", epoch + 1)]
        await spine.advance(5)
        assert await gap_states(spine) == ["repaired"]
        assert (await spine.rows(memberships), await spine.rows(contents)) == found
        members = {key: content for kind, key, content in found[1] if kind == "m.room.member"}
        assert "New Bob" in members[BOB]
        assert [content for kind, _, content in found[1] if kind == "m.room.name"] == ['{"name": "new"}']
        assert [source for sources in spine.finals() for source in sources] == ["$after", "$now"]

"""K3: whatever happens to a room, its agent and its database, in any order: one answer, a fence that only grows, no
redacted text anywhere, and the projection of a naive reader of the whole timeline."""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mindroom.core.content import DELIVERY_KEY
from mindroom.core.errors import MatrixDeliveryFailure, MatrixFailureClass
from mindroom.db.embedded import EmbeddedPostgres
from tests.support.databases import fresh_database
from tests.support.events import ALICE, ME, Event, edit, event, member, message
from tests.support.room_server import FURNITURE, RoomServer, naive_texts
from tests.support.spine import LostReply, Spine, open_spine

PICK = st.integers(0, 1000)
LOST = LostReply(MatrixDeliveryFailure("send", MatrixFailureClass.NETWORK))
UNSENT = MatrixDeliveryFailure("send", MatrixFailureClass.NETWORK)


class RandomHistory(RuleBasedStateMachine):
    """One agent in one room with one person."""

    server_dsn: str

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        self.server = RoomServer(lambda: int(self.spine.clock.now().timestamp() * 1000))
        self.written: list[Event] = []
        """What the person wrote, edits included."""
        self.secrets: dict[str, str] = {}
        """Text of each event the person wrote."""
        self.excused: set[str] = set()
        """Messages that need no answer: withdrawn, or cut off by a departure."""
        self.withdrawn: set[str] = set()
        """Messages whose answer was withdrawn: stripped, it names them no more."""
        self.answered_when_saved: set[str] = set()
        self.forgotten: set[str] = set()
        """Messages answered after the save that was restored later. If the answer is withdrawn as well, nothing names
        them any more, and they may be answered again (A6)."""
        self.number = 0
        self.fence = 0
        self.is_up = False
        self.saved = False

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    @initialize(limit=st.integers(2, 6))
    def begin(self, limit: int) -> None:
        self.server.limit = limit
        self.spine: Spine = self.run(self._open())
        for made in FURNITURE:
            self.server.timeline.append({**made, "unsigned": {}, "origin_server_ts": 1})
        self.server.write(member("$in0", ME, "join", before="invite"))
        self._start()

    async def _open(self) -> Spine:
        dsn = await self.stack.enter_async_context(fresh_database(self.server_dsn))
        spine = await self.stack.enter_async_context(open_spine(dsn))
        spine.server = self.server
        return spine

    def _start(self) -> None:
        self.run(self.spine.start())
        assert self.spine.lease is not None
        assert self.spine.lease.fence > self.fence
        self.fence, self.is_up = self.spine.lease.fence, True

    def _new(self, kind: str) -> str:
        self.number += 1
        return f"${kind}{self.number}"

    def _write(self, made: Event, *, later_ms: int = 0) -> None:
        self.secrets[made["event_id"]] = made["content"].get("m.new_content", made["content"])["body"]
        self.written.append(made)
        self.server.write(made, later_ms=later_ms)
        if not self.server.is_member:
            self.excused.add(made["event_id"])

    def _settle(self) -> None:
        if self.is_up:
            self.run(self.spine.settle())
            self.run(self.spine.advance(0.2, step_seconds=0.1))

    # ---- what people do ---------------------------------------------------------------------------------------------
    @rule(count=st.integers(1, 8))
    def say(self, count: int) -> None:
        for _ in range(count):
            event_id = self._new("m")
            self._write(message(event_id, f"secret-of-{event_id}-end"))
        self._settle()

    @precondition(lambda self: self.written)
    @rule(pick=PICK)
    def change(self, pick: int) -> None:
        target = self.written[pick % len(self.written)]
        event_id = self._new("e")
        self._write(edit(event_id, target["event_id"], f"secret-of-{event_id}-end"))
        self._settle()

    @rule()
    def change_before_it_is_written(self) -> None:
        event_id, target = self._new("e"), f"$m{self.number + 1}"
        self._write(edit(event_id, target, f"secret-of-{event_id}-end"), later_ms=1000)
        self._settle()

    @precondition(lambda self: self.written)
    @rule(pick=PICK)
    def withdraw(self, pick: int) -> None:
        self._redact(self.written[pick % len(self.written)]["event_id"])

    @rule(pick=PICK)
    def withdraw_an_answer(self, pick: int) -> None:
        if said := self.server.ours():
            answer = said[pick % len(said)]
            self.withdrawn |= set(answer["content"].get(DELIVERY_KEY, {}).get("sources", ()))
            self._redact(answer["event_id"])

    def _redact(self, target: str) -> None:
        self.excused.add(target)
        made = event(self._new("r"), sender=ALICE, type_="m.room.redaction", content={"redacts": target})
        self.server.write(made)
        self._settle()

    @precondition(lambda self: self.server.is_member)
    @rule()
    def throw_out(self) -> None:
        self.excused |= {made["event_id"] for made in self.written}
        self.server.write(member(self._new("k"), ME, "leave", sender=ALICE, before="join"))
        self._settle()

    @precondition(lambda self: not self.server.is_member)
    @rule()
    def let_in(self) -> None:
        self.server.write(member(self._new("j"), ME, "join", before="leave"))
        self._settle()

    # ---- what happens to us -----------------------------------------------------------------------------------------
    @precondition(lambda self: self.is_up)
    @rule()
    def crash(self) -> None:
        self.run(self.spine.crash())
        self.is_up = False

    @precondition(lambda self: not self.is_up)
    @rule()
    def start(self) -> None:
        self._start()
        self._settle()

    @precondition(lambda self: self.is_up)
    @rule()
    def take_over(self) -> None:
        self.run(self.spine.crash())
        self._start()
        self._settle()

    @rule(faults=st.lists(st.sampled_from([LOST, UNSENT, None]), min_size=1, max_size=3))
    def sends_go_wrong(self, faults: list[Exception | None]) -> None:
        self.server.faults.extend(faults)

    @precondition(lambda self: self.is_up)
    @rule(minutes=st.sampled_from([1, 40, 180]))
    def time_passes(self, minutes: int) -> None:
        self.run(self.spine.advance(minutes * 60, step_seconds=minutes * 6))

    @rule(restore=st.booleans())
    def keep_or_restore_the_database(self, restore: bool) -> None:
        if restore and not self.saved:
            return
        was_up = self.is_up
        self.run(self.spine.crash())
        self.is_up = False
        self.run(_restore(self.spine) if restore else _save(self.spine))
        self.saved = True
        if not restore:
            self.answered_when_saved = self._answered()
        if restore:
            self.forgotten |= self._answered() - self.answered_when_saved
            self.fence = 0  # an older database has an older fence
        if was_up:
            self._start()
            self._settle()

    # ---- what must hold ---------------------------------------------------------------------------------------------
    @invariant()
    def every_rule_of_the_audit_holds(self) -> None:
        if hasattr(self, "spine"):
            assert self.run(self.spine.broken_rules()) == []

    @invariant()
    def no_source_is_answered_twice(self) -> None:
        unknowable = self.withdrawn & self.forgotten
        answers = Counter(source for marker in self.server.markers("final") for source in marker["sources"])
        assert [source for source, times in answers.items() if times > 1 and source not in unknowable] == []
        said = Counter((marker["delivery"], marker["stage"]) for marker in self.server.markers("initial", "final"))
        assert [delivery for delivery, times in said.items() if times > 1] == []

    def teardown(self) -> None:
        try:
            if hasattr(self, "spine"):
                self._come_to_rest()
                self._judge()
        finally:
            self.run(self.stack.aclose())
            self.loop.close()

    def _come_to_rest(self) -> None:
        self.server.faults.clear()
        if not self.is_up:
            self._start()
        if not self.server.is_member:
            self.let_in()
        self.run(self.spine.advance(4 * 3600, step_seconds=300))

    def _judge(self) -> None:
        owed = self.run(
            self.spine.rows("""
            SELECT event_id FROM journal_pending
            UNION ALL SELECT turn_id::text FROM turns WHERE state = 'open'
            UNION ALL SELECT delivery_id::text FROM delivery_outbox WHERE state IN ('queued', 'claimed')
            UNION ALL SELECT to_token FROM room_history_recovery WHERE state = 'repairable'""")
        )
        assert owed == []
        answered = self._answered()
        originals = {made["event_id"] for made in self.written if made["event_id"].startswith("$m")}
        assert originals - self.excused - answered == set()
        shown = self.run(self.spine.rows("SELECT event_id, content ->> 'body' FROM visible_messages"))
        assert dict(shown) == naive_texts(self.server.since_join())
        gone = [text for event_id, text in self.secrets.items() if self._is_redacted(event_id)]
        found = self.run(_dump(self.spine))
        assert [text for text in gone if text in found] == []

    def _answered(self) -> set[str]:
        return {source for marker in self.server.markers("final") for source in marker["sources"]}

    def _is_redacted(self, event_id: str) -> bool:
        return any(m["event_id"] == event_id and "redacted_because" in m["unsigned"] for m in self.server.timeline)


async def _tables(connection: asyncpg.Connection) -> list[str]:
    rows = await connection.fetch(
        "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'"
        " AND c.relname NOT IN ('clock_control', 'alembic_version', 'processes')"
    )
    return [row["relname"] for row in rows]


async def _save(spine: Spine) -> None:
    async with spine.database._pool.acquire() as connection:
        await connection.execute("DROP SCHEMA IF EXISTS saved CASCADE; CREATE SCHEMA saved")
        for table in await _tables(connection):
            await connection.execute(f"CREATE TABLE saved.{table} AS TABLE public.{table}")
        await connection.execute("CREATE TABLE saved.number AS SELECT last_value FROM journal_receipt_number")


async def _restore(spine: Spine) -> None:
    async with spine.database._pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        for table in await _tables(connection):
            await connection.execute(f"TRUNCATE public.{table} CASCADE")
        for table in await _tables(connection):
            await connection.execute(f"INSERT INTO public.{table} OVERRIDING SYSTEM VALUE TABLE saved.{table}")
        await connection.execute("SELECT setval('journal_receipt_number', (SELECT last_value FROM saved.number))")


async def _dump(spine: Spine) -> str:
    async with spine.database._pool.acquire() as connection:
        rows = [
            str(row["text"])
            for table in await _tables(connection)
            for row in await connection.fetch(f"SELECT t::text AS text FROM public.{table} t")
        ]
    return "\n".join(rows)


@pytest.mark.parametrize("examples", [20, pytest.param(400, marks=pytest.mark.long)])
@pytest.mark.timeout(1800)
def test_k3_a_random_history_ends_in_one_answer_and_the_naive_projection(
    examples: int, postgres_server: EmbeddedPostgres
) -> None:
    """K3. The short run is the same every time; the long one is not, and `--hypothesis-seed` repeats it."""
    machine = type("Machine", (RandomHistory,), {"server_dsn": postgres_server.dsn})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            derandomize=examples <= 20,
            stateful_step_count=25,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )

"""Hot statements use their index and touch only the rows they need, with a million receipts behind them (K, A8)."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from mindroom.core.ids import PrincipalId
from mindroom.db.embedded import EmbeddedPostgres
from mindroom.db.engine import Database, Tx
from mindroom.journal.hydration import ENOUGH_MESSAGES
from mindroom.journal.projection import CONVERSATION_LIMIT
from mindroom.journal.statements import SQL as JOURNAL
from mindroom.outbox.store import SQL as OUTBOX
from mindroom.turnstore.store import SQL as TURNS
from tests.plans.explain import Plan, explain
from tests.support.databases import fresh_database
from tests.support.ledgers import add_principal, open_database

BIG = {
    "journal_receipts",
    "journal_pending",
    "journal_settlements",
    "visible_messages",
    "delivery_outbox",
    "answered_marks",
    "redaction_tombstones",
    "turn_sources",
    "turns",
}
RECEIPTS = 1_000_000
FILL = [
    f"""INSERT INTO journal_receipts (receipt, principal, epoch, origin_ts, base, page, idx, event_id, room_id,
                                     thread_id, sender, kind, class)
       SELECT n, 1, 1, n, n, 0, 0, '$e' || n, '!r' || n % 20, '', '@u' || n % 50, 'message', 'live'
       FROM generate_series(1, {RECEIPTS}) n""",
    f"SELECT setval('journal_receipt_number', {RECEIPTS})",
    f"""INSERT INTO journal_pending (receipt, principal, epoch, origin_ts, base, page, idx, event_id, room_id,
                                     thread_id, sender, kind, class, source, next_attempt_at)
       SELECT receipt, principal, epoch, origin_ts, base, page, idx, event_id, room_id, thread_id, sender, kind, class,
              '{{"body": "x"}}', CASE WHEN receipt % 100 = 0 THEN mindroom_now() + interval '1 hour' END
       FROM journal_receipts WHERE receipt > {RECEIPTS - 2000}""",
    f"""INSERT INTO journal_settlements (receipt, outcome)
       SELECT n, 'answered' FROM generate_series(1, {RECEIPTS - 2000}) n""",
    f"""INSERT INTO answered_marks (principal, event_id)
       SELECT 1, '$e' || n FROM generate_series(1, {RECEIPTS - 2000}, 10) n""",
    """INSERT INTO redaction_tombstones (principal, room_id, event_id)
       SELECT 1, '!r' || n % 20, '$gone' || n FROM generate_series(1, 5000) n""",
    """INSERT INTO visible_messages (principal, room_id, event_id, thread_id, sender, epoch, origin_ts, base, page, idx,
                                     content, revision_ts, revision_id)
       SELECT 1, CASE WHEN n % 2 = 0 THEN '!busy' ELSE '!r' || n % 20 END, '$e' || n,
              CASE WHEN n % 2 = 0 THEN '' ELSE '$e' || n - n % 100 END, '@u' || n % 50, 1, n, n, 0, 0,
              '{"body": "x"}', n, '$e' || n
       FROM generate_series(1, 20000) n""",
    """INSERT INTO turns (turn_id, principal, room_id, thread_id, reply_to, requester, epoch, fence, kind, state,
                          outcome, closed_at, reason, config_generation, model)
       SELECT lpad(to_hex(n), 32, '0')::uuid, 1, '!r' || n % 20, '$e' || n, '', '@u', 1, 1, 'message', 'closed',
              'answered', mindroom_now(), 'mention', 'c', 'm'
       FROM generate_series(1, 10000) n""",
    """INSERT INTO turn_sources (turn_id, ordinal, principal, event_id, receipt, base, page, idx)
       SELECT lpad(to_hex(n), 32, '0')::uuid, 1, 1, '$e' || n, n, n, 0, 0 FROM generate_series(1, 10000) n""",
    """INSERT INTO delivery_outbox (delivery_id, stage, principal, turn_id, generation, purpose, room_id, thread_id,
                                    epoch, content, txn_id, state, acked_event_id)
       SELECT lpad(to_hex(n), 32, '0')::uuid, s, 1, lpad(to_hex(n), 32, '0')::uuid, 1, 'answer', '!r' || n % 20, '', 1,
              '{"body": "x"}', s || '.' || n, CASE WHEN n > 9990 AND s = 'final' THEN 'queued' ELSE 'acked' END,
              '$x' || n
       FROM generate_series(1, 10000) n, unnest(ARRAY['initial', 'final']) s""",
]


@pytest.fixture(scope="module")
def filled_dsn(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    """Filled once: what a test does it undoes."""

    async def fill(dsn: str) -> None:
        async with open_database(dsn) as opened:
            assert await add_principal(opened) == PrincipalId(1)
            async with opened.transaction("test.fill") as tx:
                for statement in FILL:
                    await tx.execute(statement)
            await opened.fetch("VACUUM ANALYZE")

    with asyncio.Runner() as runner:
        made = fresh_database(postgres_server.dsn)
        dsn = runner.run(made.__aenter__())
        try:
            runner.run(fill(dsn))
            yield dsn
        finally:
            runner.run(made.__aexit__(None, None, None))


@pytest.fixture
async def database(filled_dsn: str) -> AsyncIterator[Database]:
    async with open_database(filled_dsn) as opened:
        yield opened


class _Undo(Exception):
    """Rolls a measured statement back."""


async def plan(database: Database, statement: str, *args: Any) -> Plan:
    """How a statement runs; whatever it wrote is undone."""
    found: list[Plan] = []

    async def run(tx: Tx) -> None:
        found.append(await explain(tx, statement, *args))
        raise _Undo

    with pytest.raises(_Undo):
        async with database.transaction("test.plan") as tx:
            await run(tx)
    assert not found[0].scanned() & BIG
    return found[0]


async def test_a_page_of_pending_sources_reads_one_page(database: Database) -> None:
    """C3: whatever is behind it."""
    found = await plan(database, JOURNAL["pending_page"], 1, RECEIPTS - 1500, 0, 0, RECEIPTS - 1500, [], 500)
    assert "journal_pending_order" in found.indexes()
    assert 500 <= found.rows_read("journal_pending") <= 520


async def test_hearing_looks_each_event_up_once(database: Database) -> None:
    """A2, A8: the dedupe index answers, old and new events alike."""
    names = [f"$e{n}" for n in range(RECEIPTS - 10, RECEIPTS + 40)]
    many = len(names)
    found = await plan(
        database,
        JOURNAL["hear"],
        1,
        names,
        ["!r1"] * many,
        [""] * many,
        ["message"] * many,
        ["live"] * many,
        ["@u"] * many,
        [1] * many,
        [1] * many,
        [None] * many,
        [0] * many,
        [0] * many,
        ['{"content": {"body": "x"}}'] * many,
        [None] * many,
        [True] * many,
        [None] * many,
        [None] * many,
        [None] * many,
        "token",
        "certified",
        "admitted",
    )
    assert {"journal_receipts_event_key", "answered_marks_pkey", "redaction_tombstones_pkey"} <= found.indexes()
    assert found.rows_read("journal_receipts") <= many


async def test_a_prompt_reads_the_newest_messages_of_a_long_conversation(database: Database) -> None:
    found = await plan(database, JOURNAL["conversation"], 1, "!busy", "", CONVERSATION_LIMIT)
    assert "visible_messages_conversation" in found.indexes()
    assert found.rows_read("visible_messages") <= CONVERSATION_LIMIT + 1


async def test_a_thread_reads_its_root_and_its_members(database: Database) -> None:
    found = await plan(database, JOURNAL["conversation"], 1, "!r1", "$e1000", CONVERSATION_LIMIT)
    assert {"visible_messages_conversation", "visible_messages_pkey"} <= found.indexes()
    assert found.rows_read("visible_messages") <= 12


async def test_admission_reads_only_the_projection_rows_it_touches(database: Database) -> None:
    events = [f"$e{n}" for n in range(1, 100, 2)]
    rooms = [f"!r{n % 20}" for n in range(1, 100, 2)]
    found = await plan(database, JOURNAL["read_projection"], 1, rooms, events, ["!r1"], ["$e21"])
    assert {"visible_messages_pkey", "redaction_tombstones_pkey"} <= found.indexes()
    assert found.rows_read("visible_messages") <= 51


async def test_what_is_owed_is_found_without_what_was_said(database: Database) -> None:
    found = await plan(database, OUTBOX["owed"], 1)
    assert "delivery_outbox_owed" in found.indexes()
    assert found.rows_read("delivery_outbox") == 10


async def test_a_delivery_is_loaded_with_its_placeholder_by_key(database: Database) -> None:
    found = await plan(database, OUTBOX["load"], 1, f"{10_000:032x}", "final")
    assert found.indexes() == {"delivery_outbox_pkey"}
    assert found.rows_read("delivery_outbox") == 2


async def test_a_turn_is_loaded_by_key(database: Database) -> None:
    found = await plan(database, TURNS["load_turn"], 1, f"{77:032x}")
    assert {"turns_pkey", "turn_sources_pkey"} <= found.indexes()
    assert found.rows_read("turn_sources") == 1


async def test_what_a_redaction_takes_is_found_by_its_event(database: Database) -> None:
    """I2: our own words and the steps that cite it."""
    said = await plan(database, OUTBOX["forget"], 1, ["!r0"], ["$gone1"])
    assert "delivery_outbox_event" in said.indexes()
    assert said.rows_read("delivery_outbox") <= 2
    cited = await plan(database, TURNS["forget_steps"], 1, ["!r0"], ["$e20"], [])
    assert cited.rows_read("turn_sources") <= 1
    owed = await plan(database, JOURNAL["withheld"], 1, 100)
    assert owed.indexes() == {"visible_messages_withheld"}


async def test_settling_and_marking_find_sources_by_event(database: Database) -> None:
    settle = await plan(
        database, JOURNAL["settle_events"], 1, [f"$e{RECEIPTS - 1000}", f"$e{RECEIPTS - 999}"], "answered", None, None
    )
    assert "journal_pending_event" in settle.indexes()
    marks = await plan(
        database, JOURNAL["mark_answered"], 1, [f"$e{RECEIPTS - 1000}", f"$e{RECEIPTS - 999}"], [None, None]
    )
    assert "journal_pending_event" in marks.indexes()
    assert settle.rows_read("journal_pending") == marks.rows_read("journal_pending") == 2


async def test_how_far_a_conversation_is_known_is_asked_by_keys(database: Database) -> None:
    """A12: asked before each prompt and each verdict in a thread; a long conversation is counted up to a bound."""
    fill = "INSERT INTO room_membership (principal, room_id, epoch, membership) VALUES (1, '!busy', 1, 'join')"
    async with database.transaction("test.fill") as tx:
        await tx.execute(fill)
    found = await plan(database, JOURNAL["hydration"], 1, "!busy", "", ENOUGH_MESSAGES)
    assert found.rows_read("visible_messages") <= ENOUGH_MESSAGES + 10
    found = await plan(database, JOURNAL["hydration"], 1, "!busy", "$e100", ENOUGH_MESSAGES)
    assert {"visible_messages_pkey", "journal_receipts_event_key"} <= found.indexes()


async def test_the_messages_of_a_page_are_found_by_their_keys(database: Database) -> None:
    """A12: a page of history, and what takes a receipt's place."""
    names = [f"$e{n}" for n in range(1000, 1040)]
    many = len(names)
    found = await plan(database, JOURNAL["places"], 1, "!busy", names)
    assert found.rows_read("visible_messages") <= many
    rows = (["!busy"] * many, names, [1] * many, [0] * many, [0] * many)
    found = await plan(database, JOURNAL["place_shown"], 1, *rows)
    assert found.rows_read("visible_messages") <= many

"""`mindroom audit` (K4): each rule is broken once in a real database, and the audit names it and nothing else."""

import asyncio
import json

import asyncpg
import pytest

from mindroom import cli
from mindroom.ops.audit import RULES

Told = pytest.CaptureFixture[str]

TURN = "0190a000-0000-7000-8000-000000000001"
ANSWER = "0190a000-0000-5000-8000-000000000002"
SOUND = f"""
INSERT INTO processes (host, pid, boot_id, data_folder, version) VALUES ('here', 42, 'boot', '/data', '0');
INSERT INTO principals (name, kind, user_id) VALUES ('ada', 'agent', '@ada:x');
INSERT INTO principal_beat (principal, owner, expires_at) VALUES (1, 1, mindroom_now() + interval '1 hour');
INSERT INTO sync_checkpoints (principal, token, trust, reason) VALUES (1, 's1', 'certified', 'admitted');
INSERT INTO room_membership (principal, room_id, epoch, membership) VALUES (1, '!r', 2, 'join');
INSERT INTO journal_receipts (receipt, principal, epoch, origin_ts, base, page, idx, event_id, room_id, thread_id,
    sender, kind, class)
    SELECT n, 1, 2, 0, n, 0, 0, '$' || n, '!r', '', '@bob:x', 'message', 'live' FROM generate_series(1, 2) n;
INSERT INTO journal_pending (receipt, principal, epoch, origin_ts, base, page, idx, event_id, room_id, thread_id,
    sender, kind, class, source) VALUES (2, 1, 2, 0, 2, 0, 0, '$2', '!r', '', '@bob:x', 'message', 'live', '{{}}');
INSERT INTO turns (turn_id, principal, room_id, thread_id, reply_to, requester, epoch, fence, kind, state, outcome,
    reason, config_generation, model, closed_at) VALUES
    ('{TURN}', 1, '!r', '$1', '$1', '@bob:x', 2, 1, 'message', 'closed', 'answered', 'sole', 'c', 'm', mindroom_now());
INSERT INTO turn_sources (turn_id, ordinal, principal, event_id, receipt, base, page, idx)
    VALUES ('{TURN}', 1, 1, '$1', 1, 1, 0, 0);
INSERT INTO journal_settlements (receipt, outcome, turn_id) VALUES (1, 'answered', '{TURN}');
INSERT INTO delivery_outbox (delivery_id, stage, principal, turn_id, generation, purpose, room_id, thread_id, epoch,
    txn_id, state, acked_event_id) VALUES
    ('{ANSWER}', 'initial', 1, '{TURN}', 1, 'answer', '!r', '$1', 2, 'initial.{ANSWER}', 'acked', '$i'),
    ('{ANSWER}', 'final', 1, '{TURN}', 1, 'answer', '!r', '$1', 2, 'final.{ANSWER}', 'acked', '$f');
INSERT INTO visible_messages (principal, room_id, event_id, thread_id, sender, epoch, origin_ts, base, page, idx,
    content, revision_ts, revision_id) VALUES (1, '!r', '$1', '', '@bob:x', 2, 0, 1, 0, 0, '{{"body": "hi"}}', 0, '$1');
"""
OPEN_TURN = f"UPDATE turns SET state = 'open', outcome = NULL, closed_at = NULL WHERE turn_id = '{TURN}'"
BREAKS = {
    "open_turn_without_source": OPEN_TURN,
    "source_settled_and_pending": "INSERT INTO journal_settlements (receipt, outcome) VALUES (2, 'ignored.own')",
    "answer_owed_for_a_pending_source": f"""
        INSERT INTO turn_sources (turn_id, ordinal, principal, event_id, receipt, base, page, idx)
        VALUES ('{TURN}', 2, 1, '$2', 2, 2, 0, 0)""",
    "answered_without_answer": "DELETE FROM delivery_outbox",
    "receipt_missing": "DELETE FROM journal_receipts WHERE receipt = 2",
    "history_is_work": "UPDATE journal_receipts SET class = 'history' WHERE receipt = 2",
    "order_differs": "UPDATE journal_pending SET base = 7",
    "answered_mark_is_pending": "INSERT INTO answered_marks VALUES (1, '$2')",
    "batch_too_large": f"""
        INSERT INTO turn_sources (turn_id, ordinal, principal, event_id, receipt, base, page, idx)
        SELECT '{TURN}', n, 1, 'e' || n, 0, 0, 0, 0 FROM generate_series(2, 101) n""",
    "certified_without_token": "UPDATE sync_checkpoints SET token = NULL",
    "row_of_an_ended_stay": "UPDATE visible_messages SET epoch = 1",
    "redacted_text": "INSERT INTO redaction_tombstones (principal, room_id, event_id) VALUES (1, '!r', '$1')",
    "one_event_for_two_deliveries": "UPDATE delivery_outbox SET acked_event_id = '$f'",
    "final_overtook_initial": """
        UPDATE delivery_outbox SET state = 'queued', acked_event_id = NULL WHERE stage = 'initial'""",
    "placeholder_left": "DELETE FROM delivery_outbox WHERE stage = 'final'; DELETE FROM journal_settlements",
    "transaction_id_differs": "UPDATE delivery_outbox SET txn_id = 'final.other' WHERE stage = 'final'",
    "lease_of_an_ended_process": "UPDATE processes SET stopped_at = mindroom_now()",
    "clock_was_moved": "UPDATE clock_control SET test_offset = interval '1 s'",
}


@pytest.fixture
def sound(database_dsn: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database in which every rule holds; selected by DATABASE_URL."""
    _execute(database_dsn, SOUND)
    monkeypatch.setenv("DATABASE_URL", database_dsn)
    return database_dsn


def _execute(dsn: str, statement: str) -> None:
    async def work() -> None:
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(work())


def test_k4_every_rule_of_the_audit_is_broken_once_here() -> None:
    assert set(BREAKS) == {rule.name for rule in RULES.all()}


def test_k4_a_sound_database_passes(sound: str, capsys: Told) -> None:
    assert cli.main(["audit", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert cli.main(["audit"]) == 0
    assert capsys.readouterr().out == f"All {len(RULES.all())} rules hold.\n"


@pytest.mark.parametrize("rule", sorted(BREAKS))
def test_k4_a_broken_rule_is_named_with_its_subject(rule: str, sound: str, capsys: Told) -> None:
    _execute(sound, BREAKS[rule])
    assert cli.main(["audit", "--json"]) == 1
    broken = {found["rule"]: found for found in json.loads(capsys.readouterr().out)}
    also = {"answered_without_answer"} if rule == "placeholder_left" else set()
    assert set(broken) - also == {rule}
    assert broken[rule]["times"] >= 1
    assert broken[rule]["subjects"][0].startswith(("ada: ", "all: "))
    assert cli.main(["audit"]) == 1
    assert rule in capsys.readouterr().out


def test_operator_commands_understand_the_address_of_a_pooler(
    sound: str, capsys: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H3: `pgbouncer=true` is ours and never reaches the server."""
    monkeypatch.setenv("DATABASE_URL", f"{sound}&pgbouncer=true")
    for argv in (["audit"], ["explain", "$1"], ["status"], ["journal", "ls"]):
        assert cli.main(argv) == 0, capsys.readouterr().err
    assert cli.main(["journal", "retry", "$1"]) == 1
    assert "is not parked" in capsys.readouterr().err

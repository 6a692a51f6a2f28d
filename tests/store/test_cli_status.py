"""`mindroom status` and `mindroom journal ls` over a real database: what operators see, and never a message."""

import asyncio
import json
from collections.abc import Sequence
from datetime import datetime

import asyncpg
import pytest

from mindroom import cli
from mindroom.db.schema import EXPECTED_REVISION

Told = pytest.CaptureFixture[str]

SECRET = "a body nobody may see"
SETUP = f"""
INSERT INTO processes (host, pid, boot_id, data_folder, version) VALUES ('here', 42, 'boot', '/data', '0');
UPDATE processes SET beat_at = mindroom_now() - interval '20 seconds';
INSERT INTO principals (name, kind, user_id) VALUES ('busy', 'agent', '@busy:x'), ('idle', 'agent', '@idle:x');
UPDATE principals SET unhealthy_reason = 'M_USER_DEACTIVATED' WHERE name = 'idle';
INSERT INTO principal_fence (principal, fence) VALUES (1, 7), (2, 0);
INSERT INTO principal_beat (principal, owner, expires_at) VALUES (1, 1, mindroom_now() + interval '1 hour');
INSERT INTO principal_beat (principal) VALUES (2);
INSERT INTO sync_checkpoints (principal, token, trust, reason) VALUES (1, 's1', 'certified', 'admitted');
INSERT INTO room_history_recovery (principal, room_id, to_token, from_token, floor, epoch)
    VALUES (1, '!r', 't2', 't1', 0, 1);
INSERT INTO room_history_recovery (principal, room_id, to_token, from_token, floor, epoch, state)
    VALUES (1, '!r', 't3', 't1', 0, 1, 'truncated'), (1, '!r', 't4', 't1', 0, 1, 'truncated');
INSERT INTO journal_receipts (principal, epoch, origin_ts, base, page, idx, event_id, room_id, thread_id, sender, kind,
    class)
    SELECT 1 + n % 2, 1, 0, n, 0, 0, '$' || n, '!r', '', '@ada:x', 'message', 'live' FROM generate_series(1, 4) n;
INSERT INTO journal_pending (receipt, principal, epoch, origin_ts, base, page, idx, event_id, room_id, thread_id,
    sender, kind, class, source, admitted_at)
    SELECT receipt, principal, 1, 0, base, 0, 0, event_id, '!r', '', sender, kind, class,
    '{{"content": {{"body": "{SECRET}"}}}}', mindroom_now() - interval '90 s' FROM journal_receipts WHERE receipt = 2;
INSERT INTO journal_settlements (receipt, outcome) VALUES (1, 'answered'), (3, 'ignored.unauthorized');
INSERT INTO delivery_outbox (delivery_id, stage, principal, generation, purpose, room_id, thread_id, epoch, txn_id)
    VALUES (gen_random_uuid(), 'final', 1, 1, 'notice', '!r', '', 1, 'm1');
"""


@pytest.fixture
def filled(database_dsn: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database with one served principal, one that rests, and four events; selected by DATABASE_URL."""
    asyncio.run(_execute(database_dsn, SETUP))
    monkeypatch.setenv("DATABASE_URL", database_dsn)
    return database_dsn


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def listed(capsys: Told, *argv: str) -> list[dict[str, object]]:
    assert cli.main(["journal", "ls", "--json", *argv]) == 0
    rows: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return rows


def receipts(rows: Sequence[dict[str, object]]) -> list[object]:
    return [row["receipt"] for row in rows]


def test_status_tells_owner_lease_fence_trust_and_debts_of_every_principal(filled: str, capsys: Told) -> None:
    assert cli.main(["status", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["schema"], status["instance"]) == (EXPECTED_REVISION, None)
    busy, idle = status["principals"]
    expires = datetime.fromisoformat(busy.pop("lease_expires_at"))
    oldest = busy.pop("oldest_seconds")
    assert 20 <= busy.pop("beat_seconds") < 60
    since = datetime.fromisoformat(busy.pop("trust_since"))

    assert busy == {
        "principal": "busy",
        "user_id": "@busy:x",
        "process": 1,
        "host": "here",
        "pid": 42,
        "served": True,
        "fence": 7,
        "trust": "certified",
        "trust_reason": "admitted",
        "open_gaps": 1,
        "truncated_gaps": 2,
        "pending": 1,
        "outbox_owed": 1,
        "unhealthy_reason": None,
    }
    assert expires > since
    assert 90 <= oldest < 600
    assert (idle["served"], idle["process"], idle["lease_expires_at"]) == (False, None, None)
    assert (idle["trust"], idle["pending"], idle["oldest_seconds"]) == ("cold", 0, None)
    assert idle["unhealthy_reason"] == "M_USER_DEACTIVATED"


def test_status_for_people_is_one_line_a_principal(filled: str, capsys: Told) -> None:
    assert cli.main(["status"]) == 0
    schema, heads, busy, idle = capsys.readouterr().out.splitlines()
    assert EXPECTED_REVISION in schema
    assert heads.split()[:2] == ["PRINCIPAL", "SERVED"]
    assert "here:42" in busy
    assert "certified (admitted)" in busy
    assert [cell.strip() for cell in busy.split("  ") if cell][-1:] == ["-"]
    assert "nobody" in idle
    assert idle.endswith("M_USER_DEACTIVATED")


def test_a_database_without_principals_says_so(
    database_dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: Told
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_dsn)
    assert cli.main(["status"]) == 0
    assert "No principals yet." in capsys.readouterr().out
    assert cli.main(["journal", "ls"]) == 0
    assert capsys.readouterr().out == "No such events.\n"


def test_journal_ls_shows_the_newest_first_by_state_principal_and_limit(filled: str, capsys: Told) -> None:
    assert receipts(listed(capsys)) == [4, 3, 2, 1]
    assert receipts(listed(capsys, "--limit", "2")) == [4, 3]
    assert receipts(listed(capsys, "--state", "pending")) == [2]
    assert receipts(listed(capsys, "--state", "settled", "--limit", "2")) == [4, 3]
    assert receipts(listed(capsys, "--principal", "busy")) == [4, 2]
    assert receipts(listed(capsys, "--principal", "busy", "--state", "settled")) == [4]
    outcomes = {row["receipt"]: (row["state"], row["outcome"]) for row in listed(capsys)}
    assert outcomes == {
        1: ("settled", "answered"),
        2: ("pending", None),
        3: ("settled", "ignored.unauthorized"),
        4: ("settled", None),
    }


def test_no_message_is_ever_shown(filled: str, capsys: Told) -> None:
    """I2 at the operator's terminal."""
    for argv in (["journal", "ls"], ["journal", "ls", "--json"], ["status"], ["status", "--json"]):
        assert cli.main(argv) == 0
    assert SECRET not in capsys.readouterr().out


@pytest.mark.parametrize("limit", ["0", "-1", "many"])
def test_a_limit_is_a_positive_number(limit: str, capsys: Told) -> None:
    assert cli.main(["journal", "ls", "--limit", limit]) == 2
    assert "is not a number" in capsys.readouterr().err


def test_another_schema_is_named_with_its_remedy(filled: str, capsys: Told) -> None:
    asyncio.run(_execute(filled, "UPDATE alembic_version SET version_num = 'r9999_future'"))
    for argv in (["status"], ["journal", "ls"]):
        assert cli.main(argv) == 1
        assert "r9999_future" in capsys.readouterr().err


def test_outbox_ls_shows_what_is_owed_or_failed_and_why(filled: str, capsys: Told) -> None:
    """E6: a delivery that can never be said is found with its reason, and its text stays where it is (I2)."""
    rows = "".join(
        f"INSERT INTO delivery_outbox (delivery_id, stage, principal, generation, purpose, room_id, thread_id, epoch, "
        f"content, txn_id, state, last_error, acked_event_id) SELECT gen_random_uuid(), 'final', min(principal), 1, "
        f"'answer', '!r:x', '', 1, '{{\"body\": \"{SECRET}\"}}', 'final.{state}', '{state}', 'why', '$e' "
        "FROM principals;"
        for state in ("queued", "failed", "acked")
    )
    asyncio.run(_execute(filled, rows))
    assert cli.main(["outbox", "ls", "--json"]) == 0
    shown = capsys.readouterr().out
    states = [row["state"] for row in json.loads(shown) if row["last_error"] == "why"]
    assert sorted(states) == ["failed", "queued"]
    assert cli.main(["outbox", "ls", "--state", "acked"]) == 0
    assert "acked" in capsys.readouterr().out
    assert SECRET not in shown
    assert cli.main(["outbox", "ls", "--principal", "nobody"]) == 0
    assert capsys.readouterr().out == "No such deliveries.\n"

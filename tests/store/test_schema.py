"""The schema: built alike by both descriptions, commented, documented, and upgraded safely by a child process."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest
from alembic.script import ScriptDirectory
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from migrations import reference, tables
from migrations.upgrade import LOCK_KEY, alembic_config
from mindroom.core.errors import DatabaseUnavailable, UserError
from mindroom.db import schema

CHECKOUT = Path(__file__).parents[2]
REFERENCE = CHECKOUT / "docs" / "reference" / "schema.md"

CATALOG = {
    "tables": "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'",
    "columns": """
        SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity::text,
               l.collname, pg_get_expr(d.adbin, d.adrelid)
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
        LEFT JOIN pg_collation l ON l.oid = a.attcollation
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, contype::text, pg_get_constraintdef(oid)
        FROM pg_constraint WHERE connamespace = 'public'::regnamespace""",
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
    "sequences": """
        SELECT sequencename, data_type::text, start_value, increment_by, max_value, cycle
        FROM pg_sequences WHERE schemaname = 'public'""",
}
COMMENTED = {
    "tables and views": """
        SELECT relname, obj_description(oid, 'pg_class') FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v')""",
    "indexes": """
        SELECT relname, obj_description(oid, 'pg_class') FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind = 'i'""",
    "functions": """
        SELECT proname, obj_description(oid, 'pg_proc') FROM pg_proc
        WHERE pronamespace = 'public'::regnamespace""",
}


@asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture
async def empty_database_dsn(database_dsn: str) -> AsyncIterator[str]:
    """A database without any schema, beside the upgraded one."""
    name = f"empty_{uuid4().hex[:12]}"
    async with _connected(database_dsn) as connection:
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        yield urlsplit(database_dsn)._replace(path=f"/{name}").geturl()
        await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


async def _catalog(dsn: str) -> dict[str, list[tuple[Any, ...]]]:
    async with _connected(dsn) as connection:
        found = {name: [tuple(row) for row in await connection.fetch(query)] for name, query in CATALOG.items()}
    return {
        name: sorted((row for row in rows if row[0] != "alembic_version"), key=repr) for name, rows in found.items()
    }


async def _create_from_tables(dsn: str) -> None:
    async with _connected(dsn) as connection:
        await connection.execute(
            "CREATE FUNCTION mindroom_now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT now()'"
        )
    engine = create_async_engine("postgresql+asyncpg://", connect_args={"dsn": dsn}, poolclass=NullPool)
    async with engine.begin() as connection:
        await connection.run_sync(tables.metadata.create_all)
    await engine.dispose()


async def test_revisions_and_tables_build_the_same_catalog(database_dsn: str, empty_database_dsn: str) -> None:
    await _create_from_tables(empty_database_dsn)
    by_revisions, by_tables = await _catalog(database_dsn), await _catalog(empty_database_dsn)
    assert len(by_revisions["tables"]) > 20
    for part in CATALOG:
        assert by_tables[part] == by_revisions[part], part


@pytest.mark.parametrize("kind", COMMENTED)
async def test_everything_in_the_schema_carries_a_comment(database_dsn: str, kind: str) -> None:
    async with _connected(database_dsn) as connection:
        rows = await connection.fetch(COMMENTED[kind])
    assert rows
    assert [name for name, comment in rows if not comment] == []


async def test_the_reference_page_is_what_the_comments_say(database_dsn: str) -> None:
    async with _connected(database_dsn) as connection:
        page = await reference.render(connection)
        names = [row[0] for query in COMMENTED.values() for row in await connection.fetch(query)]
    assert [name for name in names if name not in page] == []
    assert REFERENCE.read_text() == page, (
        "regenerate it: DATABASE_URL=… python -m migrations.reference > docs/reference/schema.md"
    )


async def test_the_documented_question_works(database_dsn: str) -> None:
    async with _connected(database_dsn) as connection:
        assert await connection.fetch("SELECT state, COUNT(*) FROM journal_events GROUP BY state") == []


async def test_text_ids_compare_by_bytes_in_every_table(database_dsn: str) -> None:
    async with _connected(database_dsn) as connection:
        columns = await connection.fetch(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
            " AND table_name <> 'journal_events' AND data_type = 'text' AND collation_name IS DISTINCT FROM 'C'"
            " AND (column_name LIKE '%\\_id' OR column_name IN ('sender', 'requester', 'inviter', 'reply_to'))"
        )
    assert [tuple(row) for row in columns] == [("processes", "boot_id")]


def test_the_program_knows_exactly_the_revisions_in_the_folder() -> None:
    scripts = ScriptDirectory.from_config(alembic_config())
    chain = [script.revision for script in scripts.walk_revisions()]
    assert tuple(reversed(chain)) == schema.REVISIONS
    assert scripts.get_current_head() == schema.EXPECTED_REVISION
    assert schema.migrations_package() == (CHECKOUT, "migrations")


def test_asking_for_the_schema_loads_neither_sqlalchemy_nor_alembic() -> None:
    code = "import sys, mindroom.db.schema; print([m for m in ('sqlalchemy', 'alembic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=CHECKOUT)
    assert done.stdout.strip() == "[]"


async def test_an_empty_database_is_refused_and_the_command_named(empty_database_dsn: str) -> None:
    assert await schema.read_revision(empty_database_dsn) is None
    with pytest.raises(UserError, match=r"no MindRoom schema yet.*r0001_spine.*mindroom db upgrade"):
        await schema.check_schema(empty_database_dsn)


async def test_an_upgraded_database_is_accepted(database_dsn: str) -> None:
    await schema.check_schema(database_dsn)
    assert await schema.read_revision(database_dsn) == schema.EXPECTED_REVISION
    async with _connected(database_dsn) as connection:
        assert await schema.read_revision(connection) == schema.EXPECTED_REVISION


async def test_an_older_schema_is_refused_and_the_command_named(
    database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "REVISIONS", (*schema.REVISIONS, "r0002_next"))
    monkeypatch.setattr(schema, "EXPECTED_REVISION", "r0002_next")
    with pytest.raises(UserError, match=r"older schema r0001_spine.*needs r0002_next.*mindroom db upgrade"):
        await schema.check_schema(database_dsn)


async def test_a_newer_schema_is_refused_and_never_taken_back(database_dsn: str) -> None:
    async with _connected(database_dsn) as connection:
        await connection.execute("UPDATE alembic_version SET version_num = 'r9999_future'")
    for attempt in (schema.check_schema, schema.upgrade, schema.upgrade_if_needed):
        with pytest.raises(UserError, match=r"r9999_future.*newer MindRoom.*mindroom db upgrade"):
            await attempt(database_dsn)
    assert await schema.read_revision(database_dsn) == "r9999_future"


async def test_an_upgrade_says_what_it_does_and_a_second_one_has_nothing_to_do(empty_database_dsn: str) -> None:
    lines: list[str] = []
    await schema.upgrade(empty_database_dsn, progress=lines.append)
    assert lines == ["schema r0001_spine: the spine: heard, did, said and control"]
    await schema.upgrade(empty_database_dsn, progress=lines.append)
    assert len(lines) == 1


async def test_two_upgrades_at_once_are_safe(empty_database_dsn: str) -> None:
    lines: list[str] = []
    await asyncio.gather(*(schema.upgrade(empty_database_dsn, progress=lines.append) for _ in range(2)))
    assert len(lines) == 1
    await schema.check_schema(empty_database_dsn)


async def test_no_process_starts_when_the_revision_is_the_expected_one(
    database_dsn: str, empty_database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a child process was started")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    await schema.upgrade_if_needed(database_dsn)
    with pytest.raises(AssertionError, match="a child process"):
        await schema.upgrade_if_needed(empty_database_dsn)


async def test_a_failed_upgrade_changes_nothing_and_gives_the_reason(empty_database_dsn: str) -> None:
    async with _connected(empty_database_dsn) as connection:
        await connection.execute("CREATE TABLE delivery_outbox ()")
    with pytest.raises(UserError, match=r'nothing was changed.*relation "delivery_outbox" already exists'):
        await schema.upgrade(empty_database_dsn)
    assert await schema.read_revision(empty_database_dsn) is None
    assert (await _catalog(empty_database_dsn))["tables"] == [("delivery_outbox",)]


async def test_a_database_of_another_encoding_is_refused_with_the_remedy(
    database_dsn: str, empty_database_dsn: str
) -> None:
    name = urlsplit(empty_database_dsn).path.removeprefix("/")
    async with _connected(database_dsn) as connection:
        await connection.execute(f"DROP DATABASE {name}")
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
    with pytest.raises(UserError, match="ENCODING 'UTF8'"):
        await schema.upgrade(empty_database_dsn)


async def test_a_cancelled_upgrade_ends_its_process_and_changes_nothing(empty_database_dsn: str) -> None:
    async with _connected(empty_database_dsn) as connection:
        await connection.execute("SELECT pg_advisory_lock($1)", LOCK_KEY)
        running = asyncio.create_task(schema.upgrade(empty_database_dsn))
        backends = (
            "SELECT pid FROM pg_sleep(0.01), pg_stat_activity"
            " WHERE application_name = 'mindroom db upgrade' AND datname = current_database()"
        )
        while await connection.fetchval(backends + " AND wait_event_type = 'Lock'") is None:
            pass
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await connection.execute("SELECT pg_advisory_unlock($1)", LOCK_KEY)
        while await connection.fetchval(backends) is not None:
            pass
    assert (await _catalog(empty_database_dsn))["tables"] == []


async def test_the_child_gets_neither_our_secrets_nor_the_dsn_where_others_can_see_it(
    empty_database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3: the key and model keys stay here; the DSN goes over standard input."""
    seen: list[Any] = []
    start = asyncio.create_subprocess_exec

    async def watch(*arguments: str, **options: Any) -> Any:
        seen.append((arguments, options["env"]))
        return await start(*arguments, **options)

    for name in ("MINDROOM_SECRET_KEY", "OPENAI_API_KEY", "DATABASE_URL"):
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("PGAPPNAME", "kept")
    monkeypatch.setattr(asyncio, "create_subprocess_exec", watch)
    await schema.upgrade(empty_database_dsn)
    [(arguments, environment)] = seen
    assert empty_database_dsn not in " ".join(arguments)
    assert empty_database_dsn not in environment.values()
    assert "hunter2" not in environment.values()
    assert environment["PGAPPNAME"] == "kept"


async def test_a_folder_called_migrations_where_the_user_stands_is_not_ours(
    empty_database_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "migrations").mkdir()
    (tmp_path / "migrations" / "__init__.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    await schema.upgrade(empty_database_dsn)
    await schema.check_schema(empty_database_dsn)


@pytest.mark.parametrize("dsn", ["mysql://root:hunter2@host/db", "postgresql://u:hunter2@host:port/db"])
async def test_a_malformed_dsn_is_a_clear_error_without_the_password(dsn: str) -> None:
    with pytest.raises(UserError, match="not valid") as caught:
        await schema.check_schema(dsn)
    assert "hunter2" not in str(caught.value)


async def test_a_missing_database_is_named(database_dsn: str) -> None:
    with pytest.raises(UserError, match='"nowhere_to_be_found" does not exist'):
        await schema.check_schema(urlsplit(database_dsn)._replace(path="/nowhere_to_be_found").geturl())


async def test_an_absent_server_is_unavailable(tmp_path: Path) -> None:
    """C2: nobody must change anything, the server is not there now."""
    for attempt in (schema.check_schema, schema.upgrade):
        with pytest.raises(DatabaseUnavailable):
            await attempt(f"postgresql://u@/db?host={tmp_path}")


def test_an_installation_without_migrations_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mindroom.__file__", os.fspath(tmp_path / "mindroom" / "__init__.py"))
    with pytest.raises(UserError, match="install MindRoom again"):
        schema.migrations_package()
    (tmp_path / "mindroom_migrations" / "versions").mkdir(parents=True)
    assert schema.migrations_package() == (tmp_path, "mindroom_migrations")


async def test_the_migrations_of_an_installed_wheel_run_under_their_own_name(
    empty_database_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(CHECKOUT / "migrations", tmp_path / "mindroom_migrations")
    monkeypatch.setattr("mindroom.__file__", os.fspath(tmp_path / "mindroom" / "__init__.py"))
    assert schema.migrations_package() == (tmp_path, "mindroom_migrations")
    await schema.upgrade(empty_database_dsn)
    await schema.check_schema(empty_database_dsn)


async def test_a_process_that_cannot_start_leaves_its_last_words(
    empty_database_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text(
        "import sys\nfor i in range(20): print('line', i, file=sys.stderr)\nsys.exit(3)"
    )
    monkeypatch.setattr(schema, "migrations_package", lambda: (tmp_path, "broken"))
    with pytest.raises(UserError, match=r"nothing was changed\. line 12\n(.*\n)*line 19$"):
        await schema.upgrade(empty_database_dsn)
    (tmp_path / "broken.py").write_text("raise SystemExit(3)")
    with pytest.raises(UserError, match="ended with code 3"):
        await schema.upgrade(empty_database_dsn)

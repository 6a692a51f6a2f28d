"""What Alembic runs: the missing revisions, on the connection and inside the transaction that `upgrade` holds."""

from collections.abc import Collection, Mapping
from typing import Any

from alembic import context
from alembic.runtime.migration import MigrationContext, MigrationInfo
from alembic.script import Script


def _announce(ctx: MigrationContext, step: MigrationInfo, heads: Collection[Any], run_args: Mapping[str, Any]) -> None:
    revision = step.up_revision
    if isinstance(revision, Script):
        print(f"schema {revision.revision}: {revision.doc}", flush=True)


context.configure(connection=context.config.attributes["connection"], on_version_apply=_announce)
with context.begin_transaction():
    context.run_migrations()

"""Bring the database whose DSN stands on standard input to the newest revision.

Prints one line for each thing done. On failure the schema is as it was, the reason stands on standard error and the
exit code is 1.
"""

import asyncio
import sys

import asyncpg
from alembic.util import CommandError
from sqlalchemy.exc import DBAPIError

from .upgrade import Unsuitable, upgrade


def main() -> int:
    """Run the upgrade; the DSN comes over standard input because arguments and environments are visible to others."""
    dsn = sys.stdin.readline().strip()
    try:
        asyncio.run(upgrade(dsn))
    except DBAPIError as error:
        print(error.orig, file=sys.stderr)
    except (Unsuitable, CommandError, asyncpg.PostgresError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    else:
        return 0
    return 1


raise SystemExit(main())

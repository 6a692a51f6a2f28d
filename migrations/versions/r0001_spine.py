"""the spine: heard, did, said and control"""

from pathlib import Path
from typing import Any

from alembic import op

revision = "r0001_spine"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL files beside this one, which are the text to read."""
    connection: Any = op.get_bind().connection.dbapi_connection
    for name in ("r0001_spine.sql", "r0001_comments.sql"):
        statements = Path(__file__).with_name(name).read_text(encoding="utf-8")
        connection.run_async(lambda driver, sql=statements: driver.execute(sql))

"""What the benches are built of still fits the program; their figures are no matter of tests."""

from mindroom.core.metrics import Metrics
from mindroom.db.engine import connect
from tests.bench.admission import listeners


async def test_the_admission_bench_admits_through_the_real_admitter(database_dsn: str) -> None:
    database = await connect(database_dsn, metrics=Metrics())
    try:
        (listener,) = await listeners(database, 1)
        await listener.admit(listener.response(3))
        row = await database.fetchrow("SELECT count(*) AS heard FROM journal_receipts")
        assert row is not None
        assert row["heard"] == 3
    finally:
        await database.close()

"""Turns of chains, and how many of a chain's investigations run at once; on a real Postgres."""

from __future__ import annotations

import sqlalchemy
from support import queue
from support.turns import admit, named
from tarsy.store.base import databases
from tarsy.store.queue import claim_filter, work


async def pages_of_a_claim(database: databases.Database) -> int:
    """Return the number of pages that a claim reads, and undo it."""
    explain = sqlalchemy.text(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {work._CLAIM.text}")
    values = {"owner": queue.OWNER, "lease": queue.LEASE, "build": queue.BUILD, **claim_filter.values(None)}
    async with database.begin() as connection, connection.begin_nested() as claimed:
        (plan,) = (await connection.execute(explain, values)).scalar_one()
        await claimed.rollback()
    return int(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"])


async def test_claim_reads_few_rows_of_a_long_queue(database: databases.Database) -> None:
    """A storm of one chain, and a hundred other chains; also while the planner knows nothing of the rows."""
    await admit(database, named("a", maxRunning=1), 2)
    await queue.claimed(database)
    await queue.insert_rows(
        database, 100_000, state="queued", chain="CASE WHEN number % 100 = 0 THEN number % 10000 END"
    )
    assert await pages_of_a_claim(database) < 5000
    await queue.execute(database, "ANALYZE")
    assert await pages_of_a_claim(database) < 5000


async def test_claim_reads_few_rows_of_a_storm_after_a_quiet_time(database: databases.Database) -> None:
    """All investigations had ended when the planner last counted; then a hundred chains have alerts."""
    await queue.insert_rows(database, 100_000, state="ended", chain="number % 100")
    await queue.execute(database, "ANALYZE")
    await queue.insert_rows(database, 100_000, state="queued", chain="number % 100")
    assert await pages_of_a_claim(database) < 5000

"""The statements that look for open runs read none that has ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy
from support import plans, queue
from tarsy.store.base import databases
from tarsy.store.fleet import catalogue, passed_over
from tarsy.store.operations import measures, open_investigations
from tarsy.store.queue import turns, work
from tarsy.store.reads import queue_counts

STATEMENTS: dict[str, tuple[sqlalchemy.TextClause, dict[str, Any]]] = {
    "unreadable ones at a start": (work._TRY_AGAIN, {"build": queue.BUILD}),
    "limits": (turns._STORE_LIMITS, {"prefix": "tarsy/", "known": [], "chains": [], "limits": []}),
    "counts": (queue_counts._COUNT, {}),
    "unreadable ones": (queue_counts._UNREADABLE, {"namespaces": ["tarsy"], "limit": 10, "longest": 100}),
    "phases": (measures._PHASES, {"within": timedelta(days=1)}),
    "queue": (measures._QUEUE, {}),
    "questions": (open_investigations._WITH_QUESTION, {"namespace": "tarsy"}),
    "snapshots": (passed_over._OPEN, {"hashes": ["h"]}),
    "passed over": (passed_over._ANY_PASSED, {}),
    "marks": (passed_over._MARK, {"fresh": catalogue.FRESH}),
    "overdue": (passed_over._OVERDUE, {"patience": timedelta(minutes=5)}),
}


@pytest.mark.parametrize("is_storm", [False, True], ids=["quiet", "storm after a quiet time"])
async def test_statements_about_open_runs_do_not_read_ended_runs(
    database: databases.Database, *, is_storm: bool
) -> None:
    """Also while the planner does not know yet that runs are open."""
    await queue.insert_rows(database, 20_000, state="ended", chain="number % 10")
    await turns.store_limits(database, "tarsy", {"chain-1": 1, "chain-2": 2}, known=["chain-1", "chain-2"])
    await queue.execute(database, "ANALYZE")
    number = 500 if is_storm else 5
    await queue.insert_rows(database, number, state="queued", chain="number % 10")
    read: dict[str, int] = {}
    async with database.begin() as connection:
        for name, (statement, values) in STATEMENTS.items():
            explain = sqlalchemy.text(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement.text}")
            (plan,) = (await connection.execute(explain, values)).scalar_one()
            rows = plans.rows_read(plan["Plan"])
            read[name] = max([rows[index] for index in rows if index.startswith("work")], default=0)
    assert max(read.values()) <= 3 * number, read

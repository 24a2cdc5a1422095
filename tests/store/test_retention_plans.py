"""Rows that retention and expiry read: those that a batch changes, whatever else is due, kept, dead or unknown to
statistics.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy
from support import plans, queue
from tarsy.resources import investigations
from tarsy.store.base import batch_limits, databases, tables
from tarsy.store.operations import expiry, purge, retention

COUNT = 4000
DAY = timedelta(days=1)
MADE = (
    """INSERT INTO investigations
      (id, namespace, name, generation, alert_type, alert_data, admitted_at, ended_at, ending)
    SELECT CAST(md5(CAST(n AS text)) AS uuid), 'team-' || n % 2, 'i-' || n, 1, 'T', repeat('x', 400),
      now() - interval '200 days', now() - make_interval(days => 100, secs => n), 'Completed'
    FROM generate_series(1, :count) AS n""",
    "INSERT INTO work (investigation, state, stale) SELECT id, 'ended', false FROM investigations",
    """INSERT INTO runs (investigation, number, kind, ended_at) SELECT id, 0, 'investigation', ended_at
    FROM investigations""",
    "INSERT INTO stages (investigation, run, name) SELECT id, 0, 'look' FROM investigations",
    """INSERT INTO executions (investigation, id, run, stage, kind, index, parent, name, provider)
    SELECT id, 'one', 0, 'look', 'agent', 0, '', 'A', 'p' FROM investigations""",
    """INSERT INTO entries (investigation, seq, claim, kind, version, run, stage, execution, body)
    SELECT id, 1, 1, 'Answered', 1, 0, 'look', 'one', '{}' FROM investigations""",
    """INSERT INTO tool_results (investigation, execution, call_id, whole) SELECT id, 'one', '0.0', ''
    FROM investigations""",
    """INSERT INTO identities (namespace, fingerprint, starts_ms, investigation, first_seen)
    SELECT namespace, name, 1, id, admitted_at FROM investigations""",
    """INSERT INTO audit (at, who, address, action, investigation, namespace, name)
    SELECT now() - interval '500 days', 'w', 'a', 'delete', id, namespace, name FROM investigations""",
    """INSERT INTO large_alerts (namespace, object_name, name, data, created_at)
    SELECT namespace, name, 'n', 'x', admitted_at FROM investigations""",
)
RULE = retention.Rule(
    transcripts=90 * DAY,
    purge=7 * DAY,
    tool_results=timedelta(),
    audit=timedelta(),
    tool_pins=timedelta(),
    memory=7 * DAY,
    window=7 * DAY,
)
ENDED = "SELECT 1"
OWN_PERIOD = "UPDATE investigations SET transcript_retention_days = 5"
DELETED = "UPDATE investigations SET deleted_at = ended_at"
PURGED = "UPDATE investigations SET deleted_at = ended_at, purged_at = ended_at"
FORGOTTEN = f"{PURGED}, emptied_at = ended_at, gone_at = now()"
NOT_EXPIRED = "UPDATE investigations SET ended_at = now() - interval '1 day'"
ONE = UUID(hashlib.md5(b"1", usedforsecurity=False).hexdigest())
TEAM = {"namespace": "team-1", "limit": 100}
STATEMENTS: dict[str, tuple[str, sqlalchemy.TextClause, Mapping[str, Any]]] = {
    "hide": (ENDED, retention._HIDE[False], {"age": 90 * DAY}),
    "hide by a chain's period": (OWN_PERIOD, retention._HIDE[True], {"days": 5, "age": 5 * DAY}),
    "mark": (DELETED, retention._MARK, {"age": 7 * DAY}),
    "empty": (PURGED, purge._EMPTY, {}),
    "empty one": (PURGED, purge._EMPTY_ONE, {"id": ONE}),
    "delete results": (ENDED, retention._DELETE_RESULTS, {"age": 30 * DAY}),
    "forget": (FORGOTTEN, retention._FORGET, {"memory": 7 * DAY, "window": 7 * DAY}),
    "audit": (ENDED, retention._DELETE_AUDIT, {"age": 400 * DAY}),
    "expired": (ENDED, expiry._EXPIRED, TEAM),
    "expired deleted": (DELETED, expiry._EXPIRED, TEAM),
    "nothing expired": (NOT_EXPIRED, expiry._EXPIRED, TEAM),
}


@pytest.mark.parametrize("analyzed", ["while all were kept", "now"])
async def test_a_batch_reads_no_more_rows_than_it_changes(database: databases.Database, analyzed: str) -> None:
    """All investigations are due at once."""
    for insertion in MADE:
        await queue.execute(database, insertion, **({"count": COUNT} if ":count" in insertion else {}))
    if analyzed == "while all were kept":
        await queue.execute(database, "ANALYZE")
    read: dict[str, dict[str, int]] = {}
    for name, (prepare, statement, values) in STATEMENTS.items():
        async with contextlib.AsyncExitStack() as stack:
            connection = await stack.enter_async_context(database.begin())
            await connection.execute(sqlalchemy.text(prepare))
            if analyzed == "now":
                await connection.execute(sqlalchemy.text("ANALYZE"))
            explain = sqlalchemy.text(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement.text}")
            plan = (await connection.execute(explain, values)).scalar_one()[0]["Plan"]
            read[name] = plans.rows_read(plan)
            await connection.rollback()
    limit = 1.2 * batch_limits.ROWS
    too_many = {name: counts for name, rows in read.items() if (counts := {k: n for k, n in rows.items() if n > limit})}
    assert not too_many, json.dumps(too_many, indent=2)
    assert read["hide"]["investigations_kept"] == batch_limits.ROWS
    assert sum(read["nothing expired"].values()) == 0, "what has not expired is not read at all"


@pytest.mark.parametrize(("prepare", "kind"), [(DELETED, "purges"), (FORGOTTEN, "investigations")])
async def test_a_count_of_deleted_investigations_reads_no_rows_of_the_queue(
    database: databases.Database, monkeypatch: pytest.MonkeyPatch, prepare: str, kind: retention.Kind
) -> None:
    """They were most of the pages that it read, and could make it too slow when much was due."""
    for insertion in MADE:
        await queue.execute(database, insertion, **({"count": COUNT} if ":count" in insertion else {}))
    await queue.execute(database, prepare)
    run_within = database.run_within
    read: list[str] = []

    async def explained(seconds: float, statement: sqlalchemy.TextClause, **values: Any) -> Any:
        explain = sqlalchemy.text(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement.text}")
        ((plan,),) = await run_within(seconds, explain, **values)
        read.extend(name for name, count in plans.rows_read(json.loads(plan)[0]["Plan"]).items() if count)
        return await run_within(seconds, statement, **values)

    monkeypatch.setattr(database, "run_within", explained)
    assert (await retention.due(database, RULE))[kind] == COUNT
    assert not [name for name in read if name.startswith("work")], read


def test_the_index_of_what_expires_knows_the_default_time_to_live() -> None:
    assert f"chain_ttl_seconds, {investigations.DEFAULT_TTL_SECONDS})" in tables.EXPIRES

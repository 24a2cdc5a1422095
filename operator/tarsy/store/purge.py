"""Purging: all that was said in an ended investigation, and about it, is deleted for good.

What is left is that it was: its row, with names and times alone, its place in the queue, and whose alert it stood for.
So the watch does not take its object for a new one, and its alert does not come back with the next notification. It
has no run any more, which to all who read means that it is not there.

The lock is taken before anything is deleted: a statement that had to wait for it would not see what was committed
meanwhile, and would leave that behind.
"""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

from sqlalchemy import text

from tarsy.store import audit
from tarsy.store import database as databases
from tarsy.transcript import entries

Refusal = Literal["unknown", "running", "asked"]
"""Why nothing can be purged: there is no such investigation, or not any more; it has not ended; a question is open."""

_FOUND = """
  SELECT run, state FROM work JOIN investigations ON id = work.investigation
  WHERE work.investigation = :id AND purged_at IS NULL"""
_LOOK = text(_FOUND)
_HOLD = text(f"{_FOUND} FOR NO KEY UPDATE OF work, investigations")

_PURGE = text("""
  WITH said AS (DELETE FROM entries WHERE investigation = :id),
    staged AS (DELETE FROM stages WHERE investigation = :id),
    executed AS (DELETE FROM executions WHERE investigation = :id),
    run AS (DELETE FROM runs WHERE investigation = :id),
    unused AS (
      DELETE FROM large_alerts USING investigations AS known
      WHERE known.id = :id AND large_alerts.namespace = known.namespace AND object_name = known.name
        AND created_at < ended_at
    ),
    shown AS (UPDATE work SET stale = false, unreadable = NULL, unreadable_by = '{}' WHERE investigation = :id)
  UPDATE investigations
  SET purged_at = clock_timestamp(), gone_at = coalesce(gone_at, clock_timestamp()),
    author = '', words = NULL, alert_type = '', alert_data = '', severity = NULL, runbook_url = NULL,
    chain_name = NULL, chain_namespace = NULL, chain_generation = NULL, chain_hash = NULL, chain_version = NULL,
    chain = NULL, stage_names = '{}', stage_agents = '{}', on_resolved = NULL, chain_ttl_seconds = NULL,
    ttl_seconds = NULL
  WHERE id = :id
""")


async def refusal(database: databases.Database, investigation: UUID) -> Refusal | None:
    """Why the investigation cannot be purged just now; None where it can."""
    rows = await database.run(_LOOK, id=investigation)
    return _refusal(rows[0] if rows else None)


async def purge(database: databases.Database, investigation: UUID, *, by: audit.Caller) -> Refusal | None:
    """Purge the investigation, whose object is gone, and note that in the audit; or why not."""
    async with database.begin() as connection:
        held = (await connection.execute(_HOLD, {"id": investigation})).one_or_none()
        if (refused := _refusal(held)) is not None:
            return refused
        await audit.write(connection, investigation, "purge", by=by)
        await connection.execute(_PURGE, {"id": investigation})
    return None


def _refusal(row: Any) -> Refusal | None:
    if row is None:
        return "unknown"
    if row.state != "ended":
        return "running" if row.run == entries.INVESTIGATION else "asked"
    return None

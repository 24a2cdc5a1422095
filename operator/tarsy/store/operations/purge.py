"""Purging: all that was said in an ended investigation, and about it, is deleted for good.

What is left is that it was: its row, with names and times alone, its place in the queue, and whose alert it stood for.
So the watch does not take its object for a new one, and its alert does not come back at once: it stands for that for
its cool-down (`episodes`). It has no run any more, which to all who read means that it is not there.

All of it, and its row in the audit, is one transaction. Its object goes after that: until it is known to be gone
(`gone_at`), to purge again is no harm, and `retention` has it deleted, so it does not matter who dies in between.

The lock is taken before anything is deleted: a statement that had to wait for it would not see what was committed
meanwhile, and would leave that behind. It is the one that a question is asked under: either it is open, and nothing is
purged, or there is nothing any more to ask about.
"""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from sqlalchemy import text

from tarsy.store.base import audit, databases
from tarsy.transcript import entries

Refusal = Literal["unknown", "running", "asked"]
"""Why nothing can be purged: there is no such investigation, or not any more; it has not ended; a question is open."""

_HOLD = text("""
  SELECT run, state, purged_at, gone_at FROM work JOIN investigations ON id = work.investigation
  WHERE work.investigation = :id
  FOR NO KEY UPDATE OF work, investigations
""")

_PURGE = text("""
  WITH said AS (DELETE FROM entries WHERE investigation = :id),
    shown_by_tools AS (DELETE FROM tool_results WHERE investigation = :id),
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
  SET purged_at = clock_timestamp(),
    author = '', words = NULL, alert_type = '', alert_data = '', severity = NULL, runbook_url = NULL,
    target = '',
    chain_name = NULL, chain_namespace = NULL, chain_generation = NULL, chain_hash = NULL, chain_version = NULL,
    chain = NULL, stage_names = '{}', stage_agents = '{}', on_resolved = NULL
  WHERE id = :id
""")


async def purge(database: databases.Database, investigation: UUID, *, by: audit.Caller) -> Refusal | None:
    """Purge the investigation and note that in the audit, or say why not.

    None, too, where it was purged before and its object may be left; once that is known to be gone it is unknown.
    """
    async with database.begin() as connection:
        held = (await connection.execute(_HOLD, {"id": investigation})).one_or_none()
        if held is None or (held.purged_at and held.gone_at):
            return "unknown"
        if held.purged_at:
            return None
        if held.state != "ended":
            return "running" if held.run == entries.INVESTIGATION else "asked"
        await audit.write(connection, investigation, "purge", by=by)
        await connection.execute(_PURGE, {"id": investigation})
    return None

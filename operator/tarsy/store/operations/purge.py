"""Purging: the whole transcript of an ended investigation is deleted for good.

The investigation's row stays, with names and times only, and so do its `work` row and the identity of its alert. So the
watch does not admit its object again, and the alert is not investigated again during the cool-down (`intake.episodes`).
Without transcript and runs, the investigation is invisible to all reads.

The deletion and its audit row are one transaction. The object is deleted afterwards. Until it is known to be gone
(`gone_at`), the purge may be repeated, and `retention` deletes the object too, so a process may die in between.

The lock is taken before any row is deleted: a statement that waits for the lock would not see, and not delete, rows
that were committed meanwhile. Questions are queued under the same lock, so either a question is open and the purge is
refused, or the question finds no transcript.
"""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from sqlalchemy import text

from tarsy.store.base import audit, databases
from tarsy.transcript import entries

Refusal = Literal["unknown", "running", "asked"]
"""The reason of a refusal: the investigation is unknown or purged; it has not ended; a question is open."""

_HOLD = text("""
  SELECT run, state, purged_at, gone_at FROM work JOIN investigations ON id = work.investigation
  WHERE work.investigation = :id
  FOR NO KEY UPDATE OF work, investigations
""")

_PURGE = text("""
  WITH no_entries AS (DELETE FROM entries WHERE investigation = :id),
    no_results AS (DELETE FROM tool_results WHERE investigation = :id),
    no_stages AS (DELETE FROM stages WHERE investigation = :id),
    no_executions AS (DELETE FROM executions WHERE investigation = :id),
    no_runs AS (DELETE FROM runs WHERE investigation = :id),
    no_data AS (
      DELETE FROM large_alerts USING investigations AS known
      WHERE known.id = :id AND large_alerts.namespace = known.namespace AND object_name = known.name
        AND created_at < ended_at
    ),
    queue_row AS (UPDATE work SET stale = false, unreadable = NULL, unreadable_by = '{}' WHERE investigation = :id)
  UPDATE investigations
  SET purged_at = clock_timestamp(),
    author = '', words = NULL, alert_type = '', alert_data = '', severity = NULL, runbook_url = NULL,
    target = '', labels = NULL, alert_summary = '', generator_url = NULL, external_url = NULL, agent_names = NULL,
    chain_name = NULL, chain_namespace = NULL, chain_generation = NULL, chain_hash = NULL, chain_version = NULL,
    chain = NULL, stage_names = '{}', stage_agents = '{}', on_resolved = NULL
  WHERE id = :id
""")


async def purge(database: databases.Database, investigation: UUID, *, by: audit.Caller) -> Refusal | None:
    """Purge the investigation and write the audit row, or return the refusal.

    A repeated purge returns None while the object may still exist, and "unknown" later.
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

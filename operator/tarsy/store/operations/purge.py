"""Purging: the transcript of an ended investigation is deleted for good, in two steps.

The first step marks the investigation (`purged_at`), clears its own row and writes the audit row, in one transaction.
From then on nothing of it can be read or restored. The second step deletes the rows of its transcript in batches, so
that no lock is held for long however large it is, and sets `emptied_at` when none is left. A purge that is interrupted
goes on with the rows that are left, by a repeated request or by `retention`.

The investigation's row stays, with names and times only, and so do its `work` row and the identity of its alert. So the
watch does not admit its object again, and the alert is not investigated again during the cool-down (`intake.episodes`).
`retention` deletes them later. The object is deleted after the first step; until it is known to be gone (`gone_at`),
the purge may be repeated, and `expiry` deletes the object too.

The lock is taken before the row is read: a statement that waits for the lock would not see what was committed
meanwhile. Questions are queued under the same lock, so either a question is open and the purge is refused, or the
question finds no transcript. After the mark no row of the transcript is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import text

from tarsy import failpoints
from tarsy.store.base import audit, databases
from tarsy.store.operations import deletion

BATCH_ROWS = 500
"""The maximal number of rows that a statement deletes."""
BATCH_BYTES = 32 * 1024 * 1024
"""The maximal bytes, as stored, that a statement deletes; its first row is not counted."""

CLEARED = """
    author = '', words = NULL, alert_type = '', alert_data = '', severity = NULL, runbook_url = NULL,
    target = '', labels = NULL, alert_summary = '', generator_url = NULL, external_url = NULL, agent_names = NULL,
    chain_name = NULL, chain_namespace = NULL, chain_generation = NULL, chain_hash = NULL, chain_version = NULL,
    chain = NULL, stage_names = '{}', stage_agents = '{}', on_resolved = NULL"""
"""The assignments that remove all text of an investigation's row but its names."""

MARK = f"""
  no_data AS (
    DELETE FROM large_alerts USING due JOIN investigations AS known USING (id)
    WHERE large_alerts.namespace = known.namespace AND object_name = known.name AND created_at < ended_at
  ), queue_rows AS (
    UPDATE work SET stale = false, unreadable = NULL, unreadable_by = '{{}}',
      revision = revision + CASE WHEN known.deleted_at IS NULL THEN 1 ELSE 0 END
    FROM due JOIN investigations AS known USING (id) WHERE work.investigation = due.id
  )
  UPDATE investigations
  SET deleted_at = coalesce(deleted_at, clock_timestamp()), purged_at = clock_timestamp(),{CLEARED}
  FROM due WHERE investigations.id = due.id AND purged_at IS NULL"""  # noqa: S608 - our own text
"""Marks the investigations of the CTE `due (id)`, whose rows of `work` are locked."""
_MARK_ONE = text(f"WITH due AS (SELECT CAST(:id AS uuid) AS id), {MARK}")


async def purge(
    database: databases.Database, investigation: UUID, *, by: audit.Caller
) -> deletion.Refusal | deletion.Held | None:
    """Purge the investigation and write the audit row, or return the refusal.

    A repeat continues a purge that was interrupted. It returns "unknown" once no row is left and the object is gone.
    """
    async with database.begin() as connection:
        locked = await deletion.lock(connection, investigation)
        if locked is None or (locked.purged_at and locked.gone_at and locked.emptied_at):
            return "unknown"
        if locked.purged_at is None:
            if (refusal := deletion.refusal(locked)) is not None:
                return refusal
            await audit.write(connection, investigation, "purge", by=by)
            await connection.execute(_MARK_ONE, {"id": investigation})
    failpoints.hit("purge.mark.after")
    while await delete_batch(database, [investigation]):
        pass
    return None


def limited(column: str, *, order: str = "") -> str:
    """Return the SELECT of a column of the rows of `candidates`, which have a `size`, that are a batch."""
    over = f"ORDER BY {order} ROWS UNBOUNDED PRECEDING" if order else "ROWS UNBOUNDED PRECEDING"
    return f"""
    SELECT {column} FROM (SELECT *, sum(size) OVER ({over}) - size AS before FROM candidates) AS measured
    WHERE before < {BATCH_BYTES}"""  # noqa: S608 - our own text


_SIZES = {
    "entries": "pg_column_size(body) + coalesce(pg_column_size(opaque), 0) + coalesce(pg_column_size(call_facts), 0)",
    "tool_results": "pg_column_size(whole) + coalesce(pg_column_size(rest), 0)",
    "executions": "pg_column_size(error)",
    "stages": "pg_column_size(message) + pg_column_size(lacks)",
    "feedback": "pg_column_size(cause) + pg_column_size(note)",
    "runs": "coalesce(pg_column_size(final_analysis), 0) + coalesce(pg_column_size(summary), 0)",
}
"""The tables of a transcript, and the size of their large columns as stored, which is known without reading them."""


def batch(table: str) -> str:
    """Return the statement that deletes a batch of a table's rows of the investigations `:ids`.

    Rows that another process deletes now are left to it, so two of them never wait for each other.
    """
    return f"""
  WITH candidates AS MATERIALIZED (
    SELECT own.place, own.size FROM unnest(CAST(:ids AS uuid[])) AS chosen (id)
    JOIN investigations AS its ON its.id = chosen.id AND hold IS NULL
    CROSS JOIN LATERAL (
      SELECT ctid AS place, CAST({_SIZES[table]} AS bigint) AS size
      FROM {table} WHERE investigation = chosen.id LIMIT {BATCH_ROWS} FOR UPDATE SKIP LOCKED
    ) AS own
    LIMIT {BATCH_ROWS}
  )
  DELETE FROM {table} WHERE ctid = ANY(ARRAY({limited("place")}))
  RETURNING 1 AS deleted"""  # noqa: S608 - our own texts


BATCHES = {table: text(batch(table)) for table in _SIZES}
_EMPTIED = text(f"""
  UPDATE investigations SET emptied_at = clock_timestamp()
  WHERE id = ANY(CAST(:ids AS uuid[])) AND purged_at IS NOT NULL AND emptied_at IS NULL
    {" ".join(f"AND NOT EXISTS (SELECT FROM {table} WHERE investigation = investigations.id)" for table in _SIZES)}
  RETURNING 1 AS emptied
""")  # noqa: S608 - our own texts


async def delete_batch(database: databases.Database, investigations: Sequence[UUID]) -> int:
    """Delete a batch of rows of the transcripts of purged investigations, in its own transaction; return their number.

    If none is left, note that they are empty, and return their number. Return 0 if there is nothing left to do.
    """
    ids = list(investigations)
    for statement in BATCHES.values():
        if rows := await database.run(statement, ids=ids):
            failpoints.hit("purge.batch.after")
            return len(rows)
    return len(await database.run(_EMPTIED, ids=ids))

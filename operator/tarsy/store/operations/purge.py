"""Purging: the transcript of an ended investigation is deleted for good, in two steps.

The first step marks the investigation (`purged_at`), clears its own row and writes the audit row, in one transaction.
From then on nothing of it can be read or restored. The second step deletes the rows of its transcript in batches, so
that no lock is held for long however large it is, and sets `emptied_at` when none is left. A batch is one statement,
with rows of all tables and, by `retention`, of many investigations. A purge that is interrupted goes on with the rows
that are left, by a repeated request or by `retention`.

The investigation's row stays, with names and times only, and so do its `work` row and the identity of its alert. So the
watch does not admit its object again, and the alert is not investigated again during the cool-down (`intake.episodes`).
`retention` deletes them later. The object is deleted after the first step; until it is known to be gone (`gone_at`),
the purge may be repeated, and `expiry` deletes the object too.

The lock is taken before the row is read: a statement that waits for the lock would not see what was committed
meanwhile. Questions are queued under the same lock, so either a question is open and the purge is refused, or the
question finds no transcript. After the mark no row of the transcript is added.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from sqlalchemy import TextClause, text

from tarsy import failpoints
from tarsy.store.base import audit, batch_limits, databases
from tarsy.store.operations import deletion

CLEARED = """
    author = '', words = NULL, alert_type = '', alert_data = '', severity = NULL, runbook_url = NULL,
    target = '', labels = NULL, alert_summary = '', generator_url = NULL, external_url = NULL, agent_names = NULL,
    chain_name = NULL, chain_namespace = NULL, chain_generation = NULL, chain_hash = NULL, chain_version = NULL,
    chain = NULL, stage_names = '{}', stage_agents = '{}', on_resolved = NULL"""
"""The assignments that remove all text of an investigation's row but its names."""

MARK = f"""
  no_data AS (
    DELETE FROM large_alerts USING investigations AS known
    WHERE known.id = ANY(ARRAY(SELECT id FROM due))
      AND large_alerts.namespace = known.namespace AND object_name = known.name AND created_at < ended_at
  ), queue_rows AS (
    UPDATE work SET stale = false, unreadable = NULL, unreadable_by = '{{}}',
      revision = revision + CASE WHEN known.deleted_at IS NULL THEN 1 ELSE 0 END
    FROM investigations AS known
    WHERE known.id = work.investigation AND work.investigation = ANY(ARRAY(SELECT id FROM due))
      AND (known.deleted_at IS NULL OR stale OR unreadable IS NOT NULL OR unreadable_by <> '{{}}')
  ), alerts AS (
    UPDATE identities SET alert_type = '', severity = '', labels = NULL, alert_json = NULL, group_digest = NULL
    WHERE investigation = ANY(ARRAY(SELECT id FROM due))
  ), its_ledgers AS (
    DELETE FROM budget_ledgers
    WHERE period = '' AND split_part(subject, ' ', 1) = ANY(ARRAY(SELECT CAST(id AS text) FROM due))
  )
  UPDATE investigations
  SET deleted_at = coalesce(deleted_at, clock_timestamp()), purged_at = clock_timestamp(),{CLEARED}
  WHERE id = ANY(ARRAY(SELECT id FROM due)) AND purged_at IS NULL"""  # noqa: S608 - our own text
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
    while await delete_batch(database, investigation):
        pass
    return None


_SIZES = {
    "entries": "pg_column_size(body) + coalesce(pg_column_size(opaque), 0) + coalesce(pg_column_size(call_facts), 0)",
    "tool_results": "pg_column_size(whole) + coalesce(pg_column_size(rest), 0)",
    "executions": "pg_column_size(error)",
    "stages": "pg_column_size(message) + pg_column_size(lacks)",
    "feedback": "pg_column_size(cause) + pg_column_size(note)",
    "runs": "coalesce(pg_column_size(final_analysis), 0) + coalesce(pg_column_size(summary), 0)",
}
"""The tables of a transcript, and the size of their large columns as stored, which is known without reading them."""


def batch(chosen: str, *, emptied: str, tables: Collection[str] = tuple(_SIZES)) -> TextClause:
    """Return the statement that deletes a batch of the rows of investigations in `tables`.

    `chosen` is the SELECT of their ids. It locks them, so that no two processes delete rows of the same one. The column
    `emptied` of those that have no row left is set to the time.
    """
    # The parts of UNION ALL are read in their order, and no further than the limit. So the part without a table is
    # read only after all rows of its investigation.
    rows = "".join(
        f"""
        SELECT '{table}' AS part, ctid AS place, CAST({_SIZES[table]} AS bigint) AS size
        FROM {table} WHERE investigation = chosen.id UNION ALL"""  # noqa: S608 - our own texts
        for table in tables
    )
    deletions = "".join(
        f""", deleted_{table} AS (
    DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT place FROM batch WHERE part = '{table}'))
  )"""  # noqa: S608 - our own texts
        for table in tables
    )
    return text(f"""
  WITH candidates AS MATERIALIZED (
    SELECT id, part, place, size
    FROM ({chosen}) AS chosen CROSS JOIN LATERAL ({rows}
        SELECT '', NULL, 0
    ) AS parts
    LIMIT {batch_limits.ROWS}
  ), batch AS MATERIALIZED ({batch_limits.limited("id, part, place")}
  ){deletions}, emptied AS (
    UPDATE investigations SET {emptied} = clock_timestamp()
    WHERE id = ANY(ARRAY(SELECT id FROM batch WHERE part = ''))
  )
  SELECT count(*) AS number FROM batch
""")  # noqa: S608 - our own texts


PURGED = "purged_at IS NOT NULL AND emptied_at IS NULL"
_EMPTY = batch(
    f"""SELECT id FROM investigations WHERE {PURGED} AND hold IS NULL
    ORDER BY purged_at LIMIT {batch_limits.ROWS} FOR NO KEY UPDATE SKIP LOCKED""",  # noqa: S608 - our own texts
    emptied="emptied_at",
)
# It waits for whoever has the investigation locked, because a person asked for it. By functions, so that the index of
# all that is purged and not empty is not read for one of them.
_EMPTY_ONE = batch(
    """SELECT id FROM investigations
    WHERE id = :id AND num_nulls(purged_at) = 0 AND num_nulls(emptied_at) = 1 AND hold IS NULL FOR NO KEY UPDATE""",
    emptied="emptied_at",
)


async def delete_batch(database: databases.Database, investigation: UUID | None = None) -> int:
    """Delete a batch of rows of purged investigations that nobody has locked, or of one, in its own transaction.

    Those of which no row is left are marked as empty. Return the number of rows and marks; 0 if there is nothing to do.
    """
    if investigation is None:
        (row,) = await database.run(_EMPTY)
    else:
        (row,) = await database.run(_EMPTY_ONE, id=investigation)
    failpoints.hit("purge.batch.after")
    number: int = row.number
    return number

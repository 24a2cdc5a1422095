"""A database or a cluster that was restored to an earlier time: their statuses are brought together again.

The status in the cluster carries the revision of its `work` row, and a lower one is refused. A revision is committed
before its status is written. So a status with a higher revision than its row has is of a database that was ahead of
this one. An ended investigation whose status is recorded as written, but shows a lower revision, is in a cluster that
was restored; so is one whose object is recorded as deleted, and exists.
"""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from sqlalchemy import text

from tarsy.store.base import databases, visibility

_ALIGN = text(f"""
  WITH held AS (
    SELECT investigation, revision FROM work JOIN investigations ON id = investigation
    WHERE investigation = :id AND {visibility.VISIBLE}
      AND (revision < :sequence OR (state = 'ended' AND NOT stale AND (revision > :sequence OR gone_at IS NOT NULL)))
    FOR NO KEY UPDATE OF work, investigations
  ), back AS (
    UPDATE investigations SET gone_at = NULL FROM held WHERE id = held.investigation AND gone_at IS NOT NULL
  )
  UPDATE work SET revision = greatest(held.revision, CAST(:sequence AS bigint)) + 1, stale = true, changed = tarsy_now()
  FROM held WHERE work.investigation = held.investigation
  RETURNING held.revision < :sequence AS is_database_older
""")  # noqa: S608 - our own text


async def align(
    database: databases.Database, investigation: UUID, *, sequence: int
) -> Literal["database", "cluster"] | None:
    """Have the status of an investigation written again if the one in the cluster, of this `sequence`, does not fit.

    Return what is older, or None if neither is.
    """
    rows = await database.run(_ALIGN, id=investigation, sequence=sequence)
    if not rows:
        return None
    return "database" if rows[0].is_database_older else "cluster"

"""A database or a cluster that was restored to an earlier time: their statuses are brought together again.

The status in the cluster carries the revision of its `work` row, and a lower one is refused. A revision is committed
before its status is written. So a status with a higher revision than its row has is of a database that was ahead of
this one. An ended investigation whose status is recorded as written, but shows a lower revision, is in a cluster that
was restored; so is one whose object is recorded as deleted, and exists. Both hold only for an object that was read
after that was recorded: until then its status, or its deletion, may be newer than what was read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from sqlalchemy import text

from tarsy.store.base import databases, visibility


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """A status in the cluster that does not fit the database."""

    older: Literal["database", "cluster"]
    revision: int
    """The revision in the database."""


_ALIGN = text(f"""
  WITH held AS (
    SELECT investigation, revision FROM work JOIN investigations ON id = investigation
    WHERE investigation = :id AND {visibility.VISIBLE}
      AND (revision < :sequence OR (state = 'ended' AND NOT stale AND (revision > :sequence OR gone_at IS NOT NULL)))
    FOR NO KEY UPDATE OF work, investigations
  ), due AS (
    SELECT * FROM held WHERE revision < :sequence OR revision = CAST(:recorded AS bigint)
  ), back AS (
    UPDATE investigations SET gone_at = NULL FROM due WHERE id = due.investigation AND gone_at IS NOT NULL
  ), aligned AS (
    UPDATE work
    SET revision = greatest(due.revision, CAST(:sequence AS bigint)) + 1, stale = true, changed = tarsy_now()
    FROM due WHERE work.investigation = due.investigation
  )
  SELECT revision, revision < :sequence AS is_database_older FROM held
""")  # noqa: S608 - our own text


async def align(
    database: databases.Database, investigation: UUID, *, sequence: int, recorded: int | None = None
) -> Misfit | None:
    """Have the status of an investigation written again if the one in the cluster, of this `sequence`, does not fit.

    Return the misfit, or None if there is none. Without `recorded` an older cluster is only returned, and nothing
    changed. `recorded` is the revision of such a misfit, after which the object was read again; if the revision has
    changed since, there is no misfit.
    """
    rows = await database.run(_ALIGN, id=investigation, sequence=sequence, recorded=recorded)
    for row in rows:
        if row.is_database_older:
            return Misfit(older="database", revision=row.revision)
        if recorded in (None, row.revision):
            return Misfit(older="cluster", revision=row.revision)
    return None

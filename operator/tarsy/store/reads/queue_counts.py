"""The queue in numbers: investigations that wait and run, by process, and those that wait for another version."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import text

from tarsy.store.base import databases, tables, visibility

MESSAGE_MAX = 1000
"""Characters of the message about the unreadable part of a log."""


@dataclass(frozen=True, kw_only=True)
class QueueCounts:
    """The queue in numbers, questions included."""

    queued: int
    """The number of those that wait for a worker, including runs whose worker has died."""
    running: int
    cancelling: int
    """The number of running ones that are cancelled."""
    suspended: int
    waiting_for_version: int
    """The number whose log no worker could read so far."""
    parked: int
    """The number that wait for something outside."""
    oldest_wait: float | None
    """Seconds that the oldest queued one has waited; None if none waits."""
    running_by_process: Mapping[UUID, int]


_COUNT = text(f"""
  WITH open AS (
    SELECT owner, cancel, queued_at, suspend AND state <> 'running' AS is_suspended,
      unreadable IS NOT NULL AS is_unreadable,
      state = 'parked' AS is_parked,
      state = 'running' AND lease_until >= clock_timestamp() AS runs
    FROM work WHERE {tables.IS_OPEN}
  ), waiting AS (
    SELECT queued_at FROM open WHERE NOT runs AND NOT is_suspended AND NOT is_unreadable AND NOT is_parked
  ), by_process AS (
    SELECT owner, count(*) AS number FROM open WHERE runs GROUP BY owner
  )
  SELECT (SELECT count(*) FROM waiting) AS queued,
    count(*) FILTER (WHERE runs) AS running,
    count(*) FILTER (WHERE runs AND cancel IS NOT NULL) AS cancelling,
    count(*) FILTER (WHERE NOT runs AND is_suspended) AS suspended,
    count(*) FILTER (WHERE NOT runs AND is_unreadable AND NOT is_suspended) AS waiting_for_version,
    count(*) FILTER (WHERE is_parked AND NOT is_suspended) AS parked,
    (SELECT extract(epoch FROM clock_timestamp() - min(queued_at)) FROM waiting) AS oldest_wait,
    (SELECT array_agg(owner ORDER BY owner) FROM by_process) AS owners,
    (SELECT array_agg(number ORDER BY owner) FROM by_process) AS numbers
  FROM open
""")  # noqa: S608 - our own text


async def count(database: databases.Database) -> QueueCounts:
    """Return the present counts."""
    (row,) = await database.run(_COUNT)
    return QueueCounts(
        queued=row.queued,
        running=row.running,
        cancelling=row.cancelling,
        suspended=row.suspended,
        waiting_for_version=row.waiting_for_version,
        parked=row.parked,
        oldest_wait=None if row.oldest_wait is None else max(0.0, float(row.oldest_wait)),
        running_by_process=dict(zip(row.owners or (), row.numbers or (), strict=True)),
    )


@dataclass(frozen=True, kw_only=True)
class UnreadableInvestigation:
    """An investigation whose log waits for a version of TARSy that can read it."""

    id: UUID
    name: str
    """The object's namespace/name."""
    message: str
    """The part of the log that cannot be read."""
    since: datetime


_UNREADABLE = text(f"""
  SELECT id, namespace || '/' || name AS name, left(unreadable, :longest) AS message,
    coalesce(suspended_at, queued_at) AS since
  FROM work JOIN investigations ON id = work.investigation
  LEFT JOIN runs ON runs.investigation = work.investigation AND number = run
  WHERE unreadable IS NOT NULL AND {tables.IS_OPEN} AND {visibility.VISIBLE}
    AND namespace = ANY(CAST(:namespaces AS text[]))
  ORDER BY since, id
  LIMIT :limit
""")  # noqa: S608 - our own text


async def unreadable_investigations(
    database: databases.Database, *, namespaces: Collection[str], limit: int
) -> Sequence[UnreadableInvestigation]:
    """Return the investigations of namespaces that wait for another version of TARSy, the longest waiting first."""
    rows = await database.run(_UNREADABLE, namespaces=list(namespaces), limit=limit, longest=MESSAGE_MAX)
    return [UnreadableInvestigation(id=row.id, name=row.name, message=row.message, since=row.since) for row in rows]

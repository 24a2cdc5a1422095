"""Alert episodes: which alerts have been seen, so that a repeat is counted on what it repeats and not run again.

An episode is (namespace, fingerprint, start in milliseconds). It is remembered past the deletion of its object: a
deleted investigation must not come back with the next notification.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import text

from tarsy.resources import naming
from tarsy.store import database as databases
from tarsy.store import notify, work


@dataclass(frozen=True, kw_only=True)
class Known:
    """The investigation that an alert repeats."""

    investigation: UUID
    name: str


_REPEATED = text("""
  SELECT id FROM (
    SELECT investigation AS id, 0 AS rank, first_seen AS at FROM identities
    WHERE namespace = :namespace AND fingerprint = :fingerprint AND starts_ms = :starts_ms
      AND first_seen > clock_timestamp() - CAST(:window AS interval)
    UNION ALL
    SELECT id, 1, admitted_at FROM investigations JOIN work ON investigation = id
    WHERE namespace = :namespace AND fingerprint = :fingerprint
      AND (ended_at IS NULL OR ended_at > clock_timestamp() - CAST(:cooldown AS interval))
      AND (cancel IS DISTINCT FROM 'deleted' OR run > 0)
  ) AS known ORDER BY rank, at DESC LIMIT 1
""")

_COUNT = text("""
  WITH held AS (
    SELECT investigation FROM work WHERE investigation = :id FOR NO KEY UPDATE
  ), counted AS (
    UPDATE investigations SET duplicates = duplicates + 1, alert_status = 'firing'
    FROM held WHERE id = held.investigation
    RETURNING id, name, purged_at
  ), shown AS (
    UPDATE work SET revision = revision + 1, stale = true FROM counted WHERE investigation = id AND purged_at IS NULL
  )
  SELECT id, name FROM counted
""")


async def repeat(
    database: databases.Database,
    *,
    namespace: str,
    fingerprint: str,
    starts_at: datetime,
    window: timedelta,
    cooldown: timedelta,
) -> Known | None:
    """Count a firing alert on the investigation that it repeats; None where it is news.

    It repeats the episode of its own start for `window`, and any investigation of its fingerprint that is open or ended
    less than `cooldown` ago.
    """
    episode = {"namespace": namespace, "fingerprint": fingerprint, "starts_ms": naming.milliseconds(starts_at)}
    found = await database.run(_REPEATED, **episode, window=window, cooldown=cooldown)
    if not found:
        return None
    (row,) = await database.run(_COUNT, id=found[0][0])
    await notify.send(database, (notify.STATUS, str(row.id)))
    return Known(investigation=row.id, name=row.name)


_RESOLVE = text("""
  WITH held AS (
    SELECT investigation FROM work
    WHERE investigation = (
      SELECT investigation FROM identities
      WHERE namespace = :namespace AND fingerprint = :fingerprint AND starts_ms <= :starts_ms
      ORDER BY starts_ms DESC LIMIT 1
    )
    FOR NO KEY UPDATE
  ), resolved AS (
    UPDATE investigations SET alert_status = 'resolved'
    FROM held WHERE id = held.investigation
    RETURNING id, name, on_resolved, purged_at
  ), shown AS (
    UPDATE work SET revision = revision + 1, stale = true FROM resolved WHERE investigation = id AND purged_at IS NULL
  )
  SELECT * FROM resolved
""")


async def resolved(
    database: databases.Database, *, namespace: str, fingerprint: str, starts_at: datetime
) -> Known | None:
    """Record that an episode is resolved, on the investigation that stands for it; None where there is none.

    That is its own, else the last one before it that its repeats were counted on; never a later one: the word of an old
    episode's end may come after the next has begun. Where its chain says so, it is cancelled.
    """
    rows = await database.run(
        _RESOLVE, namespace=namespace, fingerprint=fingerprint, starts_ms=naming.milliseconds(starts_at)
    )
    if not rows:
        return None
    (row,) = rows
    await notify.send(database, (notify.STATUS, str(row.id)))
    if row.on_resolved == "Cancel":
        await work.cancel(database, row.id, why="resolved")
    return Known(investigation=row.id, name=row.name)

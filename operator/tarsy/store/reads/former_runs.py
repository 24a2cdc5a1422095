"""The last full investigation of an alert, for the recheck of one that comes again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import text

from tarsy.store.base import databases, visibility


@dataclass(frozen=True, kw_only=True)
class LastRun:
    """An ended investigation of the same alert."""

    id: UUID
    name: str
    ended_at: datetime
    is_disputed: bool
    """Whether a person said that its result is wrong, or right only in part, or that of one unchanged since."""


_LAST = text(f"""
  SELECT newest.id, shown.name, newest.ended_at,
    EXISTS (
      SELECT FROM investigations AS judged JOIN feedback ON feedback.investigation = judged.id
      WHERE judged.namespace = newest.namespace AND judged.fingerprint = newest.fingerprint
        AND judged.namespace_uid IS NOT DISTINCT FROM newest.namespace_uid AND judged.ended_at >= newest.ended_at
        AND verdict <> 'correct'
    ) AS is_disputed
  FROM (
    SELECT known.id, known.ended_at, known.namespace, known.namespace_uid, known.fingerprint
    FROM investigations AS present
    JOIN investigations AS known ON known.namespace = present.namespace AND known.fingerprint = present.fingerprint
      AND known.namespace_uid IS NOT DISTINCT FROM present.namespace_uid AND known.id <> present.id
    LEFT JOIN runs AS first ON first.investigation = known.id AND first.number = 0
    WHERE present.id = :id AND known.ended_at IS NOT NULL AND coalesce(first.reason, '') <> 'Unchanged'
    ORDER BY known.ended_at DESC LIMIT 1
  ) AS newest
  JOIN investigations AS shown ON shown.id = newest.id
  WHERE newest.ended_at > clock_timestamp() - :within * interval '1 second' AND {visibility.VISIBLE}
""")  # noqa: S608 - our own text


async def last(database: databases.Database, investigation: UUID, *, within: int) -> LastRun | None:
    """Return the last full investigation of the same alert if it ended within that many seconds, and is readable.

    An object of people stands for no alert, so it has none.
    """
    rows = await database.run(_LAST, id=investigation, within=within)
    for row in rows:
        return LastRun(id=row.id, name=row.name, ended_at=row.ended_at, is_disputed=row.is_disputed)
    return None

"""What has had its time: ended investigations whose objects may leave the cluster. What the store knows of them stays.

An object goes only once its status shows the last word of the store: whoever watches it has seen the end. What was
purged goes at once: its object is what a purge that was cut off has left.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import text

from tarsy.resources import investigation
from tarsy.store.base import database as databases


@dataclass(frozen=True, kw_only=True)
class Expired:
    """An ended investigation whose object has had its time."""

    id: UUID
    name: str
    generation: int | None
    """What was last seen of the object; a newer one may say otherwise. None: it goes, whatever it says."""


_EXPIRED = text("""
  SELECT id, name, CASE WHEN purged_at IS NULL THEN generation END AS generation FROM investigations AS known
  JOIN work ON work.investigation = id
  LEFT JOIN runs AS question ON question.investigation = id AND number = run AND run > 0
  WHERE namespace = :namespace AND known.ended_at IS NOT NULL AND gone_at IS NULL AND NOT stale AND state = 'ended'
    AND (
      purged_at IS NOT NULL
      OR coalesce(question.ended_at, known.ended_at)
        < clock_timestamp() - make_interval(secs => coalesce(ttl_seconds, chain_ttl_seconds, :default))
    )
  ORDER BY known.ended_at LIMIT :limit
""")


async def expired(database: databases.Database, *, namespace: str, limit: int) -> list[Expired]:
    """Up to `limit` of a namespace's, the longest ended first. Their time counts from the end of the last question."""
    rows = await database.run(_EXPIRED, namespace=namespace, default=investigation.DEFAULT_TTL_SECONDS, limit=limit)
    return [Expired(id=row.id, name=row.name, generation=row.generation) for row in rows]

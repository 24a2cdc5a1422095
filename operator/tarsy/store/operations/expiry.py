"""Expired investigations: their objects may be deleted from the cluster. Their rows in the store stay.

An object is deleted only when it has the last status of the store. The object of a deleted or purged investigation is
deleted at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import text

from tarsy.resources import investigations
from tarsy.store.base import databases


@dataclass(frozen=True, kw_only=True)
class Expired:
    """An ended investigation whose time to live is over."""

    id: UUID
    name: str
    generation: int | None
    """The generation that was read last; a newer one may have another TTL. None if any generation may be deleted."""


_EXPIRED = text("""
  SELECT id, name, CASE WHEN deleted_at IS NULL THEN generation END AS generation FROM investigations AS known
  JOIN work ON work.investigation = id
  LEFT JOIN runs AS question ON question.investigation = id AND number = run AND run > 0
  WHERE namespace = :namespace AND known.ended_at IS NOT NULL AND gone_at IS NULL AND NOT stale AND state = 'ended'
    AND (
      deleted_at IS NOT NULL
      OR coalesce(question.ended_at, known.ended_at)
        < clock_timestamp() - make_interval(secs => coalesce(ttl_seconds, chain_ttl_seconds, :default))
    )
  ORDER BY known.ended_at LIMIT :limit
""")


async def expired(database: databases.Database, *, namespace: str, limit: int) -> list[Expired]:
    """Return up to `limit` expired investigations of a namespace, the earliest end first.

    The TTL begins at the end of the last question.
    """
    rows = await database.run(_EXPIRED, namespace=namespace, default=investigations.DEFAULT_TTL_SECONDS, limit=limit)
    return [Expired(id=row.id, name=row.name, generation=row.generation) for row in rows]

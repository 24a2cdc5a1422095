"""What has had its time: ended investigations whose objects may leave the cluster. What the store knows of them stays.

An object goes only once its status shows the last word of the store: whoever watches it has seen the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import text

from tarsy.store import database as databases

DEFAULT_TTL_SECONDS = 7 * 24 * 3600


@dataclass(frozen=True, kw_only=True)
class Expired:
    """An ended investigation whose object has had its time."""

    id: UUID
    name: str
    generation: int
    """What was last seen of the object; a newer one may say otherwise."""


_EXPIRED = text("""
  SELECT id, name, generation FROM investigations JOIN work ON investigation = id
  WHERE namespace = :namespace AND ended_at IS NOT NULL AND gone_at IS NULL AND NOT stale
    AND ended_at < clock_timestamp() - make_interval(secs => coalesce(ttl_seconds, chain_ttl_seconds, :default))
  ORDER BY ended_at LIMIT :limit
""")


async def expired(database: databases.Database, *, namespace: str, limit: int) -> list[Expired]:
    """Up to `limit` of a namespace's, the longest ended first."""
    rows = await database.run(_EXPIRED, namespace=namespace, default=DEFAULT_TTL_SECONDS, limit=limit)
    return [Expired(id=row.id, name=row.name, generation=row.generation) for row in rows]


_GONE = text("UPDATE investigations SET gone_at = clock_timestamp() WHERE id = :id AND gone_at IS NULL")


async def gone(database: databases.Database, investigation: UUID) -> None:
    """Note that the object is no longer in the cluster."""
    await database.run(_GONE, id=investigation)

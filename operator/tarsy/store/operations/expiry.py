"""Expired investigations: their objects may be deleted from the cluster. Their rows in the store stay.

An object is deleted only when it has the last status of the store. The object of a deleted or purged investigation is
deleted at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import text

from tarsy.store.base import databases, tables


@dataclass(frozen=True, kw_only=True)
class Expired:
    """An ended investigation whose time to live is over."""

    id: UUID
    name: str
    generation: int | None
    """The generation that was read last; a newer one may have another TTL. None if any generation may be deleted."""


# An object that has not expired is not read: each part goes by the index of its condition, in its order. Subqueries
# with OFFSET 0 are read row by row, whatever the statistics say.
_EXPIRES = tables.EXPIRES.replace("ended_at", "known.ended_at")
_KNOWN = """investigations AS known CROSS JOIN LATERAL (
      SELECT run FROM work WHERE investigation = known.id AND state = 'ended' AND NOT stale OFFSET 0
    ) AS work"""
_EXPIRED = text(f"""
  (
    SELECT known.id, name, CAST(NULL AS bigint) AS generation
    FROM {_KNOWN} WHERE namespace = :namespace AND deleted_at IS NOT NULL AND gone_at IS NULL
    ORDER BY deleted_at LIMIT :limit
  ) UNION ALL (
    SELECT known.id, name, generation
    FROM {_KNOWN} LEFT JOIN LATERAL (
      SELECT ended_at FROM runs WHERE investigation = known.id AND number = run AND run > 0 OFFSET 0
    ) AS question ON true
    WHERE namespace = :namespace AND known.ended_at IS NOT NULL AND gone_at IS NULL AND deleted_at IS NULL
      AND {_EXPIRES} < extract(epoch FROM now())
      AND (
        question.ended_at IS NULL
        OR {_EXPIRES} + extract(epoch FROM question.ended_at - known.ended_at) < extract(epoch FROM now())
      )
    ORDER BY {_EXPIRES} LIMIT :limit
  ) LIMIT :limit
""")  # noqa: S608 - our own texts


async def expired(database: databases.Database, *, namespace: str, limit: int) -> list[Expired]:
    """Return up to `limit` expired investigations of a namespace: deleted ones, then others, the earliest first.

    The TTL begins at the end of the last question.
    """
    rows = await database.run(_EXPIRED, namespace=namespace, limit=limit)
    return [Expired(id=row.id, name=row.name, generation=row.generation) for row in rows]

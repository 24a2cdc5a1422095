"""The investigations of a namespace, open and ended, that a resync compares with the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import text

from tarsy.store.base import databases


@dataclass(frozen=True, kw_only=True)
class Reference:
    """An investigation of which something is open."""

    id: UUID
    name: str


_OPEN = text("SELECT id, name FROM investigations WHERE namespace = :namespace AND ended_at IS NULL")
_ASKED_ABOUT = text("""
  SELECT id, name FROM investigations JOIN work ON investigation = id
  WHERE namespace = :namespace AND run > 0 AND state <> 'ended'
""")


async def list_open(database: databases.Database, *, namespace: str) -> Sequence[Reference]:
    """The investigations of a namespace that have not ended."""
    return [Reference(id=row.id, name=row.name) for row in await database.run(_OPEN, namespace=namespace)]


async def list_with_question(database: databases.Database, *, namespace: str) -> Sequence[Reference]:
    """The investigations of a namespace that have ended, and have a question that is open."""
    return [Reference(id=row.id, name=row.name) for row in await database.run(_ASKED_ABOUT, namespace=namespace)]


_SETTLED = text("""
  SELECT CAST(id AS text) AS id
  FROM unnest(CAST(:ids AS uuid[]), CAST(:generations AS bigint[])) AS given (id, generation)
  JOIN investigations AS known USING (id)
  WHERE ended_at IS NOT NULL AND known.generation >= given.generation
""")


async def ended_uids(database: databases.Database, generations: Mapping[str, int]) -> set[str]:
    """Return those of these uids that have ended, and were last seen in this generation or a later one."""
    rows = await database.run(_SETTLED, ids=list(generations), generations=list(generations.values()))
    return {row.id for row in rows}

"""The investigations of a namespace, open and ended, with which a resync compares the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import text

from tarsy.store.base import databases, tables


@dataclass(frozen=True, kw_only=True)
class Reference:
    """An investigation whose run 0 or question is open."""

    id: UUID
    name: str
    namespace_uid: str | None
    """The uid of its namespace; None if it is from before TARSy stored it."""


_OPEN = text("SELECT id, name, namespace_uid FROM investigations WHERE namespace = :namespace AND ended_at IS NULL")
_WITH_QUESTION = text(f"""
  SELECT id, name, namespace_uid FROM investigations JOIN work ON investigation = id
  WHERE namespace = :namespace AND run > 0 AND {tables.IS_OPEN}
""")  # noqa: S608 - our own text


async def list_open(database: databases.Database, *, namespace: str) -> Sequence[Reference]:
    """Return the investigations of a namespace that have not ended."""
    return [_reference(row) for row in await database.run(_OPEN, namespace=namespace)]


async def list_with_question(database: databases.Database, *, namespace: str) -> Sequence[Reference]:
    """Return the ended investigations of a namespace that have an open question."""
    return [_reference(row) for row in await database.run(_WITH_QUESTION, namespace=namespace)]


def _reference(row: Any) -> Reference:
    return Reference(id=row.id, name=row.name, namespace_uid=row.namespace_uid)


_ENDED = text("""
  SELECT CAST(id AS text) AS id
  FROM unnest(CAST(:ids AS uuid[]), CAST(:generations AS bigint[])) AS listed (id, generation)
  JOIN investigations AS known USING (id) JOIN work ON investigation = id
  WHERE ended_at IS NOT NULL AND known.generation >= listed.generation AND NOT stale
""")


async def ended_uids(database: databases.Database, generations: Mapping[str, int]) -> set[str]:
    """Return the uids of ended investigations with a written status, whose stored generation is not older."""
    rows = await database.run(_ENDED, ids=list(generations), generations=list(generations.values()))
    return {row.id for row in rows}

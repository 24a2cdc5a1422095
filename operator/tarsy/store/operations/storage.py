"""The sizes of the tables, from what Postgres knows without reading them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text

from tarsy.store.base import databases, tables, visibility

READ_SECONDS = 5.0
"""The limit of each statement."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table."""

    name: str
    size: int
    """Bytes, with indexes and large values."""
    row_count: int
    """The number of rows, as Postgres estimates it."""
    dead_row_count: int
    """The estimated number of rows that were deleted or replaced, and whose space is not free yet."""


_TABLES = text("""
  SELECT relname AS name, pg_total_relation_size(oid) AS size, pg_stat_get_dead_tuples(oid) AS dead_row_count,
    CASE WHEN reltuples < 0 THEN pg_stat_get_live_tuples(oid) ELSE CAST(reltuples AS bigint) END AS row_count
  FROM pg_class
  WHERE relkind = 'r' AND relnamespace = to_regnamespace(current_schema()) AND relname = ANY(:names)
  ORDER BY size DESC, name
""")


async def read_tables(database: databases.Database) -> Sequence[Table]:
    """Return TARSy's tables, the largest first. Raises StoreDownError, or TooLongError after READ_SECONDS."""
    names = [table.name for table in tables.metadata.sorted_tables]
    return [Table(**row) for row in await database.run_within(READ_SECONDS, _TABLES, names=names)]


@dataclass(frozen=True, kw_only=True)
class Oldest:
    """The times of the oldest rows; None if there are none."""

    admitted_at: datetime | None
    """The admission of the oldest investigation that is not deleted."""
    deleted_at: datetime | None
    """The earliest deletion of an investigation that is not purged, and not held."""
    changed_at: datetime | None
    """The oldest row of the audit."""


_FIRST = f"SELECT namespace, admitted_at FROM investigations WHERE {visibility.VISIBLE}"  # noqa: S608 - our own text
_IN_ORDER = "ORDER BY namespace, admitted_at LIMIT 1"
_OLDEST = text(f"""
  WITH RECURSIVE firsts AS (
    ({_FIRST} {_IN_ORDER})
    UNION ALL
    SELECT following.* FROM firsts
    CROSS JOIN LATERAL ({_FIRST} AND namespace > firsts.namespace {_IN_ORDER}) AS following
  )
  SELECT (SELECT min(admitted_at) FROM firsts) AS admitted_at, (
      SELECT min(deleted_at) FROM investigations
      WHERE deleted_at IS NOT NULL AND purged_at IS NULL AND hold IS NULL
    ) AS deleted_at, (SELECT min(at) FROM audit) AS changed_at
""")  # noqa: S608 - our own texts
# One step in the index `investigations_listed` for each namespace.


async def read_oldest(database: databases.Database) -> Oldest:
    """Return the times of the oldest rows. Raises StoreDownError, or TooLongError after READ_SECONDS."""
    (row,) = await database.run_within(READ_SECONDS, _OLDEST)
    return Oldest(**row)

"""The investigations that have changed since an earlier read, by `work.changed`.

A change that the status or a list shows raises `work.revision` and stores the number of its transaction in
`work.changed`, by a trigger or in its commit. Commits that only add to the counts of a run do not: there are many of
them, and this way they update no index. A reader asks for the changes from a transaction number on, and the next time
from `horizon`, below which no transaction is open any more. So it misses no change. It may read a change twice; the
revision shows that.

With a sequence or a time instead, changes would be missed: a transaction takes its value when it writes, and may commit
after another one with a higher value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import text

from tarsy.store.base import databases, visibility
from tarsy.store.reads import summaries


@dataclass(frozen=True, kw_only=True)
class Position:
    """The position of one investigation's log and queue row."""

    log_seq: int
    revision: int
    run: int
    """The number of the latest run."""
    state: str
    """The state of the latest run: queued, running or ended."""


_HEADS = text(f"""
  SELECT investigation, log_seq, revision, run, state
  FROM work JOIN investigations ON id = investigation
  WHERE investigation = ANY(CAST(:investigations AS uuid[])) AND {visibility.VISIBLE}
""")  # noqa: S608 - our own text


async def positions(database: databases.Database, investigations: Collection[UUID]) -> Mapping[UUID, Position]:
    """Return the positions of the investigations that exist and are not purged, by one statement."""
    rows = await database.run(_HEADS, investigations=list(investigations))
    return {
        row.investigation: Position(log_seq=row.log_seq, revision=row.revision, run=row.run, state=row.state)
        for row in rows
    }


@dataclass(frozen=True, kw_only=True)
class Deletion:
    """An investigation that is deleted, or purged."""

    id: UUID
    namespace: str
    name: str
    revision: int


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Investigations that have changed, in their present state."""

    summaries: Sequence[summaries.Summary]
    """In the order of their changes."""
    deletions: Sequence[Deletion]
    """Those that are deleted now, in the same order."""
    more: bool
    """Whether more changes may follow, to be read at once."""
    horizon: int
    """The transaction number to ask from the next time."""


_MOMENT = """
    SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint) AS settled_below,
      CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint) AS future"""
_OF_NAMESPACES = f"""
    SELECT investigation, changed, whose.namespace, name, revision, {visibility.VISIBLE} AS is_visible
    FROM work JOIN investigations AS whose ON whose.id = investigation
    JOIN unnest(CAST(:namespaces AS text[]), CAST(:uids AS text[])) AS asked (namespace, uid)
      ON whose.namespace = asked.namespace AND (whose.namespace_uid IS NULL OR whose.namespace_uid = asked.uid)
    WHERE changed >= greatest(CAST(:changed AS bigint), 1)"""  # noqa: S608 - our own text

# Changes below the oldest open transaction are settled. They are returned page by page; a page does not end inside a
# transaction, so that the next page begins with another one. Later changes are returned with the last page, the newest
# first, and again by each later read until they are settled too. A number in the future comes from another database,
# whose rows were restored here.
_SINCE = text(f"""
  WITH moment AS MATERIALIZED ({_MOMENT}
  ), settled AS MATERIALIZED ({_OF_NAMESPACES} AND changed < (SELECT settled_below FROM moment)
    ORDER BY changed FETCH FIRST (CAST(:limit AS bigint)) ROWS WITH TIES
  ), unsettled AS MATERIALIZED ({_OF_NAMESPACES} AND changed >= (SELECT settled_below FROM moment)
      AND changed < (SELECT future FROM moment) AND (SELECT count(*) FROM settled) < CAST(:limit AS bigint)
    ORDER BY changed DESC LIMIT CAST(:limit AS bigint)
  ), changed_rows AS MATERIALIZED (
    SELECT *, true AS is_settled FROM settled UNION ALL SELECT *, false FROM unsettled
  ), summaries AS ({summaries.SELECT_SUMMARIES}
    WHERE work.investigation = ANY(ARRAY(SELECT investigation FROM changed_rows))
  )
  SELECT settled_below, future, is_settled, changed, investigation, changed_rows.namespace AS its_namespace,
    changed_rows.name AS its_name, changed_rows.revision AS its_revision, is_visible, summaries.*
  FROM moment LEFT JOIN changed_rows ON true LEFT JOIN summaries ON summaries.id = changed_rows.investigation
  ORDER BY changed
""")  # noqa: S608 - our own texts

_OWN_COLUMNS = (
    *("settled_below", "future", "is_settled", "changed", "investigation"),
    *("its_namespace", "its_name", "its_revision", "is_visible"),
)
"""The columns of `_SINCE` that are not the summary's."""


async def since(
    database: databases.Database, *, changed: int, namespaces: Mapping[str, str], limit: int
) -> Changes | None:
    """Return the changes from transaction `changed` on in the namespaces (each with its uid).

    Return None if that number is in the future: it is from another database, or from before a restored backup. More
    than `limit` settled changes are returned only if one transaction made more; up to `limit` unsettled ones follow.
    """
    scope = {"namespaces": list(namespaces), "uids": list(namespaces.values())}
    rows = [dict(row) for row in await database.run(_SINCE, changed=changed, limit=limit, **scope)]
    horizon, future = rows[0]["settled_below"], rows[0]["future"]
    if changed > future:
        return None
    settled = [row["changed"] for row in rows if row["is_settled"]]
    more = len(settled) >= limit
    deletions = [
        Deletion(
            id=row["investigation"],
            namespace=row["its_namespace"],
            name=row["its_name"],
            revision=row["its_revision"],
        )
        for row in rows
        if row["is_visible"] is False
    ]
    for row in rows:
        for column in _OWN_COLUMNS:
            del row[column]
    return Changes(
        deletions=deletions,
        summaries=[summaries.from_row(row) for row in rows if row["id"] is not None],
        more=more,
        horizon=settled[-1] + 1 if more else horizon,
    )


_NOW = text(_MOMENT)


async def now(database: databases.Database) -> int:
    """Return the transaction number to ask from for the changes after now."""
    (row,) = await database.run(_NOW)
    horizon: int = row.settled_below
    return horizon

"""The changes since a former look: of one investigation, or of all in some namespaces.

Each change that a status shows raises `work.revision`, and stores its transaction's number in `work.changed`, by a
trigger or with its commit. Commits that only add to the numbers of a run do not: there are many, and so none of them
touches an index. A reader asks for the changes from a number on, and may go on from `horizon`, below which no
transaction is open any more: so no change is missed. One may be seen twice; its revision shows that.

Neither a sequence nor a time would do: a transaction takes them when it writes, and may commit after one with a later
value.
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
    """How far one investigation is."""

    log_seq: int
    revision: int
    run: int
    """Its latest."""
    state: str
    """queued, running or ended: of its latest run."""


_HEADS = text(f"""
  SELECT investigation, log_seq, revision, run, state
  FROM work JOIN investigations ON id = investigation
  WHERE investigation = ANY(CAST(:investigations AS uuid[])) AND {visibility.VISIBLE}
""")  # noqa: S608 - our own text


async def positions(database: databases.Database, investigations: Collection[UUID]) -> Mapping[UUID, Position]:
    """How far these are, by one statement; without those that are not there, or whose transcripts are not."""
    rows = await database.run(_HEADS, investigations=list(investigations))
    return {
        row.investigation: Position(log_seq=row.log_seq, revision=row.revision, run=row.run, state=row.state)
        for row in rows
    }


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Investigations that have changed, in their newest form."""

    summaries: Sequence[summaries.Summary]
    """By when they changed."""
    more: bool
    """Whether there may be others behind them, to be asked for at once."""
    horizon: int
    """The number to ask from the next time."""


_MOMENT = """
    SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint) AS settled_below,
      CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint) AS future"""
_OF_NAMESPACES = f"""
    SELECT investigation, changed
    FROM work JOIN investigations AS whose ON whose.id = investigation
    JOIN unnest(CAST(:namespaces AS text[]), CAST(:uids AS text[])) AS asked (namespace, uid)
      ON whose.namespace = asked.namespace AND (whose.namespace_uid IS NULL OR whose.namespace_uid = asked.uid)
    WHERE {visibility.VISIBLE} AND changed >= greatest(CAST(:changed AS bigint), 1)"""  # noqa: S608 - our own text

# What is settled comes page by page, and none ends inside a transaction, so that the next one begins behind it. What
# others are still changing beside comes with the last page, and once more with each that follows, until all that began
# before has ended: where that takes long, the newest of it come. A number of the future is one of another database,
# whose rows were restored here.
_SINCE = text(f"""
  WITH moment AS MATERIALIZED ({_MOMENT}
  ), settled AS MATERIALIZED ({_OF_NAMESPACES} AND changed < (SELECT settled_below FROM moment)
    ORDER BY changed FETCH FIRST (CAST(:limit AS bigint)) ROWS WITH TIES
  ), beside AS MATERIALIZED ({_OF_NAMESPACES} AND changed >= (SELECT settled_below FROM moment)
      AND changed < (SELECT future FROM moment) AND (SELECT count(*) FROM settled) < CAST(:limit AS bigint)
    ORDER BY changed DESC LIMIT CAST(:limit AS bigint)
  ), found AS MATERIALIZED (
    SELECT *, true AS is_settled FROM settled UNION ALL SELECT *, false FROM beside
  ), told AS ({summaries.SELECT_SUMMARIES}
    WHERE work.investigation = ANY(ARRAY(SELECT investigation FROM found))
  )
  SELECT settled_below, future, is_settled, changed, told.*
  FROM moment LEFT JOIN found ON true LEFT JOIN told ON told.id = found.investigation
  ORDER BY changed
""")  # noqa: S608 - our own texts


async def since(
    database: databases.Database, *, changed: int, namespaces: Mapping[str, str], limit: int
) -> Changes | None:
    """Return the changes from transaction `changed` on in the namespaces (each with its uid).

    None if that is in the future.

    None means that the number is from another database, or from one that was restored from a backup. The result exceeds
    `limit` only if one transaction changed more; at most as many again may come once more.
    """
    scope = {"namespaces": list(namespaces), "uids": list(namespaces.values())}
    rows = [dict(row) for row in await database.run(_SINCE, changed=changed, limit=limit, **scope)]
    horizon, future = rows[0]["settled_below"], rows[0]["future"]
    if changed > future:
        return None
    settled = [row["changed"] for row in rows if row["is_settled"]]
    more = len(settled) >= limit
    for row in rows:
        for column in ("settled_below", "future", "is_settled", "changed"):
            del row[column]
    return Changes(
        summaries=[summaries.from_row(row) for row in rows if row["id"] is not None],
        more=more,
        horizon=settled[-1] + 1 if more else horizon,
    )


_NOW = text(_MOMENT)


async def now(database: databases.Database) -> int:
    """From where on to ask for what changes from now on."""
    (row,) = await database.run(_NOW)
    horizon: int = row.settled_below
    return horizon

"""Investigations that workers pass over, because they cannot run an agent of an unfinished stage.

Which agents of a chain a worker cannot run depends on the chain's snapshot and on that worker's platform file and
environment alone. So each worker judges every snapshot once, not every investigation: a claim gets the result as a
`choice.Choice`, and the catalogue gets it as facts of kind `passed`, which end with the worker. The sweep compares
those of all live workers, and keeps in `work.passed_over_since` since when all of them pass an investigation over.

Agents are counted from 0 in their stage, and stages in their chain: names would go through masking on their way here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import text

from tarsy.resources import chains
from tarsy.store.base import databases, notify
from tarsy.store.fleet import catalogue
from tarsy.store.queue import claim_filter, work
from tarsy.store.reads import snapshots

PATIENCE = timedelta(minutes=10)
"""For so long an investigation waits that all live workers pass over."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The chain of investigations, as it was when they were admitted."""

    hash: str
    spec: chains.Spec | None
    """None: this program cannot read it."""


_SNAPSHOT = text("""
  SELECT chain_hash, chain_version, CAST(chain AS text) AS chain
  FROM investigations WHERE id = :id AND chain_hash IS NOT NULL
""")


async def snapshot(database: databases.Database, investigation: UUID) -> Snapshot | None:
    """Return the snapshot of the chain that `investigation` runs; None if it is there no longer."""
    rows = await database.run(_SNAPSHOT, id=investigation)
    if not rows:
        return None
    (row,) = rows
    try:
        spec = snapshots.chain_of(row.chain, version=row.chain_version)
    except snapshots.UnreadableError:
        spec = None
    return Snapshot(hash=row.chain_hash, spec=spec)


_OPEN = text("""
  SELECT DISTINCT chain_hash FROM work JOIN investigations ON id = work.investigation
  WHERE state <> 'ended' AND chain_hash = ANY(:hashes)
""")


async def still_open(database: databases.Database, hashes: Collection[str]) -> set[str]:
    """Return those of `hashes` that are the hash of an open investigation's snapshot."""
    return {row.chain_hash for row in await database.run(_OPEN, hashes=list(hashes))}


def _passes(of: str = "true") -> str:
    """Return CTEs: live workers, the agents that they cannot run and investigations need, and what all pass over.

    `of` narrows down the investigations (`about`).
    """
    return f"""
  workers AS ({catalogue.WORKERS}),
  passes AS (
    SELECT said.process, said.name AS hash, agent.*
    FROM workers JOIN catalogue AS said USING (process)
      CROSS JOIN LATERAL json_to_recordset(said.detail -> 'agents')
        AS agent (stage integer, index integer, reason text, problem text, only_to_start boolean)
    WHERE said.kind = 'passed'
  ), waiting AS MATERIALIZED (
    SELECT about.id, about.chain_hash, about.chain, about.stage_names
    FROM work JOIN investigations AS about ON about.id = work.investigation
    WHERE state <> 'ended' AND {claim_filter.CLAIMABLE} AND unreadable IS NULL AND run = 0 AND cancel IS NULL AND {of}
  ), passed AS (
    SELECT about.id AS investigation, process, reason, problem
    FROM waiting AS about JOIN passes ON hash = about.chain_hash
    WHERE {claim_filter.UNFINISHED} AND {claim_filter.IN_TIME}
  ), by_all AS (
    SELECT investigation FROM passed GROUP BY investigation
    HAVING count(DISTINCT process) = (SELECT count(*) FROM workers)
  )"""  # noqa: S608 - our own text


_CONCERNS = text("""
  SELECT EXISTS (SELECT 1 FROM catalogue WHERE kind = 'passed')
    OR EXISTS (SELECT 1 FROM work WHERE state <> 'ended' AND passed_over_since IS NOT NULL) AS any
""")
_MARK = text(f"""
  WITH {_passes()}, changed AS (
    SELECT work.investigation, by_all.investigation IS NOT NULL AS is_by_all
    FROM work LEFT JOIN by_all USING (investigation)
    WHERE state <> 'ended' AND (by_all.investigation IS NULL) <> (passed_over_since IS NULL)
    FOR NO KEY UPDATE OF work SKIP LOCKED
  )
  UPDATE work
  SET passed_over_since = CASE WHEN is_by_all THEN clock_timestamp() END, revision = revision + 1, stale = true
  FROM changed WHERE work.investigation = changed.investigation
  RETURNING work.investigation
""")  # noqa: S608 - our own text
_OVERDUE = text("""
  SELECT investigation FROM work
  WHERE state <> 'ended' AND passed_over_since <= clock_timestamp() - CAST(:patience AS interval)
""")
_HOLD_OVERDUE = text("""
  SELECT 1 FROM work
  WHERE investigation = :id AND state <> 'ended'
    AND passed_over_since <= clock_timestamp() - CAST(:patience AS interval)
  FOR NO KEY UPDATE SKIP LOCKED
""")
_WHY = text(f"""
  WITH {_passes("about.id = :id")}
  SELECT DISTINCT reason, problem FROM passed JOIN by_all USING (investigation)
  ORDER BY reason, problem
""")  # noqa: S608 - our own text


async def sweep(database: databases.Database, *, patience: timedelta = PATIENCE) -> int:
    """End what all live workers, at least one, have passed over for `patience`; return how many were ended.

    The time begins anew where a worker comes that does not pass it over, where none is left, and where it was suspended
    or claimed. One after the other, each in its own transaction: any number of processes may sweep at once.
    """
    fresh: dict[str, Any] = {"fresh": catalogue.FRESH}
    (concerned,) = await database.run(_CONCERNS)
    if not concerned.any:
        return 0
    if marked := await database.run(_MARK, **fresh):  # the status says that it waits, and for what
        await notify.send(database, *((notify.STATUS, str(row.investigation)) for row in marked))
    ended = 0
    for overdue in await database.run(_OVERDUE, patience=patience):
        identity = {"id": overdue.investigation}
        async with database.begin() as connection:
            if (await connection.execute(_HOLD_OVERDUE, identity | {"patience": patience})).first() is None:
                continue
            # Locked, it is not claimed; what is read now says whether all still pass it over.
            reasons = (await connection.execute(_WHY, identity | fresh)).all()
            if not reasons:
                continue
            message = _message([row.problem for row in reasons], patience=patience)
            await work.end(connection, overdue.investigation, "Failed", reason=reasons[0].reason, message=message)
            ended += 1
        await notify.send(database, (notify.STATUS, str(overdue.investigation)))
    return ended


def _message(problems: Iterable[str], *, patience: timedelta) -> str:
    return (
        f"no worker could run it for {patience / timedelta(minutes=1):g} minutes: {'; '.join(problems)}. "
        "Give the workers what is missing, or name another in the chain or the platform file, and have it investigated "
        "again"
    )

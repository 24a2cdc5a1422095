"""Investigations that workers pass over, because they cannot run an agent of an unfinished stage.

The agents that a worker cannot run depend only on the chain snapshot and on the worker's platform file and environment.
So each worker checks every snapshot once, and not every investigation. Its claims use the result as a
`claim_filter.ClaimFilter`. The catalogue has it as facts of kind `passed`, which end with the worker. The sweep
compares the facts of all live workers: `work.passed_over_since` is the time since which all pass over an investigation.

Stages and agents are identified by position, from 0: their names would be masked in the catalogue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import text

from tarsy.resources import chains
from tarsy.store.base import databases, notify, tables
from tarsy.store.fleet import catalogue
from tarsy.store.queue import claim_filter, work
from tarsy.store.reads import snapshots

PATIENCE = timedelta(minutes=10)
"""The time that an investigation waits while all live workers pass it over."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A chain as it was at the admission of an investigation."""

    hash: str
    spec: chains.Spec | None
    """None if this program cannot read it."""


_SNAPSHOT = text("""
  SELECT chain_hash, chain_version, CAST(chain AS text) AS chain
  FROM investigations WHERE id = :id AND chain_hash IS NOT NULL
""")


async def snapshot(database: databases.Database, investigation: UUID) -> Snapshot | None:
    """Return the chain snapshot of `investigation`, or None if it no longer exists."""
    rows = await database.run(_SNAPSHOT, id=investigation)
    if not rows:
        return None
    (row,) = rows
    try:
        spec = snapshots.chain_of(row.chain, version=row.chain_version)
    except snapshots.UnreadableError:
        spec = None
    return Snapshot(hash=row.chain_hash, spec=spec)


_OPEN = text(f"""
  SELECT DISTINCT chain_hash FROM work JOIN investigations ON id = work.investigation
  WHERE {tables.IS_OPEN} AND chain_hash = ANY(:hashes)
""")  # noqa: S608 - our own text


async def still_open(database: databases.Database, hashes: Collection[str]) -> set[str]:
    """Return those of `hashes` that belong to the snapshot of an open investigation."""
    return {row.chain_hash for row in await database.run(_OPEN, hashes=list(hashes))}


def _passed_over_ctes(condition: str = "true") -> str:
    """Return the common table expressions of the investigations that workers pass over.

    `unrunnable` has the agents that live workers cannot run, `passed` the investigations that need one, by worker, and
    `by_all` the investigations that all live workers pass over. `condition` selects investigations (`about`).
    """
    return f"""
  workers AS ({catalogue.WORKERS}),
  unrunnable AS (
    SELECT fact.process, fact.name AS hash, agent.*
    FROM workers JOIN catalogue AS fact USING (process)
      CROSS JOIN LATERAL json_to_recordset(fact.detail -> 'agents')
        AS agent (stage integer, index integer, reason text, problem text, only_to_start boolean)
    WHERE fact.kind = 'passed'
  ), waiting AS MATERIALIZED (
    SELECT about.id, about.chain_hash, about.chain, about.stage_names
    FROM work JOIN investigations AS about ON about.id = work.investigation
    WHERE {tables.IS_OPEN} AND {claim_filter.CLAIMABLE} AND unreadable IS NULL AND run = 0 AND cancel IS NULL
      AND {condition}
  ), passed AS (
    SELECT about.id AS investigation, process, reason, problem
    FROM waiting AS about JOIN unrunnable ON hash = about.chain_hash
    WHERE {claim_filter.UNFINISHED} AND {claim_filter.IN_TIME}
  ), by_all AS (
    SELECT investigation FROM passed GROUP BY investigation
    HAVING count(DISTINCT process) = (SELECT count(*) FROM workers)
  )"""  # noqa: S608 - our own text


_ANY_PASSED = text(f"""
  SELECT EXISTS (SELECT 1 FROM catalogue WHERE kind = 'passed')
    OR EXISTS (SELECT 1 FROM work WHERE {tables.IS_OPEN} AND passed_over_since IS NOT NULL) AS any
""")  # noqa: S608 - our own text
_MARK = text(f"""
  WITH {_passed_over_ctes()}, changed AS (
    SELECT work.investigation, by_all.investigation IS NOT NULL AS is_by_all
    FROM work LEFT JOIN by_all USING (investigation)
    WHERE {tables.IS_OPEN} AND (by_all.investigation IS NULL) <> (passed_over_since IS NULL)
    FOR NO KEY UPDATE OF work SKIP LOCKED
  )
  UPDATE work
  SET passed_over_since = CASE WHEN is_by_all THEN clock_timestamp() END, revision = revision + 1, stale = true
  FROM changed WHERE work.investigation = changed.investigation
  RETURNING work.investigation
""")  # noqa: S608 - our own text
_OVERDUE = text(f"""
  SELECT investigation FROM work
  WHERE {tables.IS_OPEN} AND passed_over_since <= clock_timestamp() - CAST(:patience AS interval)
""")  # noqa: S608 - our own text
_HOLD_OVERDUE = text("""
  SELECT 1 FROM work
  WHERE investigation = :id AND state <> 'ended'
    AND passed_over_since <= clock_timestamp() - CAST(:patience AS interval)
  FOR NO KEY UPDATE SKIP LOCKED
""")
_WHY = text(f"""
  WITH {_passed_over_ctes("about.id = :id")}
  SELECT DISTINCT reason, problem FROM passed JOIN by_all USING (investigation)
  ORDER BY reason, problem
""")  # noqa: S608 - our own text


async def sweep(database: databases.Database, *, patience: timedelta = PATIENCE) -> int:
    """End investigations that all live workers have passed over for `patience`; return how many were ended.

    The time begins again when a new worker can run the investigation, when no worker is left, and when the
    investigation is suspended or claimed. Each is ended in its own transaction, so several processes may sweep at once.
    """
    fresh: dict[str, Any] = {"fresh": catalogue.FRESH}
    (row,) = await database.run(_ANY_PASSED)
    if not row.any:
        return 0
    if marked := await database.run(_MARK, **fresh):  # the status shows what they wait for
        await notify.send(database, *((notify.STATUS, str(row.investigation)) for row in marked))
    ended = 0
    for overdue in await database.run(_OVERDUE, patience=patience):
        identity = {"id": overdue.investigation}
        async with database.begin() as connection:
            if (await connection.execute(_HOLD_OVERDUE, identity | {"patience": patience})).first() is None:
                continue
            # The row is locked and cannot be claimed. Check again that all workers pass it over.
            reasons = (await connection.execute(_WHY, identity | fresh)).all()
            if not reasons:
                continue
            message = _message([row.problem for row in reasons], patience=patience)
            await work.end(connection, overdue.investigation, "Failed", reason=reasons[0].reason, message=message)
            ended += 1
        database.run_ended(overdue.investigation)
        await notify.send(database, (notify.STATUS, str(overdue.investigation)))
    return ended


def _message(problems: Iterable[str], *, patience: timedelta) -> str:
    return (
        f"no worker could run it for {patience / timedelta(minutes=1):g} minutes: {'; '.join(problems)}. "
        "Give the workers what is missing, or use another one in the chain or the platform file, and create the "
        "investigation again"
    )

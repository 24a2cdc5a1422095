"""The order of claims: priority first, then takeovers, then the chains by turns.

Each chain of the cluster has a queue of its own, and questions of people have one together. Of several queues whose
first runs have the same priority, the one with the fewest running goes first, then the one whose last claim is the
longest ago, then the one with the oldest run. So a storm of one chain's alerts does not stop another chain. A takeover
goes before them, because its run has had its turn already.

A chain may limit how many of its investigations run at once (`maxRunning`). The limit is exact over all processes: a
claim counts the chain's turns. It takes effect only if no other claim has taken a turn of the chain since it counted
the running ones; else it fails as if the rows were locked. Claims of chains without a limit never fail so. A run
counts until it is released or ends, also while its worker is dead.

The limit is today's: the controller writes it as soon as a chain changes (`store_limits`). The first admission of a
chain writes the one that it knows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import text

from tarsy.store.base import databases, tables
from tarsy.store.queue import claim_filter

_MAY_RUN = f"NOT (:build = ANY(unreadable_by)) AND NOT ({claim_filter.PASSED_OVER})"
_QUEUED = "state = 'queued' AND NOT suspend"
_ABANDONED = "state = 'running' AND lease_until < clock_timestamp() AND NOT suspend"

# The queues are found by one look into the index for each: their number is that of the chains that have alerts waiting.
NEXT = f"""
  waiting AS (
    (SELECT queue FROM work WHERE {_QUEUED} ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT work.queue FROM work WHERE {_QUEUED} AND work.queue > waiting.queue ORDER BY work.queue LIMIT 1)
    FROM waiting WHERE waiting.queue IS NOT NULL
  ), running AS (
    SELECT queue, count(*) AS number FROM work WHERE state = 'running' GROUP BY queue
  ), turns AS (
    SELECT waiting.queue, CAST(NULL AS uuid) AS abandoned, head.priority, head.queued_at,
      coalesce(running.number, 0) AS running, queues.taken_at, coalesce(queues.taken, 0) AS taken,
      coalesce(queues.max_running, 0) AS max_running
    FROM waiting CROSS JOIN LATERAL (
      SELECT priority, queued_at FROM work
      WHERE queue = waiting.queue AND {_QUEUED} AND {_MAY_RUN}
      ORDER BY priority DESC, queued_at LIMIT 1
    ) AS head
    LEFT JOIN running USING (queue) LEFT JOIN queues USING (queue)
    UNION ALL
    SELECT queue, investigation, priority, queued_at, 0, NULL, 0, 0 FROM work WHERE {_ABANDONED} AND {_MAY_RUN}
  ), possible AS MATERIALIZED (
    SELECT * FROM turns WHERE max_running = 0 OR running < max_running
    ORDER BY priority DESC, abandoned IS NULL, running, taken_at NULLS FIRST, queued_at
  ), next AS (
    SELECT locked.*, possible.queue, abandoned, taken, max_running
    FROM possible CROSS JOIN LATERAL (
      SELECT * FROM (
        SELECT investigation, run, state FROM work
        WHERE investigation = possible.abandoned AND {_ABANDONED}
        FOR UPDATE SKIP LOCKED
      ) AS taken_over
      UNION ALL
      SELECT * FROM (
        SELECT investigation, run, state FROM work
        WHERE possible.abandoned IS NULL AND queue = possible.queue AND {_QUEUED} AND {_MAY_RUN}
        ORDER BY priority DESC, queued_at
        FOR UPDATE SKIP LOCKED
        LIMIT 1
      ) AS first_queued
    ) AS locked
    LIMIT 1
  )"""  # noqa: S608 - our own text
"""The common table expressions that lock the row of `work` to claim, `next`; `possible` has all that could be claimed.

Their values are `build` and those of the claim filter.
"""

TAKEN = """
  taken AS (
    INSERT INTO queues AS known (queue, taken, taken_at)
    SELECT queue, taken + 1, clock_timestamp() FROM first WHERE abandoned IS NULL AND is_checked
    ON CONFLICT (queue) DO UPDATE SET taken = known.taken + 1, taken_at = excluded.taken_at
    WHERE (SELECT max_running FROM first) = 0 OR known.taken + 1 = excluded.taken
    RETURNING queue
  )"""
"""The common table expression that counts the turn of the row `first`; empty if another claim was faster."""

_STORE_LIMITS = text(f"""
  WITH forgotten AS (
    DELETE FROM queues
    WHERE starts_with(queue, :prefix) AND queue <> ALL(CAST(:known AS text[]))
      AND NOT EXISTS (SELECT FROM work WHERE work.queue = queues.queue AND {tables.IS_OPEN})
  )
  INSERT INTO queues AS known (queue, max_running)
  SELECT * FROM unnest(CAST(:chains AS text[]), CAST(:limits AS integer[]))
  ON CONFLICT (queue) DO UPDATE SET max_running = excluded.max_running
  WHERE known.max_running IS DISTINCT FROM excluded.max_running
""")  # noqa: S608 - our own text


async def store_limits(
    database: databases.Database, namespace: str, limits: Mapping[str, int | None], *, known: Collection[str]
) -> None:
    """Store the `maxRunning` of the chains of `namespace`, by name; None is no limit.

    `known` are the names of all its chains. Of a chain that is gone, the row is deleted once none of its investigations
    is open.
    """
    await database.run(
        _STORE_LIMITS,
        prefix=f"{namespace}/",
        known=[f"{namespace}/{name}" for name in known],
        chains=[f"{namespace}/{name}" for name in limits],
        limits=[limit or 0 for limit in limits.values()],
    )

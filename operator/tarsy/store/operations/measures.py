"""Measures of the database for metrics: investigations, queue, attempts, feedback, sizes of tables.

They are read at intervals, so each statement has a limit of time, and reads no more than open investigations, those
that ended lately, and the feedback of late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import text

from tarsy.store.base import databases, tables, visibility
from tarsy.store.operations import storage
from tarsy.store.reads import phase_rules, verdicts

READ_SECONDS = 5.0
"""The limit of each statement."""
ENDED_WITHIN = timedelta(hours=24)
"""Investigations that ended within this time are counted, while their objects exist."""

FEEDBACK_WITHIN = timedelta(days=30)
"""Feedback that was given or changed within this time is counted."""


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """The queued investigations and questions of a namespace and a chain."""

    count: int
    oldest_seconds: float
    """The time that the longest waiting one has waited."""


@dataclass(frozen=True, kw_only=True)
class Measures:
    """The measures at one moment, by the namespace of investigations among others.

    A chain is "" if an investigation has none.
    """

    investigations: Mapping[tuple[str, ...], int]
    """Counts by phase, namespace, chain and reason."""
    queue: Mapping[tuple[str, ...], Waiting]
    """By namespace and chain."""
    attempts: Mapping[tuple[str, ...], int]
    """The most claims in a row without a commit that an open investigation of a namespace and a chain has."""
    feedback: Mapping[tuple[str, ...], int]
    """Counts by chain, provider and verdict. The provider wrote the final analysis; it is "" if none was asked."""
    table_bytes: Mapping[str, int]
    """By table, with indexes and large values."""


_PHASES = text(f"""
  SELECT phase, namespace, coalesce(chain_name, '') AS chain, reason, count(*) AS number
  FROM (
    SELECT namespace, chain_name, {phase_rules.OPEN_PHASE} AS phase, '' AS reason
    FROM work JOIN runs ON runs.investigation = work.investigation AND number = 0
      JOIN investigations ON id = work.investigation
    WHERE {tables.IS_OPEN} AND runs.ended_at IS NULL AND {visibility.VISIBLE}
    UNION ALL
    SELECT namespace, chain_name, coalesce(runs.ending, '') AS phase, coalesce(reason, '') AS reason
    FROM investigations JOIN runs ON runs.investigation = id AND number = 0
    WHERE investigations.ended_at > now() - CAST(:within AS interval) AND gone_at IS NULL
      AND {visibility.VISIBLE}
  ) AS counted
  GROUP BY 1, 2, 3, 4
""")  # noqa: S608 - our own text
# Not `clock_timestamp()`: with a value that may differ from row to row, no index on `ended_at` is used.

_QUEUE = text(f"""
  SELECT namespace, coalesce(chain_name, '') AS chain,
    count(*) FILTER (WHERE is_waiting) AS number,
    extract(epoch FROM clock_timestamp() - min(queued_at) FILTER (WHERE is_waiting)) AS oldest,
    max(attempts_without_progress) AS attempts
  FROM (
    SELECT investigation, queued_at, attempts_without_progress,
      NOT (state = 'running' AND lease_until >= clock_timestamp()) AND NOT (suspend AND state <> 'running')
        AND state <> 'parked' AND unreadable IS NULL AS is_waiting
    FROM work WHERE {tables.IS_OPEN}
  ) AS open JOIN investigations ON id = investigation
  GROUP BY 1, 2
""")  # noqa: S608 - our own text

# The end of a stage with several agents is its synthesis, whose provider wrote the analysis.
_FEEDBACK = text(f"""
  SELECT coalesce(chain_name, '') AS chain, coalesce(provider, '') AS provider, verdict, count(*) AS number
  FROM feedback JOIN investigations ON id = feedback.investigation
  LEFT JOIN LATERAL (
    SELECT provider FROM executions
    WHERE executions.investigation = feedback.investigation AND run = 0 AND kind IN ('agent', 'synthesis')
    ORDER BY executions.ended_at DESC NULLS LAST LIMIT 1
  ) AS last ON true
  WHERE verdict = ANY(CAST(:verdicts AS text[])) AND changed_at > now() - CAST(:within AS interval)
    AND {visibility.VISIBLE}
  GROUP BY 1, 2, 3
""")  # noqa: S608 - our own text


async def read(database: databases.Database) -> Measures:
    """Read the measures. Raises StoreDownError, or TooLongError after READ_SECONDS."""
    phases: Sequence[databases.Row] = await database.run_within(READ_SECONDS, _PHASES, within=ENDED_WITHIN)
    queue = await database.run_within(READ_SECONDS, _QUEUE)
    feedback = await database.run_within(
        READ_SECONDS, _FEEDBACK, verdicts=list(verdicts.VERDICTS), within=FEEDBACK_WITHIN
    )
    sizes = await storage.read_tables(database)
    return Measures(
        investigations={(row.phase, row.namespace, row.chain, row.reason): row.number for row in phases},
        queue={
            (row.namespace, row.chain): Waiting(count=row.number, oldest_seconds=max(0.0, float(row.oldest or 0.0)))
            for row in queue
        },
        attempts={(row.namespace, row.chain): row.attempts for row in queue},
        feedback={(row.chain, row.provider, row.verdict): row.number for row in feedback},
        table_bytes={table.name: table.size for table in sizes},
    )

"""The rows of `stages` and `executions` of investigations, and the conclusions of their executions.

The log is read only for the last answers of the executions.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import text

from tarsy.resources import chains
from tarsy.store.base import databases, visibility
from tarsy.store.reads import log_entries, snapshots
from tarsy.transcript import entries, record

EXECUTIONS_MAX = 500
"""Executions of an investigation that are read: 20 stages of 20 agents, their syntheses and a summary are 421."""
ANSWERS_AT_ONCE = 20
"""Last answers that are read at once: an answer may be long."""


@dataclass(frozen=True, kw_only=True)
class StageProgress:
    """The stages of an investigation's run 0, and their outcomes."""

    stage_names: tuple[str, ...]
    """The names of all stages of the chain."""
    outcomes: Mapping[str, str | None]
    """The outcomes of the stages that have started or were skipped; None for one that has not ended."""
    chain: chains.Spec | None
    """The chain snapshot; None if there is none, or it cannot be read."""
    owner: UUID | None
    """The process that runs it; None if none does."""
    host: str | None
    """The name of that process's pod or machine; None if none runs it, or it has not reported its name yet."""
    last_call_at: datetime | None
    """The time at which the latest model or tool call was committed."""
    now: datetime
    """The database's time of this read."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """An execution of run 0 in numbers."""

    id: str
    stage: str
    """"" if it belongs to no stage."""
    kind: entries.ExecutionKind
    index: int
    name: str
    """The name, unique among its siblings."""
    strategy: str
    """"" if it ended before it began."""
    outcome: entries.Outcome | None
    error: str
    started_at: datetime
    ended_at: datetime | None


_COURSES = text(f"""
  SELECT id, stage_names, chain_hash, CASE WHEN state = 'running' AND run = 0 THEN owner END AS owner,
    CASE WHEN state = 'running' AND run = 0 THEN
      (SELECT name FROM catalogue WHERE process = work.owner AND kind = 'process' LIMIT 1)
    END AS host,
    ARRAY(SELECT name FROM stages WHERE investigation = id AND stages.run = 0 ORDER BY name) AS started,
    ARRAY(SELECT outcome FROM stages WHERE investigation = id AND stages.run = 0 ORDER BY name) AS outcomes,
    CASE WHEN CAST(:calls AS boolean) THEN (
      SELECT at FROM entries WHERE investigation = id AND entries.run = 0 AND model_calls + tool_calls > 0
      ORDER BY seq DESC LIMIT 1
    ) END AS last_call_at,
    clock_timestamp() AS now
  FROM investigations JOIN work ON investigation = id
  WHERE id = ANY(CAST(:ids AS uuid[])) AND {visibility.VISIBLE}
""")  # noqa: S608 - our own text

_CHAIN = text(f"""
  SELECT CAST(chain AS text) AS chain, chain_version
  FROM investigations WHERE id = :id AND {visibility.VISIBLE}
""")  # noqa: S608 - our own text


async def stage_progress(
    database: databases.Database, ids: Collection[UUID], *, calls: bool = False
) -> Mapping[UUID, StageProgress]:
    """Return the stage progress of the investigations that exist; `last_call_at` only with `calls`.

    Each chain is read once, and one at a time, because it may be large.
    """
    rows = await database.run(_COURSES, ids=list(ids), calls=calls)
    specs: dict[str | None, chains.Spec | None] = {None: None}
    for row in rows:
        if row.chain_hash not in specs:
            specs[row.chain_hash] = await _chain(database, row.id)
    return {
        row.id: StageProgress(
            stage_names=tuple(row.stage_names),
            outcomes=dict(zip(row.started, row.outcomes, strict=True)),
            chain=specs[row.chain_hash],
            owner=row.owner,
            host=row.host,
            last_call_at=row.last_call_at,
            now=row.now,
        )
        for row in rows
    }


async def _chain(database: databases.Database, investigation: UUID) -> chains.Spec | None:
    rows = await database.run(_CHAIN, id=investigation)
    try:
        return (
            await asyncio.to_thread(snapshots.chain_of, rows[0].chain, version=rows[0].chain_version) if rows else None
        )
    except snapshots.UnreadableError:
        return None


_EXECUTIONS = text(f"""
  SELECT id, stage, kind, index, name, strategy, outcome, error, started_at, ended_at
  FROM executions WHERE investigation = :id AND run = 0 AND {visibility.VISIBLE_BY_ID}
  ORDER BY started_at, stage, kind <> 'agent', index LIMIT :rows
""")  # noqa: S608 - our own text


async def executions(database: databases.Database, investigation: UUID) -> list[Execution]:
    """Return the executions of run 0, in the order of their start."""
    return [Execution(**row) for row in await database.run(_EXECUTIONS, id=investigation, rows=EXECUTIONS_MAX)]


_CONCLUDING = text(f"""
  SELECT max(seq) AS seq FROM entries
  JOIN executions ON executions.investigation = entries.investigation AND executions.id = execution
  WHERE entries.investigation = :id AND entries.run = 0 AND entries.kind = 'Answered' AND seq <= :upto
    AND outcome = 'Completed' AND {visibility.VISIBLE_BY_ID}
  GROUP BY execution ORDER BY 1 LIMIT :rows
""")  # noqa: S608 - our own text
_READ = text(f"""
  SELECT {log_entries.COLUMNS}, NULL FROM entries
  WHERE investigation = :id AND seq = ANY(CAST(:seqs AS bigint[])) AND {visibility.VISIBLE_BY_ID}
""")  # noqa: S608 - our own text


async def conclusions(
    database: databases.Database, investigation: UUID, executions: Iterable[Execution], *, upto: int, length: int
) -> Mapping[str, str]:
    """Return the conclusions of the completed executions by entry `upto`, each cut to `length` characters."""
    strategies = {execution.id: execution.strategy for execution in executions}
    concluding = await database.run(_CONCLUDING, id=investigation, upto=upto, rows=EXECUTIONS_MAX)
    concluded: dict[str, str] = {}
    for start in range(0, len(concluding), ANSWERS_AT_ONCE):
        seqs = [row.seq for row in itertools.islice(concluding, start, start + ANSWERS_AT_ONCE)]
        rows = await database.run(_READ, id=investigation, seqs=seqs)
        concluded |= await asyncio.to_thread(_concluded, rows, strategies, length)
    return concluded


def _concluded(rows: Sequence[Any], strategies: Mapping[str, str], length: int) -> dict[str, str]:
    logged_entries = (log_entries.from_row(row) for row in rows)
    return {
        logged.execution: record.conclusion(
            logged.entry.messages[-1].text, strategy=strategies.get(logged.execution, "")
        )[:length]
        for logged in logged_entries
        if isinstance(logged.entry, entries.Answered)
    }

"""Reads of the store: an investigation in numbers, as lists and the status need it, and its log.

The numbers come from narrow rows that each commit keeps up to date; the log is decoded only where its content is asked
for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import text

from tarsy.resources import investigations
from tarsy.store.base import databases, visibility
from tarsy.store.reads import log_entries, phase_rules
from tarsy.transcript import entries, messages


@dataclass(frozen=True, kw_only=True)
class StageSummary:
    """One stage in numbers."""

    name: str
    outcome: str | None
    message: str
    lacks: list[str]
    """The things that its agents lacked, a sentence each."""
    started_at: datetime | None
    """None: it was skipped."""
    ended_at: datetime | None
    completed: int
    """Agents that completed."""
    iterations: int
    tool_calls: int
    total_tokens: int
    unjoined: bool = False
    """Whether the synthesis of its agents' results failed."""
    cut_off: bool = False
    """Whether the end of the investigation ended it."""


@dataclass(frozen=True, kw_only=True)
class Previous:
    """The investigation of the same alert that another one follows: it came to nothing."""

    id: UUID
    name: str


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One investigation in numbers, as of `revision`: what it is, and how far its run 0 is. Later runs do not show."""

    id: UUID
    revision: int
    stale: bool
    """The status in the cluster does not show this revision yet."""
    state: str
    """queued, running or ended."""
    attempts: int
    namespace: str
    name: str
    generation: int
    author: str
    alert_type: str
    chain_name: str | None
    chain_namespace: str | None
    chain_generation: int | None
    chain_hash: str | None
    stage_names: tuple[str, ...]
    """The chain's stages, those that have not started too."""
    stage_agents: tuple[int, ...]
    """How many agents each of them has."""
    stages: tuple[StageSummary, ...]
    """Those that have started, or were skipped, in the chain's order."""
    admitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    ending: str | None
    reason: str
    message: str
    final_analysis: str
    summary: str
    """The final analysis in a few lines."""
    gaps: list[dict[str, str]]
    """The things that its agents could not inspect: tool and reason."""
    grounds: entries.Grounds | None
    input_tokens: int
    output_tokens: int
    thinking_tokens: int
    total_tokens: int
    llm_calls: int
    tool_calls: int
    cost: float | None
    """None where no model call had a price."""
    cancel: str | None
    suspend: bool
    unreadable: str | None
    """The part that its last worker could not read: it stands still until a worker can."""
    duplicates: int
    alert_status: Literal["firing", "resolved"] | None
    previous: Previous | None = None
    target: str = ""
    """The subject of the alert, on one line."""
    retrying: tuple[str, ...] = ()
    """The requests to providers that are sent again, a sentence each."""
    passed_over_since: datetime | None = None
    """The time since when all workers pass it over; None if they do not."""
    committed_at: datetime | None = None
    """The time of the last commit to its log; None if it has ended, or there was none."""

    @property
    def shown_message(self) -> str:
        """The message for people: what it waits for, the model requests that are sent again, or how it ended."""
        return phase_rules.shown_message(self.waits_for, self.retrying, self.message)

    @property
    def waits_for(self) -> str:
        """The thing it waits for, if no worker can run it: a program for its log, or an LLM provider; else ""."""
        return phase_rules.waits_for(self.phase, self.unreadable, self.passed_over_since)

    @property
    def progress(self) -> str:
        """Ended stages of all stages, such as 1/3."""
        ends = ((stage.outcome, stage.cut_off) for stage in self.stages)
        return phase_rules.progress(ends, stages=len(self.stage_names))

    @property
    def current_stage(self) -> str | None:
        """The stage that runs; None where none does."""
        running = (stage.name for stage in self.stages if stage.ended_at is None)
        return None if self.ended_at else next(running, None)

    @property
    def phase(self) -> investigations.Phase:
        """Where it stands, in one word for people."""
        return phase_rules.phase(
            ending=self.ending,
            state=self.state,
            cancel=self.cancel,
            suspend=self.suspend,
            unreadable=self.unreadable,
        )


@dataclass(frozen=True, kw_only=True)
class Location:
    """The namespace and name of an investigation."""

    namespace: str
    namespace_uid: str | None
    """None: it was admitted before that was kept."""
    name: str


_WHEREABOUTS = text(f"""
  SELECT namespace, namespace_uid, name FROM investigations
  WHERE id = :id AND ({visibility.VISIBLE} OR (:purging AND gone_at IS NULL))
""")  # noqa: S608 - our own text


async def location(database: databases.Database, investigation: UUID, *, purging: bool = False) -> Location | None:
    """Return namespace and name; None if there is none of that id, or its transcript was purged.

    With `purging`, a purged one counts as long as its object is not known to be gone.
    """
    rows = await database.run(_WHEREABOUTS, id=investigation, purging=purging)
    return Location(**rows[0]) if rows else None


SELECT_RETRYING = """
      coalesce(array_agg(retrying || to_char(retry_at AT TIME ZONE 'UTC',
        '"; the request is sent again at "YYYY-MM-DD"T"HH24:MI:SS"Z"') ORDER BY retry_at)
        FILTER (WHERE executions.ended_at IS NULL AND retry_claim = work.claims AND work.state = 'running'
          AND retry_at IS NOT NULL), '{}')"""
"""The requests of some `executions` that are sent again, a sentence each; `work` is the row of their investigation."""

# Lists sort by `investigations.ended_at`; older versions wrote that of run 0 some microseconds apart.
# What `work` says is of run 0 for as long as that is open, and of a question later.
SELECT_SUMMARIES = f"""
  SELECT work.revision, work.stale, runs.attempts,
    CASE WHEN runs.ended_at IS NULL THEN work.state ELSE 'ended' END AS state,
    CASE WHEN runs.ended_at IS NULL THEN work.cancel END AS cancel,
    CASE WHEN runs.ended_at IS NULL THEN work.unreadable END AS unreadable,
    CASE WHEN runs.ended_at IS NULL THEN work.passed_over_since END AS passed_over_since,
    runs.ended_at IS NULL AND work.suspend AS suspend,
    known.id, known.namespace, known.name, known.generation, known.author, known.alert_type, known.chain_name,
    known.chain_namespace, known.chain_generation, known.chain_hash, known.stage_names, known.stage_agents,
    known.admitted_at, known.duplicates, known.alert_status, known.target,
    known.previous, (SELECT name FROM investigations AS former WHERE former.id = known.previous) AS previous_name,
    CASE WHEN runs.ended_at IS NULL THEN (
      SELECT at FROM entries WHERE entries.investigation = work.investigation AND seq = work.log_seq
    ) END AS committed_at,
    runs.started_at, known.ended_at, runs.ending, coalesce(runs.reason, '') AS reason,
    coalesce(runs.message, '') AS message, coalesce(runs.final_analysis, '') AS final_analysis,
    coalesce(runs.summary, '') AS summary, CAST(runs.gaps AS text) AS gaps, runs.grounds,
    used.*,
    ARRAY(
      SELECT CAST(json_build_object('name', stages.name, 'outcome', stages.outcome, 'message', stages.message,
        'lacks', stages.lacks, 'started_at', stages.started_at, 'ended_at', stages.ended_at,
        'completed', count(executions.id)
          FILTER (WHERE executions.kind = 'agent' AND executions.outcome = 'Completed'),
        'cut_off', {phase_rules.CUT_OFF},
        'unjoined', coalesce(bool_or(executions.kind = 'synthesis' AND executions.outcome <> 'Completed'), false),
        'iterations', coalesce(sum(iterations), 0), 'tool_calls', coalesce(sum(tool_calls), 0),
        'total_tokens', coalesce(sum(total_tokens), 0)) AS text)
      FROM stages
      LEFT JOIN executions ON executions.investigation = stages.investigation AND executions.run = stages.run
        AND executions.stage = stages.name
      WHERE stages.investigation = work.investigation AND stages.run = 0
      GROUP BY stages.investigation, stages.run, stages.name
    ) AS stages
  FROM work
  JOIN investigations AS known ON known.id = work.investigation AND {visibility.VISIBLE}
  JOIN runs ON runs.investigation = work.investigation AND runs.number = 0
  CROSS JOIN LATERAL (
    SELECT CAST(coalesce(sum(input_tokens), 0) AS bigint) AS input_tokens,
      CAST(coalesce(sum(output_tokens), 0) AS bigint) AS output_tokens,
      CAST(coalesce(sum(thinking_tokens), 0) AS bigint) AS thinking_tokens,
      CAST(coalesce(sum(total_tokens), 0) AS bigint) AS total_tokens,
      CAST(coalesce(sum(iterations), 0) AS bigint) AS llm_calls,
      CAST(coalesce(sum(tool_calls), 0) AS bigint) AS tool_calls,
      sum(cost) AS cost,
{SELECT_RETRYING} AS retrying
    FROM executions WHERE executions.investigation = work.investigation AND executions.run = 0
  ) AS used"""  # noqa: S608 - our own texts
"""Each investigation in numbers, as `from_row` reads it."""
_SUMMARY = text(f"{SELECT_SUMMARIES} WHERE work.investigation = :id")


async def load(database: databases.Database, investigation: UUID) -> Summary | None:
    """The investigation in numbers; None where there is none of that id."""
    rows = await database.run(_SUMMARY, id=investigation)  # one statement: what it reads is of one moment
    return from_row(rows[0]) if rows else None


_CANCELLED: dict[str, str] = {reason: why for why, reason in phase_rules.CANCELLED_REASONS.items()}


def from_row(facts: Mapping[str, Any]) -> Summary:
    """An investigation in numbers, from its row."""
    stages = {stage.name: stage for stage in map(_stage, facts["stages"])}
    names = tuple(facts["stage_names"])
    built = ("stage_names", "stage_agents", "stages", "gaps", "cancel", "retrying", "previous", "previous_name")
    return Summary(
        **{key: value for key, value in facts.items() if key not in built},
        gaps=json.loads(facts["gaps"]),
        retrying=tuple(facts["retrying"]),
        previous=previous_from_row(facts),
        cancel=facts["cancel"] or _CANCELLED.get(facts["reason"]),
        stage_names=names,
        stage_agents=tuple(facts["stage_agents"]),
        stages=tuple(stages[name] for name in names if name in stages),
    )


def previous_from_row(facts: Mapping[str, Any]) -> Previous | None:
    """The investigation that another one follows, from the other's row; None if there is none, or none any more."""
    name = facts["previous_name"]
    return None if name is None else Previous(id=facts["previous"], name=name)


def _stage(stored: str) -> StageSummary:
    stage = json.loads(stored)
    times = {key: stage[key] and datetime.fromisoformat(stage[key]) for key in ("started_at", "ended_at")}
    return StageSummary(**stage | times)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run: the investigation itself, or a question that was asked after its end."""

    number: int
    kind: Literal["investigation", "chat"]
    question: str
    """The question; "" for the investigation itself, and if it cannot be read."""
    attempts: int
    started_at: datetime | None
    """None: no worker has had it yet."""
    ended_at: datetime | None
    ending: str | None
    reason: str
    message: str
    final_analysis: str
    cost: float | None
    """As `Summary.cost`."""


@dataclass(frozen=True, kw_only=True)
class Details:
    """An investigation without its log."""

    summary: Summary
    alert_data: str
    """As the agents read it, masked."""
    severity: str | None
    fingerprint: str | None
    """The fingerprint of the alert that it stands for."""
    runbook_url: str | None
    chain: dict[str, Any] | None
    """The chain's spec as it was when the investigation was admitted; None where there is none that can be read."""
    runs: Sequence[Run]
    log_seq: int
    """The last entry of its log then."""
    mcp: investigations.MCP | None = None
    """The alert's selection of tools."""


async def details(database: databases.Database, investigation: UUID, *, runs: int | None = None) -> Details | None:
    """Return the facts of an investigation without its log; None if there is none of that id.

    `runs` limits its runs: its own and the newest questions.
    """
    async with database.snapshot() as connection:
        summary_row = (await connection.execute(_SUMMARY, {"id": investigation})).mappings().one_or_none()
        if summary_row is None:
            return None
        facts = (await connection.execute(_FACTS, {"id": investigation})).one()
        asked = (await connection.execute(_RUNS, {"id": investigation, "runs": runs})).all()
        numbers = {"id": investigation, "runs": [row.number for row in asked]}
        asked_for = [log_entries.from_row(row) for row in await connection.execute(_ASKED, numbers)]
    return Details(
        summary=from_row(dict(summary_row)),
        runs=_runs([row._mapping for row in asked], asked_for),
        alert_data=facts.alert_data,
        severity=facts.severity,
        fingerprint=facts.fingerprint,
        runbook_url=facts.runbook_url,
        chain=_object(facts.chain),
        log_seq=facts.log_seq,
        mcp=next(
            (log_entry.entry.mcp for log_entry in asked_for if isinstance(log_entry.entry, entries.ToolsSelected)), None
        ),
    )


_FACTS = text(f"""
  SELECT alert_data, severity, fingerprint, runbook_url, CAST(chain AS text) AS chain, log_seq
  FROM investigations JOIN work ON work.investigation = id WHERE id = :id AND {visibility.VISIBLE}
""")  # noqa: S608 - our own text

_RUNS = text(f"""
  SELECT number, kind, attempts, started_at,
    CASE WHEN number = 0 THEN (SELECT ended_at FROM investigations WHERE id = investigation) ELSE ended_at END
      AS ended_at,
    ending, coalesce(reason, '') AS reason,
    coalesce(message, '') AS message, coalesce(final_analysis, '') AS final_analysis,
    (SELECT sum(cost) FROM executions
     WHERE executions.investigation = runs.investigation AND executions.run = runs.number) AS cost
  FROM runs
  WHERE investigation = :id AND number IN (
    (SELECT number FROM runs WHERE investigation = :id AND number = 0)
    UNION ALL
    (SELECT number FROM runs WHERE investigation = :id AND number > 0
     ORDER BY number DESC LIMIT CAST(:runs AS bigint) - 1)
  ) AND {visibility.VISIBLE_BY_ID}
  ORDER BY number
""")  # noqa: S608 - our own text


def _runs(rows: Iterable[Any], log: Iterable[entries.Logged]) -> list[Run]:
    asked = {logged.entry.run: logged.entry.question for logged in log if isinstance(logged.entry, entries.RunStarted)}
    return [Run(**row, question=asked.get(row["number"], "")) for row in rows]


def _object(stored: str | None) -> dict[str, Any] | None:
    """The JSON object that is stored; None where there is none, or something else."""
    try:
        document = json.loads(stored or "null")
    except (ValueError, RecursionError):
        return None
    return messages.storable_json(document) if isinstance(document, dict) and messages.is_plain_json(document) else None


_ASKED = text(f"""
  SELECT {log_entries.COLUMNS}, NULL
  FROM entries
  WHERE investigation = :id AND kind IN ('RunStarted', 'ToolsSelected') AND run = ANY(CAST(:runs AS integer[]))
    AND {visibility.VISIBLE_BY_ID}
  ORDER BY seq
""")  # noqa: S608 - our own text

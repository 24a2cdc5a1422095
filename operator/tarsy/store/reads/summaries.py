"""An investigation in numbers, for the status, lists and details; its log is not decoded.

The numbers come from narrow rows, which each commit keeps up to date.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol
from uuid import UUID

from sqlalchemy import text

from tarsy.resources import investigations
from tarsy.store.base import databases, visibility
from tarsy.store.reads import group_alerts, log_entries, phase_rules, related, verdicts
from tarsy.transcript import entries, messages

STAGE_MESSAGE_MAX = 300
"""Characters of a stage's message that lists show."""


@dataclass(frozen=True, kw_only=True)
class StageSummary:
    """One stage in numbers."""

    name: str
    outcome: str | None
    message: str
    lacks: list[str]
    """A sentence for each tool that its agents lacked."""
    started_at: datetime | None
    """None if it was skipped."""
    ended_at: datetime | None
    completed: int
    """The number of agents that completed."""
    iterations: int
    tool_calls: int
    total_tokens: int
    unjoined: bool = False
    """Whether the synthesis of its agents' results failed."""
    cut_off: bool = False
    """Whether the end of the investigation ended it."""


@dataclass(frozen=True, kw_only=True)
class ListedStage:
    """A stage of the chain as lists show it, also one that has not begun."""

    name: str
    agents: tuple[str, ...]
    """The names of its agents, one for each; () if an earlier build admitted the investigation."""
    phase: investigations.StagePhase
    started_at: datetime | None
    ended_at: datetime | None
    message: str
    is_copy: bool = False
    """Whether it ran in the investigation that this one runs again; its work is copied."""


@dataclass(frozen=True, kw_only=True)
class Undelivered:
    """A message about an investigation that was given up."""

    receiver: str
    problem: str
    at: datetime

    @property
    def line(self) -> str:
        """The receiver, and the reason that it did not take the message."""
        return f"receiver {self.receiver}: {self.problem or 'it was not reached'}"


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One investigation as of `revision`: its alert, its chain, and the state of run 0. Later runs are left out."""

    id: UUID
    revision: int
    stale: bool
    """Whether the status in the cluster is older than this revision."""
    state: str
    """queued, running, parked or ended."""
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
    """The names of all stages of the chain."""
    stage_agents: tuple[int, ...]
    """The number of agents of each stage of the chain."""
    stages: tuple[StageSummary, ...]
    """The stages that have started or were skipped, in the chain's order."""
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
    """A tool and a reason for each thing that its agents could not inspect."""
    grounds: entries.Grounds | None
    input_tokens: int
    output_tokens: int
    thinking_tokens: int
    total_tokens: int
    llm_calls: int
    tool_calls: int
    cost: float | None
    """None if no model call had a price."""
    cancel: str | None
    suspend: bool
    unreadable: str | None
    """The part of the log that its last worker could not read; it pauses until a worker can."""
    duplicates: int
    alert_status: Literal["firing", "resolved"] | None
    previous: related.Previous | None = None
    retry_of: related.RetryOf | None = None
    retried_by: related.RetriedBy | None = None
    split_from: related.Split | None = None
    split_into: tuple[related.Split, ...] = ()
    target: str = ""
    """The subject of the alert, on one line."""
    hold: str | None = None
    """The reason that keeps it from deletion; None without one."""
    retrying: tuple[str, ...] = ()
    """A sentence for each request to a provider that is retried."""
    passed_over_since: datetime | None = None
    """The time since when all workers pass it over; None if one does not."""
    alerts: group_alerts.Alerts | None = None
    """Its alerts, if some have joined it."""
    wait_reason: str | None = None
    """The word for what a parked one waits for; None for any other."""
    wait_message: str | None = None
    """The thing that a parked one waits for."""
    wake_at: datetime | None = None
    """The time at which a parked one is queued again."""
    committed_at: datetime | None = None
    """The time of the last commit to its log; None if it has ended, or there was no commit."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """The labels that identify the alert."""
    alert_summary: str = ""
    """The first line of the alert's annotation `summary`."""
    undelivered: tuple[Undelivered, ...] = ()
    """The messages about it that were given up, the latest first."""
    stage_list: tuple[ListedStage, ...] = ()
    """All stages of the chain, in its order."""

    @property
    def shown_message(self) -> str:
        """The message: the cause of a wait, the retried requests, or the message of the end."""
        return phase_rules.shown_message(self.waits_for, self.retrying, self.message)

    @property
    def waits_for(self) -> str:
        """The cause of a wait: another version of TARSy, an LLM provider, or something outside is needed; else ""."""
        return phase_rules.waits_for(
            self.phase, self.unreadable, self.passed_over_since, self.wait_message, self.wake_at
        )

    @property
    def progress(self) -> str:
        """Ended stages of all stages, such as 1/3."""
        ends = ((stage.outcome, stage.cut_off) for stage in self.stages)
        return phase_rules.progress(ends, stages=len(self.stage_names))

    @property
    def current_stage(self) -> str | None:
        """The name of the running stage; None if none runs."""
        running = (stage.name for stage in self.stages if stage.ended_at is None)
        return None if self.ended_at else next(running, None)

    @property
    def phase(self) -> investigations.Phase:
        """The phase."""
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
    """None if it was admitted by a version that did not store it."""
    name: str


_WHEREABOUTS = text(f"""
  SELECT namespace, namespace_uid, name FROM investigations
  WHERE id = :id AND ({visibility.VISIBLE} OR (:deleting AND (emptied_at IS NULL OR gone_at IS NULL)))
""")  # noqa: S608 - our own text


async def location(database: databases.Database, investigation: UUID, *, deleting: bool = False) -> Location | None:
    """Return namespace and name; None if there is no such investigation, or its transcript was deleted.

    With `deleting`, a deleted one is returned, and a purged one until the purge is complete and its object gone.
    """
    rows = await database.run(_WHEREABOUTS, id=investigation, deleting=deleting)
    return Location(**rows[0]) if rows else None


SELECT_RETRYING = """
      coalesce(array_agg(retrying || to_char(retry_at AT TIME ZONE 'UTC',
        '"; the request is sent again at "YYYY-MM-DD"T"HH24:MI:SS"Z"') ORDER BY retry_at)
        FILTER (WHERE executions.ended_at IS NULL AND retry_claim = work.claims AND work.state = 'running'
          AND retry_at IS NOT NULL), '{}')"""
"""The expression for the retried requests of `executions`, a sentence each; `work` is their investigation's row."""

# `ended_at` is that of `investigations`, by which lists sort; older versions wrote that of run 0 microseconds apart.
# The columns of `work` are about run 0 while that is open, and about a question later.
SELECT_SUMMARIES = f"""
  SELECT work.revision, work.stale, runs.attempts,
    CASE WHEN runs.ended_at IS NULL THEN work.state ELSE 'ended' END AS state,
    CASE WHEN runs.ended_at IS NULL THEN work.cancel END AS cancel,
    CASE WHEN runs.ended_at IS NULL THEN work.unreadable END AS unreadable,
    CASE WHEN runs.ended_at IS NULL THEN work.passed_over_since END AS passed_over_since,
    CASE WHEN runs.ended_at IS NULL THEN work.wait_reason END AS wait_reason,
    CASE WHEN runs.ended_at IS NULL THEN work.wait_message END AS wait_message,
    CASE WHEN runs.ended_at IS NULL THEN work.wake_at END AS wake_at,
    runs.ended_at IS NULL AND work.suspend AS suspend,
    known.id, known.namespace, known.name, known.generation, known.author, known.alert_type, known.chain_name,
    known.chain_namespace, known.chain_generation, known.chain_hash, known.stage_names, known.stage_agents,
    known.admitted_at, known.duplicates, known.alert_status, known.target, CAST(known.labels AS text) AS labels,
    known.alert_summary, CAST(known.agent_names AS text) AS agent_names, known.hold,
{related.SELECT_RELATED},
{group_alerts.SELECT_ALERTS},
    CASE WHEN runs.ended_at IS NULL THEN (
      SELECT at FROM entries WHERE entries.investigation = work.investigation AND seq = work.log_seq
    ) END AS committed_at,
    ARRAY(
      SELECT CAST(json_build_object('receiver', receiver, 'problem', problem, 'at', gave_up_at) AS text)
      FROM deliveries WHERE deliveries.investigation = work.investigation AND gave_up_at IS NOT NULL
      ORDER BY gave_up_at DESC, receiver
    ) AS undelivered,
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
"""Selects investigations with the columns of `from_row`."""
_SUMMARY = text(f"{SELECT_SUMMARIES} WHERE work.investigation = :id")


async def load(database: databases.Database, investigation: UUID) -> Summary | None:
    """Return the summary; None if there is no such investigation."""
    rows = await database.run(_SUMMARY, id=investigation)  # one statement, so all is of one moment
    return from_row(rows[0]) if rows else None


_CANCELLED: dict[str, str] = {reason: why for why, reason in phase_rules.CANCELLED_REASONS.items()}


def from_row(facts: Mapping[str, Any]) -> Summary:
    """Build the summary from a row of SELECT_SUMMARIES."""
    stages = {}
    for stored in facts["stages"]:
        stage = json.loads(stored)
        times = {key: stage[key] and datetime.fromisoformat(stage[key]) for key in ("started_at", "ended_at")}
        stages[stage["name"]] = StageSummary(**stage | times)
    names = tuple(facts["stage_names"])
    built = (
        *("stage_names", "stage_agents", "stages", "gaps", "cancel", "retrying", "previous", "previous_name"),
        *("retry_of", "retry_of_name", "retry_stage", "retried_by", "split_from", "split_from_name", "split_into"),
        *("labels", "agent_names", "alerts", "undelivered"),
    )
    return Summary(
        **{key: value for key, value in facts.items() if key not in built},
        gaps=json.loads(facts["gaps"]),
        retrying=tuple(facts["retrying"]),
        **related.from_row(facts),
        alerts=group_alerts.from_row(facts),
        undelivered=tuple(
            Undelivered(**message | {"at": datetime.fromisoformat(message["at"])})
            for message in map(json.loads, facts["undelivered"])
        ),
        cancel=facts["cancel"] or _CANCELLED.get(facts["reason"]),
        stage_names=names,
        stage_agents=tuple(facts["stage_agents"]),
        stages=tuple(stages[name] for name in names if name in stages),
        labels=json.loads(facts["labels"] or "{}"),
        stage_list=stage_list(
            names,
            facts["agent_names"],
            stages,
            has_ended=facts["ended_at"] is not None,
            retry_stage=facts["retry_stage"],
        ),
    )


class _Stage(Protocol):
    @property
    def outcome(self) -> str | None: ...
    @property
    def started_at(self) -> datetime | None: ...
    @property
    def ended_at(self) -> datetime | None: ...
    @property
    def message(self) -> str: ...


def stage_list(
    names: Sequence[str],
    agent_names: str | None,
    stages: Mapping[str, _Stage],
    *,
    has_ended: bool,
    retry_stage: str | None,
) -> tuple[ListedStage, ...]:
    """Return all stages of a chain; `stages` are those that have begun or were skipped, `agent_names` is JSON.

    `has_ended` is of the investigation. The stages before `retry_stage` are copies.
    """
    agents = dict(zip(names, json.loads(agent_names or "[]"), strict=False))
    copied = names[: names.index(retry_stage)] if retry_stage in names else ()
    return tuple(
        _listed_stage(name, agents.get(name, ()), stages.get(name), has_ended=has_ended, is_copy=name in copied)
        for name in names
    )


def _listed_stage(
    name: str, agents: Iterable[str], stage: _Stage | None, *, has_ended: bool, is_copy: bool
) -> ListedStage:
    if stage is None:
        phase = phase_rules.stage_phase(None, has_begun=False, has_ended=has_ended)
        return ListedStage(name=name, agents=tuple(agents), phase=phase, started_at=None, ended_at=None, message="")
    return ListedStage(
        name=name,
        agents=tuple(agents),
        phase=phase_rules.stage_phase(stage.outcome, has_begun=True, has_ended=has_ended),
        started_at=stage.started_at,
        ended_at=stage.ended_at,
        message=stage.message[:STAGE_MESSAGE_MAX],
        is_copy=is_copy,
    )


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run: the investigation itself, or a question that was asked after its end."""

    number: int
    kind: Literal["investigation", "chat"]
    question: str
    """The question; "" for run 0, and if the question cannot be read."""
    attempts: int
    started_at: datetime | None
    """None before the first claim."""
    ended_at: datetime | None
    ending: str | None
    reason: str
    message: str
    final_analysis: str
    cost: float | None
    """None if no model call had a price."""


@dataclass(frozen=True, kw_only=True)
class Details:
    """An investigation with all its facts but the log."""

    summary: Summary
    alert_data: str
    """The alert data as the agents read it, masked."""
    severity: str | None
    fingerprint: str | None
    """The fingerprint of its alert, if intake made the object."""
    runbook_url: str | None
    chain: dict[str, Any] | None
    """The chain snapshot; None if there is none, or it cannot be read."""
    runs: Sequence[Run]
    log_seq: int
    """The number of the log's last entry."""
    mcp: investigations.MCP | None = None
    """The alert's selection of tools."""
    generator_url: str | None = None
    """The page of the alert's rule."""
    external_url: str | None = None
    """The page of the sender of the notification."""
    feedback: verdicts.Counts = field(default_factory=dict)
    feedback_by_person: Sequence[verdicts.Feedback] = ()
    """The feedback of the first `verdicts.PERSONS_MAX` persons, the latest change first."""


async def details(database: databases.Database, investigation: UUID, *, runs: int | None = None) -> Details | None:
    """Return the details; None if there is no such investigation.

    `runs` limits the number of runs: run 0 and the newest questions.
    """
    async with database.snapshot() as connection:
        summary_row = (await connection.execute(_SUMMARY, {"id": investigation})).mappings().one_or_none()
        if summary_row is None:
            return None
        facts = (await connection.execute(_FACTS, {"id": investigation})).one()
        run_rows = (await connection.execute(_RUNS, {"id": investigation, "runs": runs})).all()
        numbers = {"id": investigation, "runs": [row.number for row in run_rows]}
        logged = [log_entries.from_row(row).entry for row in await connection.execute(_RUN_ENTRIES, numbers)]
    questions = {entry.run: entry.question for entry in logged if isinstance(entry, entries.RunStarted)}
    return Details(
        summary=from_row(dict(summary_row)),
        runs=[Run(**row._mapping, question=questions.get(row.number, "")) for row in run_rows],
        alert_data=facts.alert_data,
        severity=facts.severity,
        fingerprint=facts.fingerprint,
        runbook_url=facts.runbook_url,
        chain=_object(facts.chain),
        log_seq=facts.log_seq,
        generator_url=facts.generator_url,
        external_url=facts.external_url,
        feedback=verdicts.counts_from_row(facts),
        feedback_by_person=verdicts.persons_from_row(facts),
        mcp=next((entry.mcp for entry in logged if isinstance(entry, entries.ToolsSelected)), None),
    )


_FACTS = text(f"""
  SELECT alert_data, severity, fingerprint, runbook_url, generator_url, external_url, CAST(chain AS text) AS chain,
    log_seq,
{verdicts.SELECT_COUNTS},
{verdicts.SELECT_PERSONS}
  FROM investigations AS known JOIN work ON work.investigation = id WHERE id = :id AND {visibility.VISIBLE}
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


def _object(stored: str | None) -> dict[str, Any] | None:
    """Return the stored JSON object; None if there is none, or another value."""
    try:
        document = json.loads(stored or "null")
    except (ValueError, RecursionError):
        return None
    return messages.storable_json(document) if isinstance(document, dict) and messages.is_plain_json(document) else None


_RUN_ENTRIES = text(f"""
  SELECT {log_entries.COLUMNS}, NULL
  FROM entries
  WHERE investigation = :id AND kind IN ('RunStarted', 'ToolsSelected') AND run = ANY(CAST(:runs AS integer[]))
    AND {visibility.VISIBLE_BY_ID}
  ORDER BY seq
""")  # noqa: S608 - our own text

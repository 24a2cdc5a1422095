"""The history of investigations for earlier clients: a list by page numbers, and one investigation with its events.

The number of events and the lengths of texts are bounded here, but not in the present paths.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Query
from pydantic import Field

from tarsy.api.compat import sessions, stages, statuses, timeline
from tarsy.api.investigations import lists, reads
from tarsy.auth import permissions
from tarsy.serve import problems
from tarsy.store.base import databases
from tarsy.store.reads import listing, stage_rows, summaries, transcript_pages
from tarsy.views import base

PAGE_DEFAULT = 10
PAGE_MAX = 100
REACHED_MAX = 10_000
"""Investigations that page numbers reach: skipping rows costs as much as reading them."""
_JSON = {"type": "object", "additionalProperties": True}

Page = Annotated[
    int,
    Query(
        ge=1,
        le=REACHED_MAX,
        examples=[1],
        description=f"The page of the list, from 1. Pages reach the first {REACHED_MAX} matching investigations.",
    ),
]
PageSize = Annotated[int, Query(ge=1, le=PAGE_MAX, examples=[10], description="Investigations of a page.")]
Statuses = Annotated[
    list[statuses.Session] | None,
    Query(max_length=7, examples=[["completed"]], description="The status; if repeated, one of these."),
]
Search = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=lists.SEARCH_MAX,
        pattern=r"^[^\x00]*$",
        examples=["web-0"],
        description="As `q` of `/api/v1/investigations`: words that all occur in alert, analysis or summary.",
    ),
]
Start = Annotated[
    int | None,
    Query(
        ge=0,
        le=statuses.LATEST_US,
        examples=[1734567890123456],
        description="Admitted then or later; microseconds since 1970 UTC.",
    ),
]
End = Annotated[
    int | None,
    Query(
        ge=0,
        le=statuses.LATEST_US,
        examples=[1734654290123456],
        description="Admitted then or earlier; microseconds since 1970 UTC.",
    ),
]


class ChainNode(base.View):
    """One stage of the chain."""

    id: str
    """The stage's name."""
    agent: str
    """The agents' names, joined if there are several; "" if the chain's snapshot cannot be read."""
    status: statuses.Stage
    has_errors: bool
    """The stage failed, or the synthesis of its agents' results did."""


class ChainInfo(base.View):
    """The chain, and its progress."""

    id: str | None
    """Its name; None if there was no chain."""
    type: Literal["sequential"] = "sequential"
    nodes: list[ChainNode]


class DashboardSessionSummary(base.View):
    """An investigation in a list."""

    session_id: UUID
    alert_id: UUID
    """The same id: an investigation has one alert."""
    alert_type: str
    status: statuses.Session
    started_at_us: int
    """The time of its start by a worker; until then the time of its admission."""
    completed_at_us: int | None
    duration_ms: int | None
    """The duration, until now if it has not ended; None if it never started."""
    error_message: str | None
    """The reason why it failed or was stopped."""
    chain: ChainInfo


class Pagination(base.View):
    """The page, and the number of pages."""

    page: int
    page_size: int
    total_pages: int
    total_items: int


class DashboardSessionsList(base.View):
    """A page of investigations, newest first."""

    sessions: list[DashboardSessionSummary]
    pagination: Pagination


class ParallelResult(base.View):
    """The outcome of one of several agents of a stage."""

    agent: str
    result: Annotated[dict[str, Any], Field(json_schema_extra=_JSON)]
    """The same fields as `stage_output` of a stage with one agent."""


class StageExecution(base.View):
    """One stage of the chain, started or not."""

    execution_id: str
    stage_id: str
    """The stage's name."""
    stage_index: int
    """Its position in the chain, from 0."""
    status: statuses.Stage
    started_at_us: int | None
    completed_at_us: int | None
    duration_ms: int | None
    llm_interaction_count: int
    mcp_communication_count: int
    stage_output: Annotated[dict[str, Any] | None, Field(json_schema_extra={"additionalProperties": True})]
    """`status`, `agent`, `analysis`, `strategy` and `timestamp_us`; of a failed stage `error`, `error_type` (timeout,
    agent_error or fatal), `stage_name`, `agent`, `timestamp` and `error_details`. None until it has ended."""
    error_message: str | None
    execution_type: stages.ExecutionType
    agent: str | None
    """The name of a single agent; None if there are several."""
    agents: list[str] | None
    """The names of several agents; None if there is one."""
    parallel_results: list[ParallelResult] | None
    """The results of several agents, of those that have ended; None if there is one agent."""
    routing_decision: dict[str, Any] | None = None
    """Always null: chains do not branch."""
    execution_path: list[str] | None = None
    """Always null: chains do not branch."""


class DashboardSessionDetail(DashboardSessionSummary):
    """An investigation with its stages and its events."""

    alert_data: Annotated[dict[str, Any], Field(json_schema_extra=_JSON)]
    """The alert as the agents read it, masked; a text that is no JSON object is `{"text": ...}`."""
    final_analysis: str | None
    stage_executions: list[StageExecution]
    chronological_timeline: list[timeline.TimelineEvent]
    timeline_truncated: bool
    """Whether there are more events than these; `/api/v1/investigations/<id>/timeline` has all, in pages."""


def query(
    scope: permissions.Scope,
    *,
    session_statuses: Sequence[statuses.Session] | None,
    alert_type: str | None,
    start_us: int | None,
    end_us: int | None,
) -> listing.Query:
    """Return the query of the list, without its search."""
    return listing.Query(
        namespaces=scope.namespaces,
        phases=tuple(phase for status in session_statuses or () for phase in statuses.phases(status)),
        alert_type=alert_type,
        since=None if start_us is None else statuses.from_us(start_us),
        until=None if end_us is None else statuses.from_us(min(end_us + 1, statuses.LATEST_US)),
    )


async def read_list(
    database: databases.Database,
    investigation_lists: lists.Lists,
    query: listing.Query,
    *,
    search: str | None,
    page: int,
    size: int,
) -> DashboardSessionsList:
    """Read a page of the list. Raises a Problem if the page is beyond REACHED_MAX, or the search has no word."""
    if page * size > REACHED_MAX:
        message = (
            f"pages reach the first {REACHED_MAX} investigations, {REACHED_MAX // size} pages of {size}: "
            "narrow the filters, or use /api/v1/investigations, whose cursors reach all"
        )
        raise problems.invalid([problems.Fault(place="query.page", message=message)])
    _, matching = await investigation_lists.page(
        query, search=search, parameter="query.search", skip=(page - 1) * size, limit=size
    )
    progress_by_id = await stage_rows.stage_progress(database, [listed.id for listed in matching.items])
    total = sum(matching.counts[phase] for phase in query.phases or matching.counts)
    return DashboardSessionsList(
        sessions=[
            _session(listed, progress_by_id[listed.id]) for listed in matching.items if listed.id in progress_by_id
        ],
        pagination=Pagination(page=page, page_size=size, total_pages=-(-total // size), total_items=total),
    )


async def read(database: databases.Database, identity: UUID) -> DashboardSessionDetail:
    """Read an investigation with its stages and its events."""
    details = await summaries.details(database, identity, runs=1)
    progress = (await stage_rows.stage_progress(database, [identity])).get(identity)
    if details is None or progress is None:
        raise reads.unknown_investigation(identity)
    executions = await stage_rows.executions(database, identity)
    conclusions = await stage_rows.conclusions(
        database, identity, executions, upto=details.log_seq, length=stages.ANALYSIS_MAX
    )
    builder = timeline.TimelineBuilder(stages.chain_stages(progress), executions)
    async for page in transcript_pages.walk(database, identity, kinds=timeline.KINDS, upto=details.log_seq):
        await asyncio.to_thread(builder.add, [numbered.logged for numbered in page])
        if builder.is_full:
            break
    return await asyncio.to_thread(_detail, details, progress, executions, conclusions, builder)


def alert_data(text: str) -> dict[str, Any]:
    """Return an alert's data as a JSON object."""
    document = base.parsed_json(text)
    return document if isinstance(document, dict) else {"text": text}


def _session(listed: listing.Listed, progress: stage_rows.StageProgress) -> DashboardSessionSummary:
    return DashboardSessionSummary(
        **_times(listed, now=progress.now),
        session_id=listed.id,
        alert_id=listed.id,
        alert_type=listed.alert_type,
        status=statuses.INVESTIGATIONS[listed.phase].session,
        error_message=statuses.error_message(listed.phase, listed.message),
        chain=_chain(listed, progress, progress.outcomes),
    )


def _times(investigation: listing.Listed | summaries.Summary, *, now: datetime) -> dict[str, Any]:
    started, ended = investigation.started_at, investigation.ended_at
    return {
        "started_at_us": statuses.to_us(started or investigation.admitted_at),
        "completed_at_us": ended and statuses.to_us(ended),
        "duration_ms": statuses.elapsed_ms(started, ended or now),
    }


def _chain(
    investigation: listing.Listed | summaries.Summary,
    progress: stage_rows.StageProgress,
    outcomes: Mapping[str, str | None],
) -> ChainInfo:
    nodes = []
    for stage in stages.chain_stages(progress):
        status, has_errors = statuses.stage_status(stage.name, outcomes, ended=investigation.ended_at is not None)
        nodes.append(ChainNode(id=stage.name, agent=stage.agent, status=status, has_errors=has_errors))
    return ChainInfo(id=investigation.chain_name, nodes=nodes)


def _detail(
    details: summaries.Details,
    progress: stage_rows.StageProgress,
    executions: Sequence[stage_rows.Execution],
    conclusions: Mapping[str, str],
    builder: timeline.TimelineBuilder,
) -> DashboardSessionDetail:
    summary = details.summary
    return DashboardSessionDetail(
        **_times(summary, now=progress.now),
        session_id=summary.id,
        alert_id=summary.id,
        alert_data=alert_data(details.alert_data),
        alert_type=summary.alert_type,
        status=statuses.INVESTIGATIONS[summary.phase].session,
        final_analysis=summary.final_analysis or None,
        error_message=statuses.error_message(summary.phase, summary.message or summary.reason),
        chain=_chain(summary, progress, {stage.name: stage.outcome for stage in summary.stages}),
        stage_executions=[
            _stage_execution(summary, chain_stage, index=index, executions=executions, conclusions=conclusions)
            for index, chain_stage in enumerate(stages.chain_stages(progress))
        ],
        chronological_timeline=builder.events,
        timeline_truncated=builder.is_full,
    )


def _stage_execution(
    summary: summaries.Summary,
    chain_stage: stages.ChainStage,
    *,
    index: int,
    executions: Iterable[stage_rows.Execution],
    conclusions: Mapping[str, str],
) -> StageExecution:
    name = chain_stage.name
    stage = next((stage for stage in summary.stages if stage.name == name), None)
    status, has_errors = sessions.stage_status(summary, name)
    own = [execution for execution in executions if execution.stage == name]
    started, ended = (stage.started_at, stage.ended_at) if stage and stage.started_at else (None, None)
    agents: dict[str, Any] = {"agent": chain_stage.agent, "agents": None, "parallel_results": None}
    if chain_stage.parallel_type:
        outputs = stages.agent_outputs(name, own, conclusions)
        results = [ParallelResult(agent=agent, result=output) for agent, output in outputs]
        agents = {"agent": None, "agents": list(chain_stage.agents), "parallel_results": results}
    return StageExecution(
        **agents,
        execution_id=sessions.stage_id(summary.id, name),
        stage_id=name,
        stage_index=index,
        status=status,
        started_at_us=started and statuses.to_us(started),
        completed_at_us=ended and statuses.to_us(ended),
        duration_ms=statuses.elapsed_ms(started, ended),
        llm_interaction_count=stage.iterations if stage else 0,
        mcp_communication_count=stage.tool_calls if stage else 0,
        stage_output=stages.stage_output(chain_stage, stage, own, conclusions) if stage else None,
        error_message=stage.message or None if stage and has_errors else None,
        execution_type=chain_stage.execution_type,
    )

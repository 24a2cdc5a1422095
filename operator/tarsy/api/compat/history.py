"""The history of investigations, as earlier clients read it: a list by page numbers, and one with all that happened.

What is told of one is bounded, whatever was said in it: so many events, and so many characters of each text. The whole
is where investigations are read under their own name.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Query
from pydantic import Field

from tarsy.api.compat import outputs, plans, sessions, timeline, words
from tarsy.api.investigations import lists, reads
from tarsy.auth import permissions
from tarsy.serve import problems
from tarsy.store.base import databases
from tarsy.store.reads import listing, stage_rows, summaries, transcript_pages
from tarsy.transcript import messages
from tarsy.views import base

PAGE_DEFAULT = 10
PAGE_MAX = 100
REACHED_MAX = 10_000
"""Investigations that page numbers reach: to skip some takes as long as to find them."""
_JSON = {"type": "object", "additionalProperties": True}

Page = Annotated[
    int,
    Query(
        ge=1,
        le=REACHED_MAX,
        examples=[1],
        description=f"Of the list, from 1. Pages reach the first {REACHED_MAX} investigations that fit.",
    ),
]
PageSize = Annotated[int, Query(ge=1, le=PAGE_MAX, examples=[10], description="The investigations of a page.")]
Statuses = Annotated[
    list[words.Session] | None,
    Query(max_length=7, examples=[["completed"]], description="With this status; repeated: with one of these."),
]
Search = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=lists.SEARCH_MAX,
        pattern=r"^[^\x00]*$",
        examples=["web-0"],
        description="As `q` of `/api/v1/investigations`: all these words occur in alert, analysis or summary.",
    ),
]
Start = Annotated[
    int | None,
    Query(
        ge=0,
        le=words.LATEST_US,
        examples=[1734567890123456],
        description="Came in then or later; microseconds since 1970 UTC.",
    ),
]
End = Annotated[
    int | None,
    Query(
        ge=0,
        le=words.LATEST_US,
        examples=[1734654290123456],
        description="Came in then or earlier; microseconds since 1970 UTC.",
    ),
]


class ChainNode(base.View):
    """One stage of the chain."""

    id: str
    """The stage's name."""
    agent: str
    """The agents' names, joined if there are several; "" if the chain's snapshot cannot be read."""
    status: words.Stage
    has_errors: bool
    """It failed, or what was to join its agents' results did."""


class ChainInfo(base.View):
    """The chain, and how far it is."""

    id: str | None
    """Its name; None where there was none."""
    type: Literal["sequential"] = "sequential"
    nodes: list[ChainNode]


class DashboardSessionSummary(base.View):
    """An investigation in a list."""

    session_id: UUID
    alert_id: UUID
    """The same: an investigation is of one alert."""
    alert_type: str
    status: words.Session
    started_at_us: int
    """When a worker first had it; until then, when it came in."""
    completed_at_us: int | None
    duration_ms: int | None
    """Until now, where it has not ended; None where it never started."""
    error_message: str | None
    """Why it failed, or was stopped."""
    chain: ChainInfo


class Pagination(base.View):
    """Which page of how many."""

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
    """As `stage_output` of a stage of one agent."""


class StageExecution(base.View):
    """One stage of the chain, whether it has begun or not."""

    execution_id: str
    stage_id: str
    """The stage's name."""
    stage_index: int
    """Its place in the chain, from 0."""
    status: words.Stage
    started_at_us: int | None
    completed_at_us: int | None
    duration_ms: int | None
    llm_interaction_count: int
    mcp_communication_count: int
    stage_output: Annotated[dict[str, Any] | None, Field(json_schema_extra={"additionalProperties": True})]
    """`status`, `agent`, `analysis`, `strategy` and `timestamp_us`; of one that failed `error`, `error_type` (timeout,
    agent_error or fatal), `stage_name`, `agent`, `timestamp` and `error_details`. None until it has ended."""
    error_message: str | None
    execution_type: plans.ExecutionType
    agent: str | None
    """Where there is one alone."""
    agents: list[str] | None
    """Where there are several."""
    parallel_results: list[ParallelResult] | None
    """Where there are several agents: of those that have ended."""
    routing_decision: dict[str, Any] | None = None
    """Always null: chains do not branch."""
    execution_path: list[str] | None = None
    """Always null: chains do not branch."""


class DashboardSessionDetail(DashboardSessionSummary):
    """An investigation with its stages and its events."""

    alert_data: Annotated[dict[str, Any], Field(json_schema_extra=_JSON)]
    """As the agents read it, masked; what is no JSON object is `{"text": ...}`."""
    final_analysis: str | None
    stage_executions: list[StageExecution]
    chronological_timeline: list[timeline.TimelineEvent]
    timeline_truncated: bool
    """There are more events than are told: `/api/v1/investigations/<id>/timeline` has all, in pages."""


def query(
    scope: permissions.Scope,
    *,
    statuses: Sequence[words.Session] | None,
    alert_type: str | None,
    start_us: int | None,
    end_us: int | None,
) -> listing.Query:
    """Return the query of the list, without its search."""
    phases = tuple(phase for status in statuses or () for phase in words.phases(status))
    until = None if end_us is None else words.moment(min(end_us + 1, words.LATEST_US))
    return listing.Query(
        namespace=scope.namespace,
        namespace_uid=scope.uid,
        phases=phases,
        alert_type=alert_type,
        since=None if start_us is None else words.moment(start_us),
        until=until,
    )


async def read_list(
    database: databases.Database,
    pages: lists.Lists,
    query: listing.Query,
    *,
    search: str | None,
    page: int,
    size: int,
) -> DashboardSessionsList:
    """Serve `GET /api/v1/history/sessions`; a Problem where the page is too far, or the search has no word."""
    if page * size > REACHED_MAX:
        message = (
            f"pages reach the first {REACHED_MAX} investigations, {REACHED_MAX // size} pages of {size}: "
            "narrow the filters, or go on with /api/v1/investigations, whose cursors reach all"
        )
        raise problems.invalid([problems.Fault(place="query.page", message=message)])
    _, matching = await pages.page(query, search=search, parameter="query.search", skip=(page - 1) * size, limit=size)
    courses = await stage_rows.stage_progress(database, [listed.id for listed in matching.items])
    total = sum(matching.counts[phase] for phase in query.phases or matching.counts)
    return DashboardSessionsList(
        sessions=[_listed(listed, courses[listed.id]) for listed in matching.items if listed.id in courses],
        pagination=Pagination(page=page, page_size=size, total_pages=-(-total // size), total_items=total),
    )


async def read(database: databases.Database, identity: UUID) -> DashboardSessionDetail:
    """Serve `GET /api/v1/history/sessions/{session_id}`."""
    head = await summaries.details(database, identity, runs=1)
    course = (await stage_rows.stage_progress(database, [identity])).get(identity)
    if head is None or course is None:
        raise reads.unknown_investigation(identity)
    executions = await stage_rows.executions(database, identity)
    conclusions = await stage_rows.conclusions(
        database, identity, executions, upto=head.log_seq, length=outputs.ANALYSIS_MAX
    )
    chain = plans.plans(course)
    teller = timeline.Teller(chain, executions)
    async for page in transcript_pages.walk(database, identity, kinds=timeline.KINDS, upto=head.log_seq):
        await asyncio.to_thread(teller.add, [placed.logged for placed in page])
        if teller.is_full:
            break
    return await asyncio.to_thread(_detail, head, course, chain, executions, conclusions, teller)


def alert_data(text: str) -> dict[str, Any]:
    """An alert's data as its JSON object, where it is one."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict) and messages.is_plain_json(document):
        storable: dict[str, Any] = messages.storable_json(document)
        return storable
    return {"text": text}


def _listed(listed: listing.Listed, by: stage_rows.StageProgress) -> DashboardSessionSummary:
    stopped = words.INVESTIGATIONS[listed.phase].processing == "failed"
    return DashboardSessionSummary(
        **_times(listed.admitted_at, listed.started_at, listed.ended_at, now=by.now),
        session_id=listed.id,
        alert_id=listed.id,
        alert_type=listed.alert_type,
        status=words.INVESTIGATIONS[listed.phase].session,
        error_message=listed.message or None if stopped else None,
        chain=_chain(listed.chain_name, plans.plans(by), by.outcomes, ended=listed.ended_at is not None),
    )


def _times(admitted: datetime, started: datetime | None, ended: datetime | None, *, now: datetime) -> dict[str, Any]:
    return {
        "started_at_us": words.us(started or admitted),
        "completed_at_us": ended and words.us(ended),
        "duration_ms": words.ms(started, ended or now),
    }


def _chain(
    name: str | None, chain: Iterable[plans.Plan], outcomes: Mapping[str, str | None], *, ended: bool
) -> ChainInfo:
    nodes = [
        ChainNode(id=plan.name, agent=plan.agent, **words.of_stage(plan.name, outcomes, ended=ended)._asdict())
        for plan in chain
    ]
    return ChainInfo(id=name, nodes=nodes)


def _detail(
    head: summaries.Details,
    course: stage_rows.StageProgress,
    chain: Sequence[plans.Plan],
    executions: Sequence[stage_rows.Execution],
    conclusions: Mapping[str, str],
    teller: timeline.Teller,
) -> DashboardSessionDetail:
    summary = head.summary
    outcomes = {stage.name: stage.outcome for stage in summary.stages}
    return DashboardSessionDetail(
        **_times(summary.admitted_at, summary.started_at, summary.ended_at, now=course.now),
        session_id=summary.id,
        alert_id=summary.id,
        alert_data=alert_data(head.alert_data),
        alert_type=summary.alert_type,
        status=words.INVESTIGATIONS[summary.phase].session,
        final_analysis=summary.final_analysis or None,
        error_message=sessions.error_of(summary),
        chain=_chain(summary.chain_name, chain, outcomes, ended=summary.ended_at is not None),
        stage_executions=[
            _stage(summary, plan, index=index, executions=executions, conclusions=conclusions)
            for index, plan in enumerate(chain)
        ],
        chronological_timeline=teller.events,
        timeline_truncated=teller.is_full,
    )


def _stage(
    summary: summaries.Summary,
    plan: plans.Plan,
    *,
    index: int,
    executions: Iterable[stage_rows.Execution],
    conclusions: Mapping[str, str],
) -> StageExecution:
    stages = {stage.name: stage for stage in summary.stages}
    stage = stages.get(plan.name)
    stage_words = words.of_stage(
        plan.name, {name: execution.outcome for name, execution in stages.items()}, ended=summary.ended_at is not None
    )
    own = [execution for execution in executions if execution.stage == plan.name]
    started, ended = (stage.started_at, stage.ended_at) if stage and stage.started_at else (None, None)
    results = outputs.of_agents(plan.name, own, conclusions) if plan.parallel_type else []
    return StageExecution(
        execution_id=sessions.stage_id(summary.id, plan.name),
        stage_id=plan.name,
        stage_index=index,
        status=stage_words.status,
        started_at_us=started and words.us(started),
        completed_at_us=ended and words.us(ended),
        duration_ms=words.ms(started, ended),
        llm_interaction_count=stage.iterations if stage else 0,
        mcp_communication_count=stage.tool_calls if stage else 0,
        stage_output=outputs.of_stage(plan, stage, own, conclusions) if stage else None,
        error_message=stage.message or None if stage and stage_words.has_errors else None,
        execution_type=plan.execution_type,
        agent=None if plan.parallel_type else plan.agent,
        agents=list(plan.agents) if plan.parallel_type else None,
        parallel_results=[ParallelResult(agent=agent, result=result) for agent, result in results]
        if plan.parallel_type
        else None,
    )

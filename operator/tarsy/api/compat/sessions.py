"""Investigations as the sessions of earlier clients: with their stages, and the executions of these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from tarsy.api.compat import plans, words
from tarsy.api.investigations import actions, reads
from tarsy.auth import permissions
from tarsy.resources import chains
from tarsy.store.base import databases
from tarsy.store.reads import stage_rows, summaries
from tarsy.views import base


class AgentExecution(base.View):
    """The work of one agent in a stage."""

    id: str
    stage_id: str
    session_id: UUID
    agent_name: str
    agent_index: int
    """Its place in the stage, from 1."""
    iteration_strategy: str | None
    """None where it ended before it could begin."""
    status: words.Execution
    error_message: str | None
    started_at: datetime
    completed_at: datetime | None
    duration_ms: int | None


class SessionStage(base.View):
    """One stage of the chain, whether it has begun or not."""

    id: str
    session_id: UUID
    stage_name: str
    stage_index: int
    """Its place in the chain, from 0."""
    expected_agent_count: int
    parallel_type: plans.ParallelType | None
    """None of one agent alone."""
    success_policy: chains.SuccessPolicy | None
    """None of one agent alone."""
    status: words.Stage
    error_message: str | None
    started_at: datetime | None
    completed_at: datetime | None
    duration_ms: int | None
    executions: list[AgentExecution]
    """The executions of its agents that have begun, in the agents' order."""


class AlertSession(base.View):
    """An investigation."""

    id: UUID
    alert_data: str
    """As the agents read it, masked."""
    agent_type: str | None
    """`chain:` and the chain's name."""
    alert_type: str
    status: words.Session
    chain_id: str | None
    """The chain's name."""
    pod_id: str | None
    """The name of the pod (or machine) whose worker runs it now; null while none does."""
    final_analysis: str | None
    executive_summary: str | None
    mcp_selection: dict[str, Any] | None
    """The alert's selection of tools; null without one."""
    author: str | None
    runbook_url: str | None
    deleted_at: datetime | None
    """Always null: what is purged is not there."""
    created_at: datetime
    """When it came in."""
    started_at: datetime | None
    completed_at: datetime | None
    last_interaction_at: datetime | None
    """When its last call of a model or a tool was kept."""
    error_message: str | None
    """Why it failed, or was stopped."""
    stages: list[SessionStage]


class CancelledSession(base.View):
    """An investigation that was cancelled."""

    session_id: UUID
    status: Literal["cancelling", "cancelled"]
    message: str


async def read(database: databases.Database, identity: UUID) -> AlertSession:
    """Serve `GET /api/v1/sessions/{id}`."""
    head = await summaries.details(database, identity, runs=1)
    course = (await stage_rows.stage_progress(database, [identity], calls=True)).get(identity)
    if head is None or course is None:
        raise reads.unknown_investigation(identity)
    executions = await stage_rows.executions(database, identity)
    return session(head, course, executions)


async def cancel(doing: actions.Actions, target: permissions.Known) -> CancelledSession:
    """Serve `POST /api/v1/sessions/{id}/cancel`."""
    done = await doing.cancel(target)
    status: Literal["cancelling", "cancelled"] = "cancelled" if done.phase == "Cancelled" else "cancelling"
    return CancelledSession(session_id=target.id, status=status, message="Session cancellation requested")


def session(
    head: summaries.Details, course: stage_rows.StageProgress, executions: Iterable[stage_rows.Execution]
) -> AlertSession:
    """An investigation, from all that the store has of it beside its log."""
    summary = head.summary
    status = words.INVESTIGATIONS[summary.phase].session
    return AlertSession(
        id=summary.id,
        alert_data=head.alert_data,
        agent_type=summary.chain_name and f"chain:{summary.chain_name}",
        alert_type=summary.alert_type,
        status=status,
        chain_id=summary.chain_name,
        pod_id=course.host or (course.owner and str(course.owner)),
        final_analysis=summary.final_analysis or None,
        executive_summary=summary.summary or None,
        mcp_selection=head.mcp and head.mcp.model_dump(mode="json", exclude_none=True),
        author=summary.author or None,
        runbook_url=head.runbook_url,
        deleted_at=None,
        created_at=summary.admitted_at,
        started_at=summary.started_at,
        completed_at=summary.ended_at,
        last_interaction_at=course.last_call_at,
        error_message=error_of(summary),
        stages=_stages(summary, plans.plans(course), list(executions)),
    )


def error_of(summary: summaries.Summary) -> str | None:
    """Why an investigation failed, or was stopped; None where it was not."""
    stopped = words.INVESTIGATIONS[summary.phase].processing == "failed"
    return (summary.message or summary.reason) if stopped else None


def stage_id(session: UUID, stage: str) -> str:
    """Return the id of a stage, unique over all sessions."""
    return f"{session}.{stage}"


def _stages(
    summary: summaries.Summary, chain: Iterable[plans.Plan], executions: list[stage_rows.Execution]
) -> list[SessionStage]:
    stages = {stage.name: stage for stage in summary.stages}
    outcomes: Mapping[str, str | None] = {name: stage.outcome for name, stage in stages.items()}
    counts = summary.stage_agents
    return [
        _stage(
            summary,
            plan,
            index=index,
            count=counts[index] if index < len(counts) else len(plan.agents),
            stage=stages.get(plan.name),
            stage_words=words.of_stage(plan.name, outcomes, ended=summary.ended_at is not None),
            executions=[
                execution for execution in executions if execution.stage == plan.name and execution.kind == "agent"
            ],
        )
        for index, plan in enumerate(chain)
    ]


def _stage(
    summary: summaries.Summary,
    plan: plans.Plan,
    *,
    index: int,
    count: int,
    stage: summaries.StageSummary | None,
    stage_words: words.StageWords,
    executions: Iterable[stage_rows.Execution],
) -> SessionStage:
    started, ended = (stage.started_at, stage.ended_at) if stage else (None, None)
    return SessionStage(
        id=stage_id(summary.id, plan.name),
        session_id=summary.id,
        stage_name=plan.name,
        stage_index=index,
        expected_agent_count=count,
        parallel_type=plan.parallel_type,
        success_policy=plan.success_policy,
        status=stage_words.status,
        error_message=stage.message or None if stage and stage_words.has_errors else None,
        started_at=started,
        completed_at=ended if started else None,  # a skipped one is noted when it is passed over
        duration_ms=words.ms(started, ended),
        executions=[
            _execution(summary, plan.name, own_execution)
            for own_execution in sorted(executions, key=lambda execution: execution.index)
        ],
    )


def _execution(summary: summaries.Summary, stage: str, own_execution: stage_rows.Execution) -> AgentExecution:
    return AgentExecution(
        id=own_execution.id,
        stage_id=stage_id(summary.id, stage),
        session_id=summary.id,
        agent_name=own_execution.name,
        agent_index=own_execution.index + 1,
        iteration_strategy=own_execution.strategy or None,
        status=words.EXECUTIONS[own_execution.outcome],
        error_message=own_execution.error or None,
        started_at=own_execution.started_at,
        completed_at=own_execution.ended_at,
        duration_ms=words.ms(own_execution.started_at, own_execution.ended_at),
    )

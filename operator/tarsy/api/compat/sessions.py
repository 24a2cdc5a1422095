"""Investigations as the sessions of earlier clients, with stages and executions; and the progress of an alert."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field

from tarsy.api.compat import stages, statuses
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
    """Its position in the stage, from 1."""
    iteration_strategy: str | None
    """The strategy; None if it ended before it could begin."""
    status: statuses.Execution
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
    """Its position in the chain, from 0."""
    expected_agent_count: int
    parallel_type: stages.ParallelType | None
    """None for a single agent."""
    success_policy: chains.SuccessPolicy | None
    """None for a single agent."""
    status: statuses.Stage
    error_message: str | None
    started_at: datetime | None
    completed_at: datetime | None
    duration_ms: int | None
    executions: list[AgentExecution]
    """The executions of its agents that have started, in the agents' order."""


class AlertSession(base.View):
    """An investigation."""

    id: UUID
    alert_data: str
    """The alert as the agents read it, masked."""
    agent_type: str | None
    """`chain:` and the chain's name."""
    alert_type: str
    status: statuses.Session
    chain_id: str | None
    """The chain's name."""
    pod_id: str | None
    """The name of the pod (or machine) whose worker runs it; null if none does."""
    final_analysis: str | None
    executive_summary: str | None
    mcp_selection: dict[str, Any] | None
    """The alert's selection of tools; null without one."""
    author: str | None
    runbook_url: str | None
    deleted_at: datetime | None
    """Always null: a purged investigation is not found."""
    created_at: datetime
    """The time of its admission."""
    started_at: datetime | None
    completed_at: datetime | None
    last_interaction_at: datetime | None
    """The time of the commit of its last model call or tool call."""
    error_message: str | None
    """The reason why it failed, or was stopped."""
    stages: list[SessionStage]


class CancelledSession(base.View):
    """An investigation that was cancelled."""

    session_id: UUID
    status: Literal["cancelling", "cancelled"]
    message: str


PROGRESS_STARTED = 20
"""Percent, once a worker has started it."""


class ProcessingStatus(base.View):
    """The progress of an alert's investigation."""

    alert_id: UUID
    """The investigation's id."""
    status: statuses.Processing
    progress: Annotated[int, Field(ge=0, le=100)]
    """Percent: 0 until a worker starts it, then 20, more after each stage, 100 at its end."""
    message: str


async def read(database: databases.Database, identity: UUID) -> AlertSession:
    """Read an investigation with its stages and executions."""
    details = await summaries.details(database, identity, runs=1)
    progress = (await stage_rows.stage_progress(database, [identity], calls=True)).get(identity)
    if details is None or progress is None:
        raise reads.unknown_investigation(identity)
    return alert_session(details, progress, await stage_rows.executions(database, identity))


async def cancel(investigation_actions: actions.Actions, target: permissions.Target) -> CancelledSession:
    """Cancel an investigation."""
    cancelled = await investigation_actions.cancel(target)
    status: Literal["cancelling", "cancelled"] = "cancelled" if cancelled.phase == "Cancelled" else "cancelling"
    return CancelledSession(session_id=target.id, status=status, message="Session cancellation requested")


async def read_processing_status(database: databases.Database, identity: UUID) -> ProcessingStatus:
    """Read the progress of an investigation."""
    summary = await summaries.load(database, identity)
    if summary is None:
        raise reads.unknown_investigation(identity)
    return processing_status(summary)


def alert_session(
    details: summaries.Details, progress: stage_rows.StageProgress, executions: Iterable[stage_rows.Execution]
) -> AlertSession:
    """Return the session of an investigation."""
    summary = details.summary
    by_stage: dict[str, list[stage_rows.Execution]] = {}
    for execution in sorted(executions, key=lambda execution: execution.index):
        if execution.kind == "agent":
            by_stage.setdefault(execution.stage, []).append(execution)
    return AlertSession(
        id=summary.id,
        alert_data=details.alert_data,
        agent_type=summary.chain_name and f"chain:{summary.chain_name}",
        alert_type=summary.alert_type,
        status=statuses.INVESTIGATIONS[summary.phase].session,
        chain_id=summary.chain_name,
        pod_id=progress.host or (progress.owner and str(progress.owner)),
        final_analysis=summary.final_analysis or None,
        executive_summary=summary.summary or None,
        mcp_selection=details.mcp and details.mcp.model_dump(mode="json", exclude_none=True),
        author=summary.author or None,
        runbook_url=details.runbook_url,
        deleted_at=None,
        created_at=summary.admitted_at,
        started_at=summary.started_at,
        completed_at=summary.ended_at,
        last_interaction_at=progress.last_call_at,
        error_message=statuses.error_message(summary.phase, summary.message or summary.reason),
        stages=[
            _stage(summary, chain_stage, index=index, executions=by_stage.get(chain_stage.name, ()))
            for index, chain_stage in enumerate(stages.chain_stages(progress))
        ],
    )


def stage_id(session: UUID, stage: str) -> str:
    """Return the id of a stage, unique over all sessions."""
    return f"{session}.{stage}"


def stage_status(summary: summaries.Summary, stage: str) -> statuses.StageStatus:
    """Return the present status of a stage."""
    outcomes = {stage.name: stage.outcome for stage in summary.stages}
    return statuses.stage_status(stage, outcomes, ended=summary.ended_at is not None)


def _stage(
    summary: summaries.Summary,
    chain_stage: stages.ChainStage,
    *,
    index: int,
    executions: Iterable[stage_rows.Execution],
) -> SessionStage:
    stage = next((stage for stage in summary.stages if stage.name == chain_stage.name), None)
    started, ended = (stage.started_at, stage.ended_at) if stage else (None, None)
    status, has_errors = stage_status(summary, chain_stage.name)
    counts = summary.stage_agents
    return SessionStage(
        id=stage_id(summary.id, chain_stage.name),
        session_id=summary.id,
        stage_name=chain_stage.name,
        stage_index=index,
        expected_agent_count=counts[index] if index < len(counts) else len(chain_stage.agents),
        parallel_type=chain_stage.parallel_type,
        success_policy=chain_stage.success_policy,
        status=status,
        error_message=stage.message or None if stage and has_errors else None,
        started_at=started,
        completed_at=ended if started else None,  # a skipped stage has an end, and no start
        duration_ms=statuses.elapsed_ms(started, ended),
        executions=[
            AgentExecution(
                id=execution.id,
                stage_id=stage_id(summary.id, chain_stage.name),
                session_id=summary.id,
                agent_name=execution.name,
                agent_index=execution.index + 1,
                iteration_strategy=execution.strategy or None,
                status=statuses.EXECUTIONS[execution.outcome],
                error_message=execution.error or None,
                started_at=execution.started_at,
                completed_at=execution.ended_at,
                duration_ms=statuses.elapsed_ms(execution.started_at, execution.ended_at),
            )
            for execution in executions
        ],
    )


def processing_status(summary: summaries.Summary) -> ProcessingStatus:
    """Return the progress of an investigation."""
    status = statuses.INVESTIGATIONS[summary.phase].processing
    messages: dict[statuses.Processing, str] = {
        "queued": summary.waits_for or "Alert queued for processing",
        "processing": f"Executing chain: {summary.chain_name}",
        "completed": "Processing completed",
        "failed": f"Error: {summary.message or summary.reason}",
    }
    progress = 100 if summary.ended_at else 0
    if summary.started_at and not summary.ended_at:
        ended = sum(stage.ended_at is not None for stage in summary.stages)
        by_stages = (100 - PROGRESS_STARTED) * ended // max(len(summary.stage_names), 1)
        progress = min(PROGRESS_STARTED + by_stages, 99)
    return ProcessingStatus(alert_id=summary.id, status=status, progress=progress, message=messages[status])

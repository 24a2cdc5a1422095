"""The output of a stage for earlier clients: an analysis, or an error with its kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from tarsy.api.compat import plans, words
from tarsy.store.reads import stage_rows, summaries

ANALYSIS_MAX = 65_536
"""Characters of an analysis that are told of a stage or an agent."""

ErrorType = Literal["timeout", "agent_error", "fatal"]

_KINDS: Mapping[str, tuple[ErrorType, str]] = {
    "TimedOut": ("timeout", "TimeoutError"),
    "Failed": ("agent_error", "AgentError"),
    "CompletedWithErrors": ("agent_error", "AgentError"),
    "Cancelled": ("fatal", "CancelledError"),
}
"""By outcome: the kind of error, and the name that an exception would have. Fatal is what was no agent's own error."""
_UNKNOWN_AGENT: tuple[ErrorType, str] = ("fatal", "ConfigurationError")
"""The error of an execution that failed before it could begin."""


def of_stage(
    plan: plans.Plan,
    stage: summaries.StageSummary,
    executions: Sequence[stage_rows.Execution],
    conclusions: Mapping[str, str],
) -> dict[str, Any] | None:
    """Return a stage's output by its executions and their conclusions; None if it runs, or was skipped."""
    if stage.ended_at is None or stage.outcome in (None, "Skipped"):
        return None
    if stage.outcome not in ("Completed", "CompletedWithErrors"):
        agents = [execution for execution in executions if execution.kind == "agent"]
        unknown = stage.outcome == "Failed" and agents and not any(execution.strategy for execution in agents)
        kind = _UNKNOWN_AGENT if unknown else _KINDS[stage.outcome]
        return _error(kind, stage.message, stage=plan.name, agent=plan.agent, at=stage.ended_at)
    concluding = [
        execution for execution in executions if execution.kind == "synthesis" and execution.outcome == "Completed"
    ]
    if not concluding:
        completed = (
            execution for execution in executions if execution.kind == "agent" and execution.outcome == "Completed"
        )
        concluding = sorted(completed, key=lambda execution: execution.index)
    analyses = [(execution.name, conclusions.get(execution.id, "")) for execution in concluding]
    analysis = analyses[0][1] if len(analyses) == 1 else "\n\n".join(f"{name}:\n\n{text}" for name, text in analyses)
    output = _success(
        plan.agent,
        analysis[:ANALYSIS_MAX],
        strategy=concluding[0].strategy if concluding else "",
        at=stage.ended_at,
    )
    if stage.outcome == "CompletedWithErrors":
        output |= {"error": stage.message, "error_type": _KINDS[stage.outcome][0]}
    return output


def of_agents(
    stage: str, executions: Iterable[stage_rows.Execution], conclusions: Mapping[str, str]
) -> list[tuple[str, dict[str, Any]]]:
    """Return each ended agent's name and output, in their order."""
    ended = [execution for execution in executions if execution.kind == "agent" and execution.ended_at]
    return [
        (execution.name, _of_agent(stage, execution, conclusions))
        for execution in sorted(ended, key=lambda execution: execution.index)
    ]


def _of_agent(stage: str, execution: stage_rows.Execution, conclusions: Mapping[str, str]) -> dict[str, Any]:
    assert execution.ended_at  # noqa: S101 - those that have ended
    if execution.outcome == "Completed":
        return _success(
            execution.name, conclusions.get(execution.id, ""), strategy=execution.strategy, at=execution.ended_at
        )
    unknown = execution.outcome == "Failed" and not execution.strategy
    kind = _UNKNOWN_AGENT if unknown else _KINDS[execution.outcome or "Failed"]
    return _error(kind, execution.error, stage=stage, agent=execution.name, at=execution.ended_at)


def _success(agent: str, analysis: str, *, strategy: str, at: datetime) -> dict[str, Any]:
    return {
        "status": "success",
        "agent": agent,
        "analysis": analysis,
        "strategy": strategy,
        "timestamp_us": words.us(at),
    }


def _error(kind: tuple[ErrorType, str], error: str, *, stage: str, agent: str, at: datetime) -> dict[str, Any]:
    error_type, exception = kind
    return {
        "error": error,
        "error_type": error_type,
        "stage_name": stage,
        "agent": agent,
        "timestamp": words.us(at),
        "error_details": {"exception_type": exception, "exception_message": error},
    }

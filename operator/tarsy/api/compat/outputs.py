"""What a stage came to, as earlier clients read it: an analysis, or an error with its kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from tarsy.api.compat import plans, words
from tarsy.store.reads import history, stage_rows

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
"""Of an execution that failed before it could begin."""


def of_stage(
    plan: plans.Plan,
    stage: history.Stage,
    executions: Sequence[stage_rows.Execution],
    conclusions: Mapping[str, str],
) -> dict[str, Any] | None:
    """What a stage came to, given its executions and their conclusions; None of one that runs, or was skipped."""
    if stage.ended_at is None or stage.outcome in (None, "Skipped"):
        return None
    if stage.outcome not in ("Completed", "CompletedWithErrors"):
        agents = [one for one in executions if one.kind == "agent"]
        unknown = stage.outcome == "Failed" and agents and not any(one.strategy for one in agents)
        kind = _UNKNOWN_AGENT if unknown else _KINDS[stage.outcome]
        return _error(kind, stage.message, stage=plan.name, agent=plan.agent, at=stage.ended_at)
    concluding = [one for one in executions if one.kind == "synthesis" and one.outcome == "Completed"]
    if not concluding:
        completed = (one for one in executions if one.kind == "agent" and one.outcome == "Completed")
        concluding = sorted(completed, key=lambda one: one.index)
    analyses = [(one.name, conclusions.get(one.id, "")) for one in concluding]
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
    """What each agent of a stage came to, with its name; those that have ended, by their places."""
    ended = [one for one in executions if one.kind == "agent" and one.ended_at]
    return [(one.name, _of_agent(stage, one, conclusions)) for one in sorted(ended, key=lambda one: one.index)]


def _of_agent(stage: str, found: stage_rows.Execution, conclusions: Mapping[str, str]) -> dict[str, Any]:
    assert found.ended_at  # noqa: S101 - those that have ended
    if found.outcome == "Completed":
        return _success(found.name, conclusions.get(found.id, ""), strategy=found.strategy, at=found.ended_at)
    unknown = found.outcome == "Failed" and not found.strategy
    kind = _UNKNOWN_AGENT if unknown else _KINDS[found.outcome or "Failed"]
    return _error(kind, found.error, stage=stage, agent=found.name, at=found.ended_at)


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

"""Stages for earlier clients: the agents of a stage in its chain, and the output of an ended stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

from tarsy.api.compat import statuses
from tarsy.resources import chains
from tarsy.store.reads import stage_rows, summaries

ANALYSIS_MAX = 65_536
"""The maximal characters of an analysis of a stage or an agent."""

ParallelType: TypeAlias = Literal["multi_agent", "replica"]
ExecutionType: TypeAlias = Literal["sequential", "parallel"]
ErrorType: TypeAlias = Literal["timeout", "agent_error", "fatal"]

_ERRORS: Mapping[str, tuple[ErrorType, str]] = {
    "TimedOut": ("timeout", "TimeoutError"),
    "Failed": ("agent_error", "AgentError"),
    "CompletedWithErrors": ("agent_error", "AgentError"),
    "Cancelled": ("fatal", "CancelledError"),
}
"""The type of the error, and the name of an exception, by outcome. An error is fatal if it is not the agent's own."""
_UNKNOWN_AGENT: tuple[ErrorType, str] = ("fatal", "ConfigurationError")
"""The error of an execution that failed before it could begin."""


@dataclass(frozen=True, kw_only=True)
class ChainStage:
    """One stage, as its chain has it."""

    name: str
    agents: tuple[str, ...]
    """The agents' names; empty if the chain's snapshot cannot be read."""
    parallel_type: ParallelType | None
    """None for a single agent."""
    success_policy: chains.SuccessPolicy | None
    """None for a single agent."""

    @property
    def execution_type(self) -> ExecutionType:
        """sequential: one agent; parallel: several."""
        return "parallel" if self.parallel_type else "sequential"

    @property
    def agent(self) -> str:
        """The names of its agents, joined."""
        return ", ".join(self.agents)

    @property
    def group(self) -> str | None:
        """The common name of several agents; None for a single agent."""
        return f"{self.name}-group" if self.parallel_type else None


def chain_stages(progress: stage_rows.StageProgress) -> Sequence[ChainStage]:
    """Return the stages of an investigation, in the chain's order."""
    stages = {stage.name: stage for stage in progress.chain.stages} if progress.chain else {}
    return [_chain_stage(name, stages.get(name)) for name in progress.stage_names]


def _chain_stage(name: str, stage: chains.Stage | None) -> ChainStage:
    agents = tuple(stage.shown_names) if stage else ()
    if stage is None or len(agents) < 2:
        return ChainStage(name=name, agents=agents, parallel_type=None, success_policy=None)
    return ChainStage(
        name=name,
        agents=agents,
        parallel_type="multi_agent" if stage.agents else "replica",
        success_policy=stage.success_policy or "any",
    )


def stage_output(
    chain_stage: ChainStage,
    stage: summaries.StageSummary,
    executions: Sequence[stage_rows.Execution],
    conclusions: Mapping[str, str],
) -> dict[str, Any] | None:
    """Return a stage's output from its executions and their conclusions; None if it runs or was skipped."""
    if stage.ended_at is None or stage.outcome in (None, "Skipped"):
        return None
    agents = sorted(
        (execution for execution in executions if execution.kind == "agent"), key=lambda execution: execution.index
    )
    if stage.outcome not in ("Completed", "CompletedWithErrors"):
        unknown = stage.outcome == "Failed" and agents and not any(execution.strategy for execution in agents)
        error = _UNKNOWN_AGENT if unknown else _ERRORS[stage.outcome]
        return _error(error, stage.message, stage=stage.name, agent=chain_stage.agent, at=stage.ended_at)
    syntheses = [execution for execution in executions if execution.kind == "synthesis"]
    concluding = _completed(syntheses) or _completed(agents)
    analyses = [(execution.name, conclusions.get(execution.id, "")) for execution in concluding]
    analysis = analyses[0][1] if len(analyses) == 1 else "\n\n".join(f"{name}:\n\n{text}" for name, text in analyses)
    strategy = concluding[0].strategy if concluding else ""
    output = _success(chain_stage.agent, analysis[:ANALYSIS_MAX], strategy=strategy, at=stage.ended_at)
    if stage.outcome == "CompletedWithErrors":
        output |= {"error": stage.message, "error_type": _ERRORS[stage.outcome][0]}
    return output


def _completed(executions: Iterable[stage_rows.Execution]) -> list[stage_rows.Execution]:
    return [execution for execution in executions if execution.outcome == "Completed"]


def agent_outputs(
    stage: str, executions: Iterable[stage_rows.Execution], conclusions: Mapping[str, str]
) -> list[tuple[str, dict[str, Any]]]:
    """Return the name and the output of each agent that has ended, in the agents' order."""
    outputs = []
    for execution in sorted(executions, key=lambda execution: execution.index):
        if execution.kind != "agent" or execution.ended_at is None:
            continue
        if execution.outcome == "Completed":
            analysis = conclusions.get(execution.id, "")
            output = _success(execution.name, analysis, strategy=execution.strategy, at=execution.ended_at)
        else:
            unknown = execution.outcome == "Failed" and not execution.strategy
            error = _UNKNOWN_AGENT if unknown else _ERRORS[execution.outcome or "Failed"]
            output = _error(error, execution.error, stage=stage, agent=execution.name, at=execution.ended_at)
        outputs.append((execution.name, output))
    return outputs


def _success(agent: str, analysis: str, *, strategy: str, at: datetime) -> dict[str, Any]:
    return {
        "status": "success",
        "agent": agent,
        "analysis": analysis,
        "strategy": strategy,
        "timestamp_us": statuses.to_us(at),
    }


def _error(error: tuple[ErrorType, str], message: str, *, stage: str, agent: str, at: datetime) -> dict[str, Any]:
    error_type, exception = error
    return {
        "error": message,
        "error_type": error_type,
        "stage_name": stage,
        "agent": agent,
        "timestamp": statuses.to_us(at),
        "error_details": {"exception_type": exception, "exception_message": message},
    }

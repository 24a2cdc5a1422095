"""The timeline for earlier clients: an event for each model call and tool call, and for the start and end of a stage.

A pure function of the log, built page by page. Long texts are cut, and the number of events is limited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from tarsy.api.compat import stages, statuses
from tarsy.store.reads import stage_rows
from tarsy.transcript import entries, tool_names
from tarsy.transcript.kinds import registry
from tarsy.views import base, transcripts

EVENTS_MAX = 1_000
TEXT_MAX = 2_048
"""The maximal characters of a text."""
NAME_MAX = 253
"""The maximal characters of a tool's name, because a model may invent any name."""
CALLS_MAX = 50
"""The maximal number of tool calls that are named of one answer."""
KINDS = ("StageStarted", "StageEnded", "ExecutionEnded", *registry.WITH_MODEL_CALLS, *registry.WITH_TOOL_CALLS)
"""The kinds of entries that have events."""

Type = Literal[
    "llm_interaction", "mcp_communication", "stage_start", "stage_complete", "parallel_start", "parallel_complete"
]
_JSON = {"additionalProperties": True}


class StageContext(base.View):
    """The stage that an event belongs to."""

    stage_id: str
    """The stage's name."""
    execution_type: stages.ExecutionType
    agent: str | None
    """The agent of the event; None if it concerns several."""
    agents: list[str] | None
    """The agents of a stage with several."""
    parallel_group: str | None


class ParallelContext(base.View):
    """The agents that work in parallel."""

    parallel_group: str
    agent_group: str
    """The same name."""
    agents: list[str]
    parallel_index: int | None
    """The agent's position; None if the event concerns all."""


class TimelineEvent(base.View):
    """One event."""

    event_id: str
    type: Type
    timestamp_us: int
    """The time of its commit: a call began `duration_ms` before."""
    step_description: str
    duration_ms: int | None
    stage_context: StageContext | None
    """None for the executive summary, which belongs to no stage."""
    details: Annotated[dict[str, Any], Field(json_schema_extra=_JSON)]
    """The details of a model call.

    Provider, model_name, success, tokens, response, thinking, tool_calls, error_message. Of a tool call: server_name,
    tool_name, tool_arguments, tool_result, success, error_message. Of the end of a stage: status, error_message.
    """
    parallel_context: ParallelContext | None
    routing_context: dict[str, Any] | None = None
    """Always null: chains do not branch."""


class TimelineBuilder:
    """Builds the events of an investigation's log."""

    def __init__(
        self,
        chain_stages: Iterable[stages.ChainStage],
        executions: Iterable[stage_rows.Execution],
        *,
        limit: int = EVENTS_MAX,
    ) -> None:
        """`executions` are those of run 0; `limit` is the number of events at most."""
        self.events: list[TimelineEvent] = []
        self.is_full = False
        """Whether there are more events than the limit."""
        self._limit = limit
        self._stages = {stage.name: stage for stage in chain_stages}
        self._executions = {execution.id: execution for execution in executions}
        self._ended_agents = Counter[str]()
        """The number of ended agents of each stage."""

    def add(self, page: Iterable[entries.Logged]) -> None:
        """Add the events of the next entries; those of later runs have none."""
        for logged in page:
            for event in self._events(logged) if logged.run == entries.INVESTIGATION else ():
                if len(self.events) == self._limit:
                    self.is_full = True
                    return
                self.events.append(event)

    def _events(self, logged: entries.Logged) -> Iterator[TimelineEvent]:
        match logged.entry:
            case entries.StageStarted() as entry:
                yield self._event(logged, "stage_start", f"Starting {entry.stage}", {})
                yield from self._parallel(logged, "parallel_start")
            case entries.ExecutionEnded():
                execution, stage = self._executions.get(logged.execution), self._stages.get(logged.stage)
                if execution and execution.kind == "agent" and stage:
                    self._ended_agents[stage.name] += 1
                    if self._ended_agents[stage.name] == len(stage.agents):
                        yield from self._parallel(logged, "parallel_complete")
            case entries.StageEnded(outcome=outcome) as entry if outcome != "Skipped":
                stage = self._stages.get(entry.stage)
                if stage and self._ended_agents[stage.name] < len(stage.agents):  # stopped before all had started
                    yield from self._parallel(logged, "parallel_complete")
                status, has_errors = statuses.STAGES[outcome]
                step = f"{'Completed' if status == 'completed' else 'Failed'} {entry.stage}"
                error = entry.message[:TEXT_MAX] if has_errors else None
                yield self._event(logged, "stage_complete", step, {"status": status, "error_message": error})
            case entries.ToolsAnswered() as entry:
                for index, run in enumerate(entry.runs):
                    yield self._tool_call(logged, run, index=index)
            case entry if (call_entry := transcripts.call_entry(entry)) and call_entry.call:
                yield self._model_call(logged, call_entry, call_entry.call)

    def _parallel(
        self,
        logged: entries.Logged,
        type: Literal["parallel_start", "parallel_complete"],  # noqa: A002 - its name
    ) -> Iterator[TimelineEvent]:
        """Yield the event of the start or end of parallel work, if the stage has several agents."""
        stage = self._stages.get(logged.stage)
        if stage and stage.parallel_type:
            verb = "Starting" if type == "parallel_start" else "Completed"
            yield self._event(logged, type, f"{verb} parallel {stage.name} with {len(stage.agents)} agents", {})

    def _model_call(
        self, logged: entries.Logged, entry: transcripts.CallEntry, call: entries.ModelCall
    ) -> TimelineEvent:
        failure, answer = transcripts.failure(entry), transcripts.answer(entry)
        details = {
            "provider": call.provider,
            "model_name": call.model,
            "success": failure is None,
            "input_tokens": call.usage.input_tokens,
            "output_tokens": call.usage.output_tokens,
            "total_tokens": call.usage.total_tokens,
            "response": answer.text[:TEXT_MAX],
            "thinking": answer.thinking[:TEXT_MAX],
            "tool_calls": [tool_call.name[:NAME_MAX] for tool_call in answer.calls[:CALLS_MAX]],
            "error_message": failure and failure.text[:TEXT_MAX],
        }
        step = f"{self._name(logged)}: {call.model}" + (" failed" if failure else "")
        return self._event(logged, "llm_interaction", step, details, seconds=call.seconds)

    def _tool_call(self, logged: entries.Logged, run: entries.ToolRun, *, index: int) -> TimelineEvent:
        failed, arguments = run.result.failed, run.call.arguments[:TEXT_MAX]
        parsed = base.parsed_json(arguments or "{}") if len(run.call.arguments) <= TEXT_MAX else None
        details = {
            **tool_names.fields(run.call.name[:NAME_MAX]),
            "tool_arguments": parsed if isinstance(parsed, dict) else arguments,
            "tool_result": run.result.text[:TEXT_MAX],
            "success": not failed,
            "error_message": run.result.text[:TEXT_MAX] if failed else None,
        }
        step = f"{self._name(logged)}: {run.call.name[:NAME_MAX]}" + (" failed" if failed else "")
        return self._event(logged, "mcp_communication", step, details, seconds=run.seconds, index=index)

    def _name(self, logged: entries.Logged) -> str:
        execution = self._executions.get(logged.execution)
        return execution.name if execution else logged.execution

    def _event(
        self,
        logged: entries.Logged,
        type: Type,  # noqa: A002 - its name
        step: str,
        details: dict[str, Any],
        *,
        seconds: float | None = None,
        index: int = 0,
    ) -> TimelineEvent:
        """Return an event; with `seconds` it is a call of one execution, else it belongs to the stage."""
        stage = self._stages.get(logged.stage)
        execution = None if seconds is None else self._executions.get(logged.execution)
        return TimelineEvent(
            event_id=f"{logged.seq}.{index}.{type}",
            type=type,
            timestamp_us=statuses.to_us(logged.at),
            step_description=step,
            duration_ms=None if seconds is None else max(0, round(seconds * 1000)),
            stage_context=_stage_context(logged.stage, stage, execution) if logged.stage else None,
            details=details,
            parallel_context=_parallel_context(stage, execution),
        )


def _stage_context(name: str, stage: stages.ChainStage | None, execution: stage_rows.Execution | None) -> StageContext:
    if stage is None:
        agent = execution.name if execution else None
        return StageContext(stage_id=name, execution_type="sequential", agent=agent, agents=None, parallel_group=None)
    single = None if stage.parallel_type else stage.agent
    return StageContext(
        stage_id=name,
        execution_type=stage.execution_type,
        agent=execution.name if execution else single,
        agents=list(stage.agents) if stage.parallel_type else None,
        parallel_group=stage.group,
    )


def _parallel_context(
    stage: stages.ChainStage | None, execution: stage_rows.Execution | None
) -> ParallelContext | None:
    """Return the context of parallel agents; None for a synthesis, which works alone."""
    if stage is None or stage.group is None or (execution and execution.kind != "agent"):
        return None
    return ParallelContext(
        parallel_group=stage.group,
        agent_group=stage.group,
        agents=list(stage.agents),
        parallel_index=execution.index if execution else None,
    )

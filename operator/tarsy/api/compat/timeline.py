"""The timeline for earlier clients: an event for each call of a model or a tool, and for each stage's ends.

A pure function of the log, read page by page; long texts are cut, and the number of events is limited.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from tarsy.api.compat import plans, words
from tarsy.store.reads import stage_rows
from tarsy.transcript import entries, messages, tool_names
from tarsy.transcript.kinds import registry
from tarsy.views import base, transcripts

EVENTS_MAX = 1_000
TEXT_MAX = 2_048
"""Characters of each text that are told."""
NAME_MAX = 253
"""Characters of a tool's name that are told: a model may call one anything."""
CALLS_TOLD = 50
"""Tool calls of one answer that are told by their names."""
KINDS = ("StageStarted", "StageEnded", "ExecutionEnded", *registry.WITH_MODEL_CALLS, *registry.WITH_TOOL_CALLS)
"""The kinds of entries that events are told of."""

Type = Literal[
    "llm_interaction", "mcp_communication", "stage_start", "stage_complete", "parallel_start", "parallel_complete"
]
_JSON = {"additionalProperties": True}


class StageContext(base.View):
    """The stage that an event belongs to."""

    stage_id: str
    """The stage's name."""
    execution_type: plans.ExecutionType
    agent: str | None
    """The agent of the event; None if it concerns several."""
    agents: list[str] | None
    """The agents of a stage with several."""
    parallel_group: str | None


class ParallelContext(base.View):
    """The agents that work side by side."""

    parallel_group: str
    agent_group: str
    """The same."""
    agents: list[str]
    parallel_index: int | None
    """The agent's position; None if the event concerns all."""


class TimelineEvent(base.View):
    """One event."""

    event_id: str
    type: Type
    timestamp_us: int
    """When it was kept: a call began `duration_ms` before."""
    step_description: str
    duration_ms: int | None
    stage_context: StageContext | None
    """None of the executive summary, which is of no stage."""
    details: Annotated[dict[str, Any], Field(json_schema_extra=_JSON)]
    """The details of a model call.

    Provider, model_name, success, tokens, response, thinking, tool_calls, error_message. Of a tool call: server_name,
    tool_name, tool_arguments, tool_result, success, error_message. Of the end of a stage: status, error_message.
    """
    parallel_context: ParallelContext | None
    routing_context: dict[str, Any] | None = None
    """Always null: chains do not branch."""


class Teller:
    """Tells the events of an investigation's log."""

    def __init__(
        self, chain: Iterable[plans.Plan], executions: Iterable[stage_rows.Execution], *, limit: int = EVENTS_MAX
    ) -> None:
        """`executions` are those of its run 0; no more than `limit` events are told."""
        self.events: list[TimelineEvent] = []
        self.is_full = False
        """There are more."""
        self._limit = limit
        self._chain = {plan.name: plan for plan in chain}
        self._executions = {execution.id: execution for execution in executions}
        self._ended = Counter[str]()
        """Agents of each stage."""

    def add(self, page: Iterable[entries.Logged]) -> None:
        """Tell what these entries bring, which follow those before; of runs behind the first nothing."""
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
                yield from self._agent_ended(logged)
            case entries.StageEnded() as entry:
                yield from self._stage_ended(logged, entry)
            case entries.ToolsAnswered() as entry:
                for index, run in enumerate(entry.runs):
                    yield self._called(logged, run, index=index)
            case entry if (called := transcripts.call_entry(entry)) and called.call:
                yield self._model_call(logged, called, called.call)

    def _agent_ended(self, logged: entries.Logged) -> Iterator[TimelineEvent]:
        """Yield the event of a stage that ends with its last agent."""
        execution, plan = self._executions.get(logged.execution), self._chain.get(logged.stage)
        if execution and execution.kind == "agent" and plan:
            self._ended[logged.stage] += 1
            if self._ended[logged.stage] == len(plan.agents):
                yield from self._parallel(logged, "parallel_complete")

    def _stage_ended(self, logged: entries.Logged, entry: entries.StageEnded) -> Iterator[TimelineEvent]:
        if entry.outcome == "Skipped":
            return
        plan = self._chain.get(entry.stage)
        if plan and self._ended[entry.stage] < len(plan.agents):  # it was stopped before all had begun
            yield from self._parallel(logged, "parallel_complete")
        stage_words = words.of_outcome(entry.outcome)
        step = f"Completed {entry.stage}" if stage_words.status == "completed" else f"Failed {entry.stage}"
        error = entry.message[:TEXT_MAX] if stage_words.has_errors else None
        yield self._event(logged, "stage_complete", step, {"status": stage_words.status, "error_message": error})

    def _parallel(self, logged: entries.Logged, type: Type) -> Iterator[TimelineEvent]:  # noqa: A002 - its name
        """The beginning or the end of what several agents do, where the stage has several."""
        plan = self._chain.get(logged.stage)
        if plan and plan.parallel_type:
            verb = "Starting" if type == "parallel_start" else "Completed"
            step = f"{verb} parallel {plan.name} with {len(plan.agents)} agents"
            yield self._event(logged, type, step, {})

    def _model_call(
        self,
        logged: entries.Logged,
        entry: transcripts.CallEntry,
        call: entries.ModelCall,
    ) -> TimelineEvent:
        failure = transcripts.failure(entry)
        answer = transcripts.answer(entry)
        details = {
            "provider": call.provider,
            "model_name": call.model,
            "success": failure is None,
            "input_tokens": call.usage.input_tokens,
            "output_tokens": call.usage.output_tokens,
            "total_tokens": call.usage.total_tokens,
            "response": answer.text[:TEXT_MAX],
            "thinking": answer.thinking[:TEXT_MAX],
            "tool_calls": [asked.name[:NAME_MAX] for asked in answer.calls[:CALLS_TOLD]],
            "error_message": failure and failure.text[:TEXT_MAX],
        }
        step = f"{self._name(logged)}: {call.model}" + (" failed" if failure else "")
        return self._event(logged, "llm_interaction", step, details, seconds=call.seconds)

    def _called(self, logged: entries.Logged, run: entries.ToolRun, *, index: int) -> TimelineEvent:
        failed = run.result.failed
        details = {
            **tool_names.fields(run.call.name[:NAME_MAX]),
            "tool_arguments": _arguments(run.call.arguments),
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
        plan, execution = self._chain.get(logged.stage), self._executions.get(logged.execution)
        own = execution if seconds is not None else None  # a call is of one agent, all else is of the stage
        return TimelineEvent(
            event_id=f"{logged.seq}.{index}.{type}",
            type=type,
            timestamp_us=words.us(logged.at),
            step_description=step,
            duration_ms=None if seconds is None else max(0, round(seconds * 1000)),
            stage_context=_context(logged.stage, plan, own),
            details=details,
            parallel_context=_parallel_context(plan, own),
        )


def _context(stage: str, plan: plans.Plan | None, own: stage_rows.Execution | None) -> StageContext | None:
    if not stage:
        return None
    single = plan.agent if plan and not plan.parallel_type else None
    return StageContext(
        stage_id=stage,
        execution_type=plan.execution_type if plan else "sequential",
        agent=own.name if own else single,
        agents=list(plan.agents) if plan and plan.parallel_type else None,
        parallel_group=plan.group if plan else None,
    )


def _parallel_context(plan: plans.Plan | None, own: stage_rows.Execution | None) -> ParallelContext | None:
    """None of a synthesis too: it works by itself."""
    if plan is None or plan.group is None or (own and own.kind != "agent"):
        return None
    return ParallelContext(
        parallel_group=plan.group,
        agent_group=plan.group,
        agents=list(plan.agents),
        parallel_index=own.index if own else None,
    )


def _arguments(text: str) -> Any:
    """Arguments as the JSON object that they are; as text where they are none, or too long."""
    if len(text) <= TEXT_MAX:
        try:
            parsed = json.loads(text or "{}")
        except (ValueError, RecursionError):
            parsed = None
        if isinstance(parsed, dict) and messages.is_plain_json(parsed):
            return messages.storable_json(parsed)
    return text[:TEXT_MAX]

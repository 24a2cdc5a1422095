"""The kinds of entries about an execution: its start, servers it could not reach, alerts that joined, its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tarsy.transcript import entries, nesting, record, timeline_events
from tarsy.transcript.kinds import kind


def _add(so_far: record.Record, entry: entries.ExecutionStarted) -> None:
    execution = record.begun(entry)
    so_far.executions[entry.execution] = execution
    run = so_far.runs[entry.run]
    parent = run.stages[entry.stage] if entry.stage else run
    parent.executions[entry.execution] = execution


def _apply(execution: record.Execution, entry: entries.ServersAway | entries.ExecutionEnded) -> None:
    if isinstance(entry, entries.ExecutionEnded):
        execution.ended = entry
    else:
        execution.away |= set(entry.servers)
        execution.unreached |= set(entry.calls)


def _tell(execution: record.Execution, entry: entries.AlertJoined) -> None:
    execution.log.extend(entry.messages)
    execution.told = entry


def _left_out_event(
    entry: entries.ExecutionStarted, context: timeline_events.Context
) -> Iterator[timeline_events.Event]:
    """Yield an event if requests leave out native tools of the provider."""
    if entry.agent is None or not entry.agent.native.left_out:
        return
    provider, tools = entry.agent.provider, entry.agent.native.left_out
    content = f"requests to {provider} leave out {', '.join(tools)}: it takes either native tools or MCP servers' tools"
    metadata = {"provider": provider, "tools": list(tools)}
    yield context.event("start.native", "native_tools_left_out", "completed", content, metadata)


def _joined_event(entry: entries.AlertJoined, context: timeline_events.Context) -> Iterator[timeline_events.Event]:
    noun = "alert" if entry.alerts == 1 else "alerts"
    content = f"{entry.alerts:,} {noun} joined the investigation; the agent is told of them"
    metadata = {"alerts": entry.alerts, "number": entry.number}
    yield context.event(f"joined.{entry.number}", "alerts_joined", "completed", content, metadata)


def _end_event(entry: entries.ExecutionEnded, context: timeline_events.Context) -> Iterator[timeline_events.Event]:
    if entry.error:
        yield context.event(
            "end", "error", timeline_events.closed_as(entry.outcome), entry.error, {"outcome": entry.outcome}
        )


KINDS: dict[type[Any], kind.Kind[Any]] = {
    entries.ExecutionStarted: kind.Kind(
        order=lambda levels, entry: levels.begin(
            nesting.execution(entry.execution),
            within=nesting.stage(entry.run, entry.stage) if entry.stage else nesting.run(entry.run),
        ),
        effect=_add,
        messages=lambda entry: entry.messages,
        model_calls=None,
        tool_calls=kind.nothing,
        timeline=kind.timeline_with(_left_out_event),
    ),
    entries.ServersAway: kind.Kind(
        order=kind.require_execution,
        effect=_apply,
        messages=kind.nothing,
        model_calls=None,
        tool_calls=kind.nothing,
        timeline=kind.NO_EVENTS,
    ),
    entries.AlertJoined: kind.Kind(
        order=kind.require_execution,
        effect=_tell,
        messages=lambda entry: entry.messages,
        model_calls=None,
        tool_calls=kind.nothing,
        timeline=kind.timeline_with(_joined_event),
    ),
    entries.ExecutionEnded: kind.Kind(
        order=lambda levels, entry: levels.end(nesting.execution(entry.execution)),
        effect=_apply,
        messages=kind.nothing,
        model_calls=None,
        tool_calls=kind.nothing,
        timeline=kind.Timeline(
            events=_end_event,
            closes=lambda entry: entry.outcome,
            last_text=lambda entry: "final_analysis" if entry.outcome == "Completed" else "llm_response",
        ),
    ),
}

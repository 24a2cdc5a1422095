"""The kinds of entries about tool calls: their results, and the summary of one that is long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tarsy.transcript import entries, full_results, messages, record, timeline_events, tool_names
from tarsy.transcript.kinds import kind

SUMMARY = "[a summary of {length:,} characters; {advice}]\n{text}"
"""The text that replaces a result with a summary."""
ASK_FOR_LESS = "to read their own words, ask for less of them"
LOOK_INTO = "result.search and result.read have their own words: call {call}"
_SUMMARY_MESSAGES = 2
"""The number of messages in a request for a summary: the instructions, and the result."""


def _add(execution: record.Execution, entry: entries.ToolsAnswered) -> None:
    execution.log.extend(_results(entry))
    for run in entry.runs:
        if run.excerpt is not None:
            execution.excerpts[run.call.id] = run.excerpt
        if run.length is not None and (run.excerpt is None or run.length > run.excerpt.length):
            execution.cut[run.call.id] = run.length
    execution.due |= {run.call.id: run.summary for run in entry.runs if run.summary is not None}


def _add_summary(execution: record.Execution, entry: entries.ToolSummarised) -> None:
    """Replace the result in the conversation with its summary, if there is one."""
    execution.retries += entry.call.retries
    due = execution.due.pop(entry.call_id)
    if not entry.text:
        return
    index, result = execution.result(entry.call_id)
    excerpt = execution.excerpts.get(entry.call_id)
    length = execution.cut.get(entry.call_id, excerpt.length if excerpt else len(result.text))
    if length <= due.reads:
        execution.cut.pop(entry.call_id, None)
    execution.summarised[entry.call_id] = result.text
    advice = ASK_FOR_LESS
    if execution.looks_into_results:
        advice = LOOK_INTO.format(call=f"{entry.execution}/{entry.call_id}")
    execution.log[index] = replace(result, text=SUMMARY.format(length=length, advice=advice, text=entry.text))


def _results(entry: entries.ToolsAnswered) -> kind.Additions:
    return tuple(run.result for run in entry.runs)


def metadata(call: messages.ToolCall) -> dict[str, Any]:
    """Return the metadata of a tool call's events."""
    return tool_names.fields(call.name) | {"arguments": call.arguments}


def _result_events(entry: entries.ToolsAnswered, context: timeline_events.Context) -> Iterator[timeline_events.Event]:
    for run in entry.runs:
        status: timeline_events.Status = "failed" if run.result.failed else "completed"
        details = metadata(run.call) | ({"in_doubt": True} if run.result.in_doubt else {})
        yield context.event(f"{run.call.id}.call", "mcp_tool_call", status, "", details)
        if deleted := full_results.deleted(context.logged, run):
            details |= {"full_result_deleted": deleted.message}
        if run.excerpt:
            spans = [[span.first, span.last] for span in run.excerpt.spans]
            of_whole = {"lines": run.excerpt.lines, "length": run.excerpt.length, "shown": spans}
            details = details | {"excerpt": of_whole}
        yield context.event(f"{run.call.id}.result", "tool_result", status, run.result.text, details)


def _summary_event(entry: entries.ToolSummarised, context: timeline_events.Context) -> Iterator[timeline_events.Event]:
    details = tool_names.fields(entry.tool) | {"provider": entry.call.provider, "model": entry.call.model}
    status: timeline_events.Status = "completed" if entry.failure is None else "failed"
    content = entry.text if entry.failure is None else entry.failure.text
    yield context.event(f"{entry.call_id}.summary", "mcp_tool_summary", status, content, details)


KINDS: dict[type[Any], kind.Kind[Any]] = {
    entries.ToolsAnswered: kind.Kind(
        order=kind.require_execution,
        effect=_add,
        messages=_results,
        model_calls=None,
        tool_calls=lambda entry: entry.runs,
        timeline=kind.timeline_with(_result_events),
    ),
    entries.ToolSummarised: kind.Kind(
        order=kind.require_execution,
        effect=_add_summary,
        messages=kind.nothing,
        model_calls=kind.ModelCalls(
            call=lambda entry: entry.call,
            reply=lambda entry: entry.failure or messages.Message(role="assistant", text=entry.text),
            context=lambda *_: _SUMMARY_MESSAGES,
        ),
        tool_calls=kind.nothing,
        timeline=kind.timeline_with(_summary_event),
    ),
}

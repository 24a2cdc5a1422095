"""The kinds of entries about a run: its question, its selection of tools, its runbook, its recheck, its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tarsy.resources import investigations
from tarsy.transcript import entries, nesting, record, timeline_events
from tarsy.transcript.kinds import kind

_RUNBOOKS: dict[entries.RunbookOrigin, str] = {
    "url": "the runbook of the alert",
    "default": "the default runbook of the platform file",
    "builtin": "the built-in runbook",
}


def _read_once(levels: nesting.Nesting, entry: entries.RunbookRead) -> None:
    levels.begin(nesting.runbook(entry.run), within=nesting.run(entry.run))
    levels.end(nesting.runbook(entry.run))


def _recheck_once(levels: nesting.Nesting, entry: entries.Rechecked) -> None:
    levels.begin(nesting.recheck(entry.run), within=nesting.run(entry.run))
    levels.end(nesting.recheck(entry.run))


def _apply(so_far: record.Record, entry: entries.OfRun) -> None:
    match entry:
        case entries.RunStarted():
            so_far.runs[entry.run] = record.Run(question=entry.question)
        case entries.ToolsSelected():
            so_far.mcp = entry.mcp
        case entries.RunbookRead():
            so_far.runs[entry.run].runbook = entry
        case entries.Rechecked():
            so_far.runs[entry.run].rechecked = entry
        case entries.RunEnded():
            so_far.runs[entry.run].ended = entry


def selection(mcp: investigations.MCP) -> str:
    """Return the alert's tool selection in words."""
    parts = []
    if mcp.servers is not None:
        named = [
            server.name + (f" ({', '.join(server.tools)})" if server.tools is not None else "")
            for server in mcp.servers
        ]
        parts.append(f"MCP servers: {', '.join(named) or 'none'}")
    if mcp.tools is not None and mcp.tools.allow is not None:
        parts.append(f"allowed tools: {', '.join(mcp.tools.allow) or 'none'}")
    if mcp.tools is not None and mcp.tools.deny:
        parts.append(f"denied tools: {', '.join(mcp.tools.deny)}")
    if off := [tool for tool, is_on in (mcp.native_tools or {}).items() if not is_on]:
        parts.append(f"native tools switched off: {', '.join(off)}")
    return "; ".join(parts) or "the alert does not select tools"


def _runbook_event(entry: entries.RunbookRead, context: timeline_events.Context) -> Iterator[timeline_events.Event]:
    metadata = {"url": entry.url, "origin": entry.origin, "characters": len(entry.text)}
    description = _RUNBOOKS[entry.origin]
    if entry.problem:
        content = f"The runbook cannot be read. The agents get {description} instead: {entry.problem}"
        yield context.event("runbook", "error", "failed", content, {"kind": "runbook"} | metadata)
    else:
        yield context.event("runbook", "runbook", "completed", f"The agents get {description}.", metadata)


def _recheck_event(entry: entries.Rechecked, context: timeline_events.Context) -> Iterator[timeline_events.Event]:
    metadata = {"former": entry.former, "name": entry.name, "calls": list(entry.calls)}
    if entry.problem:
        content = f"Not compared with {entry.name}, which ended at {entry.ended}: {entry.problem}."
        yield context.event("recheck", "recheck", "completed", content, metadata)
        return
    differences = len(entry.differences) + entry.more
    content = f"{len(entry.calls)} calls of {entry.name} were made again, and "
    content += f"{differences:,} differences were found:" if differences else "their results are alike."
    if entry.more:
        content += f" the first {len(entry.differences)} are"
    yield context.event(
        "recheck", "recheck", "completed", "\n".join([content, *(f"- {line}" for line in entry.differences)]), metadata
    )


def _failure_event(entry: entries.RunEnded, context: timeline_events.Context) -> Iterator[timeline_events.Event]:
    """Yield an event for the failure of a run, unless its message only repeats the errors of its agents."""
    if entry.ending in ("Failed", "TimedOut") and entry.reason not in ("StagesFailed", "NotAnswered"):
        status: timeline_events.Status = "timed_out" if entry.ending == "TimedOut" else "failed"
        yield context.event("end", "error", status, entry.message, {"reason": entry.reason})


KINDS: dict[type[Any], kind.Kind[Any]] = {
    entries.RunStarted: kind.Kind(
        order=lambda levels, entry: levels.begin(nesting.run(entry.run)),
        effect=_apply,
        messages=kind.nothing,
        model_calls=None,
        tool_calls=kind.nothing,
        timeline=kind.timeline_with(
            lambda entry, context: [
                context.event("question", "user_question", "completed", entry.question, {"run": entry.run})
            ]
        ),
    ),
    entries.ToolsSelected: kind.Kind(
        order=lambda levels, entry: levels.require(nesting.run(entry.run)),
        effect=_apply,
        messages=kind.nothing,
        model_calls=None,
        tool_calls=kind.nothing,
        timeline=kind.timeline_with(
            lambda entry, context: [
                context.event(
                    "mcp",
                    "mcp_selection",
                    "completed",
                    selection(entry.mcp),
                    entry.mcp.model_dump(mode="json", exclude_none=True),
                )
            ]
        ),
    ),
    entries.RunbookRead: kind.Kind(
        order=_read_once,
        effect=_apply,
        messages=kind.nothing,
        model_calls=None,
        tool_calls=kind.nothing,
        timeline=kind.timeline_with(_runbook_event),
    ),
    entries.Rechecked: kind.Kind(
        order=_recheck_once,
        effect=_apply,
        messages=kind.nothing,
        model_calls=None,
        tool_calls=kind.nothing,
        timeline=kind.timeline_with(_recheck_event),
    ),
    entries.RunEnded: kind.Kind(
        order=lambda levels, entry: levels.end(nesting.run(entry.run)),
        effect=_apply,
        messages=kind.nothing,
        model_calls=None,
        tool_calls=kind.nothing,
        timeline=kind.timeline_with(_failure_event),
    ),
}

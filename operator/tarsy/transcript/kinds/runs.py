"""The kinds of entries about a run: its question, its selection of tools, its runbook, its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tarsy.resources import investigations
from tarsy.transcript import entries, nesting, record, timeline_events
from tarsy.transcript.kinds import kind

_RUNBOOKS: dict[entries.RunbookOrigin, str] = {
    "url": "the one that the alert names",
    "default": "the one of the platform file",
    "builtin": "the one that is built in",
}


def _begin(levels: nesting.Nesting, entry: entries.RunStarted) -> None:
    levels.begin(nesting.run(entry.run))


def _require(levels: nesting.Nesting, entry: entries.ToolsSelected) -> None:
    levels.require(nesting.run(entry.run))


def _read_once(levels: nesting.Nesting, entry: entries.RunbookRead) -> None:
    levels.begin(nesting.runbook(entry.run), within=nesting.run(entry.run))
    levels.end(nesting.runbook(entry.run))


def _end(levels: nesting.Nesting, entry: entries.RunEnded) -> None:
    levels.end(nesting.run(entry.run))


def _add_run(so_far: record.Record, entry: entries.RunStarted) -> None:
    so_far.runs[entry.run] = record.Run(question=entry.question)


def _add_selection(so_far: record.Record, entry: entries.ToolsSelected) -> None:
    so_far.mcp = entry.mcp


def _add_runbook(so_far: record.Record, entry: entries.RunbookRead) -> None:
    so_far.runs[entry.run].runbook = entry


def _add_end(so_far: record.Record, entry: entries.RunEnded) -> None:
    so_far.runs[entry.run].ended = entry


def _question(entry: entries.RunStarted, context: timeline_events.Context) -> Iterator[timeline_events.Event]:
    yield context.event("question", "user_question", "completed", entry.question, {"run": entry.run})


def _selected(entry: entries.ToolsSelected, context: timeline_events.Context) -> Iterator[timeline_events.Event]:
    metadata = entry.mcp.model_dump(mode="json", exclude_none=True)
    yield context.event("mcp", "mcp_selection", "completed", selection(entry.mcp), metadata)


def selection(mcp: investigations.MCP) -> str:
    """Return the alert's tool selection in words."""
    parts = []
    if mcp.servers is not None:
        named = [
            server.name + (f" ({', '.join(server.tools)})" if server.tools is not None else "")
            for server in mcp.servers
        ]
        parts.append(f"its agents have of MCP servers: {', '.join(named) or 'none'}")
    if mcp.tools is not None and mcp.tools.allow is not None:
        parts.append(f"of tools only: {', '.join(mcp.tools.allow) or 'none'}")
    if mcp.tools is not None and mcp.tools.deny:
        parts.append(f"not of tools: {', '.join(mcp.tools.deny)}")
    if off := [tool for tool, is_on in (mcp.native_tools or {}).items() if not is_on]:
        parts.append(f"not of providers' own tools: {', '.join(off)}")
    return "; ".join(parts) or "the alert says nothing of its agents' tools"


def _runbook(entry: entries.RunbookRead, context: timeline_events.Context) -> Iterator[timeline_events.Event]:
    metadata = {"url": entry.url, "origin": entry.origin, "characters": len(entry.text)}
    description = _RUNBOOKS[entry.origin]
    if entry.problem:
        content = f"The runbook cannot be read, {description} stands for it: {entry.problem}"
        yield context.event("runbook", "error", "failed", content, {"kind": "runbook"} | metadata)
    else:
        yield context.event("runbook", "runbook", "completed", f"The runbook is {description}.", metadata)


def _ended(entry: entries.RunEnded, context: timeline_events.Context) -> Iterator[timeline_events.Event]:
    """Yield the failure of a run, unless its message only says again what its agents' errors said."""
    if entry.ending in ("Failed", "TimedOut") and entry.reason not in ("StagesFailed", "NotAnswered"):
        status: timeline_events.Status = "timed_out" if entry.ending == "TimedOut" else "failed"
        yield context.event("end", "error", status, entry.message, {"reason": entry.reason})


KINDS: dict[type[Any], kind.Kind[Any]] = {
    entries.RunStarted: kind.Kind(
        order=_begin,
        effect=_add_run,
        messages=kind.nothing,
        model_calls=None,
        tool_calls=kind.nothing,
        timeline=kind.timeline_with(_question),
    ),
    entries.ToolsSelected: kind.Kind(
        order=_require,
        effect=_add_selection,
        messages=kind.nothing,
        model_calls=None,
        tool_calls=kind.nothing,
        timeline=kind.timeline_with(_selected),
    ),
    entries.RunbookRead: kind.Kind(
        order=_read_once,
        effect=_add_runbook,
        messages=kind.nothing,
        model_calls=None,
        tool_calls=kind.nothing,
        timeline=kind.timeline_with(_runbook),
    ),
    entries.RunEnded: kind.Kind(
        order=_end,
        effect=_add_end,
        messages=kind.nothing,
        model_calls=None,
        tool_calls=kind.nothing,
        timeline=kind.timeline_with(_ended),
    ),
}

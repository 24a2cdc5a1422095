"""The timeline: what happened, event by event, for people. A pure function of the log.

An event's id is known before what it tells of is committed, so that a stream of it can carry the same one: the
execution, the turn (which of its model calls) and the place in that turn. An event that is told again under its id has
changed; the one with the higher `seq` counts.

A tool call streams from the answer that asks for it to its result; an end closes what still streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from tarsy.resources import chains, investigations
from tarsy.transcript import entries, messages, react, record

Type = Literal[
    "llm_thinking",
    "llm_response",
    "llm_tool_call",
    "mcp_tool_call",
    "tool_result",
    "mcp_tool_summary",
    "final_analysis",
    "executive_summary",
    "user_question",
    "mcp_selection",
    "runbook",
    "code_execution",
    "google_search_result",
    "url_context_result",
    "web_search_result",
    "provider_fallback",
    "native_tools_left_out",
    "context_compacted",
    "model_retry",
    "error",
    "resumed",
]
Status = Literal["streaming", "completed", "failed", "cancelled", "timed_out"]

_CLOSED_AS: dict[entries.Outcome, Status] = {"TimedOut": "timed_out", "Cancelled": "cancelled"}
"""How an end closes what streams; as failed where it is not here."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event, as it stands after entry `seq`."""

    id: str
    """Unique in the investigation."""
    seq: int
    """The entry that brought its last change."""
    created_seq: int
    """The entry that it began with."""
    type: Type
    status: Status
    stage: str
    """"" where it is of no stage."""
    execution: str
    """"" where it is of no execution."""
    content: str
    metadata: dict[str, Any] = field(default_factory=dict)
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The kind of an execution, and its strategy."""

    kind: str
    strategy: str


def fold(
    log: Sequence[entries.Logged],
    *,
    claims: Mapping[int, int] | None = None,
    executions: Mapping[str, Kind] | None = None,
) -> list[Event]:
    """The events of these entries in their newest form, by `seq` and in an entry by their places.

    An entry that is about calls needs the answer with these, and one that brings an answer the one before it; `claims`
    are those of entries that are not in `log`, by their numbers: a takeover shows between neighbours. `executions` are
    those whose starts are not in `log`.
    """
    kinds = dict(executions or {}) | {
        logged.execution: Kind(kind=logged.entry.kind, strategy=logged.entry.agent.strategy)
        for logged in log
        if isinstance(logged.entry, entries.ExecutionStarted) and logged.entry.agent
    }
    claims_by_seq = {**(claims or {}), **{logged.seq: logged.claim for logged in log}}
    events: dict[str, Event] = {}
    streaming: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    for logged in log:
        begins = isinstance(logged.entry, entries.RunStarted)  # its claim is the one that it waits for
        if not begins and logged.claim > claims_by_seq.get(logged.seq - 1, logged.claim):
            events |= _by_id([_resumed(logged)])
        changed = _by_id(_events(logged, kinds.get(logged.execution, _AGENT)))
        if outcome := _closes(logged.entry):
            still = (events[identity] for identity in streaming.pop(logged.execution, ()))
            changed |= _by_id(_closed(event, outcome, logged) for event in still)
        if (last := texts.get(logged.execution)) and (kind := _turned_out(events[last], logged.entry)):
            changed = {last: replace(events[last], type=kind, seq=logged.seq, updated_at=logged.at)} | changed
        for event in changed.values():
            if event.type in _TEXTS:
                texts[event.execution] = event.id
            before = events.pop(event.id, None)  # popped, so that what changed last stands last
            if before:
                event = replace(event, created_at=before.created_at, created_seq=before.created_seq)
            events[event.id] = event
            if event.status == "streaming":
                streaming.setdefault(event.execution, []).append(event.id)
            elif event.id in streaming.get(event.execution, ()):
                streaming[event.execution].remove(event.id)
    return sorted(events.values(), key=lambda event: event.seq)


def page(events: Sequence[Event], *, after: int, last: int, limit: int) -> tuple[list[Event], int]:
    """Those that changed behind entry `after` and up to `last`, `limit` of them at most, and the entry that they reach.

    No page ends inside an entry, so the events of the first entry are all in it, however many they are.
    """
    page_events = [event for event in events if after < event.seq <= last]
    if len(page_events) <= limit:
        return page_events, last
    cut = page_events[limit].seq
    if cut == page_events[0].seq:
        cut_events = [event for event in page_events if event.seq == cut]
        return cut_events, cut
    page_events = [event for event in page_events if event.seq < cut]
    return page_events, cut - 1


def call_id(execution: str, call: messages.ToolCall) -> str:
    """The id of a tool call's event."""
    return f"{execution}.{call.id}.call"


def summary_id(execution: str, call_id: str) -> str:
    """The id of the event of the summary of a tool call's result."""
    return f"{execution}.{call_id}.summary"


def _by_id(events: Iterable[Event]) -> dict[str, Event]:
    return {event.id: event for event in events}


_AGENT = Kind(kind="agent", strategy="native-thinking")


_TEXTS = ("llm_response", "final_analysis")
_DAY = 24 * 3600.0


def _turned_out(last: Event, entry: entries.Entry | entries.Unreadable) -> Type | None:
    """Return the last text of an execution as `entry` reveals it, if it was reported as something else.

    A text before a further request, or before a failure, was no conclusion; the last text of a completed execution was.
    """
    match entry:
        case entries.ExecutionEnded(outcome="Completed"):
            kind: Type = "final_analysis"
        case entries.Answered() | entries.Unanswered() | entries.FellBack() | entries.ExecutionEnded():
            kind = "llm_response"
        case _:
            return None
    return kind if kind != last.type else None


def _events(logged: entries.Logged, kind: Kind) -> Iterator[Event]:
    """Yield the events of an entry itself, in an execution of that kind."""
    new = _maker(logged)
    match logged.entry:
        case entries.RunStarted() | entries.ToolsSelected() | entries.RunbookRead() as entry:
            yield _of_run(entry, new)
        case entries.ExecutionStarted(agent=agent) if agent and agent.native.left_out:
            yield _left_out("start", agent.provider, agent.native.left_out, new)
        case entries.Answered() as entry:
            yield from _answered(entry, new, kind)
        case entries.Unanswered() as entry:
            failure, call = entry.failure, entry.call
            metadata = {"kind": failure.kind, "provider": call.provider, "model": call.model}
            yield new(f"{entry.turn}.error", "error", "failed", failure.text, metadata)
        case entries.FellBack() | entries.ContextCompacted() | entries.ToolSummarised() as entry:
            yield _changed(entry, new)
        case entries.ModelRetried() as entry:
            yield _retried(entry, logged, new)
        case entries.ToolsAnswered() as entry:
            for run in entry.runs:
                yield from _ran(run, new)
        case entries.ExecutionEnded(error=error) as entry if error:
            yield new("end", "error", _CLOSED_AS.get(entry.outcome, "failed"), error, {"outcome": entry.outcome})
        case entries.RunEnded(ending=("Failed" | "TimedOut") as ending) as entry if not _is_sum_of_stages(entry):
            status: Status = "timed_out" if ending == "TimedOut" else "failed"
            yield new("end", "error", status, entry.message, {"reason": entry.reason})
        case entries.Unreadable() as entry:
            content = f"entry {logged.seq} cannot be read by this version: {entry.problem}"
            yield new(f"unreadable-{logged.seq}", "error", "failed", content, {"kind": entry.kind})


_New = Callable[[str, Type, Status, str, dict[str, Any]], Event]
"""Makes an event of one entry: the end of its id, type, status, content, metadata."""


def _maker(logged: entries.Logged) -> _New:
    def new(key: str, type: Type, status: Status, content: str, metadata: dict[str, Any]) -> Event:  # noqa: A002 - its name
        return Event(
            id=f"{logged.execution or f'run-{logged.run}'}.{key}",
            seq=logged.seq,
            created_seq=logged.seq,
            type=type,
            status=status,
            stage=logged.stage,
            execution=logged.execution,
            content=content,
            metadata=metadata,
            created_at=logged.at,
            updated_at=logged.at,
        )

    return new


def _answered(entry: entries.Answered, new: _New, kind: Kind) -> Iterator[Event]:
    answer = entry.messages[-1]
    metadata = {"provider": entry.call.provider, "model": entry.call.model}
    if answer.thinking:
        yield new(
            f"{entry.turn}.thinking", "llm_thinking", "completed", answer.thinking, {"source": "native"} | metadata
        )
    text, is_conclusion = answer.text, not answer.calls
    if record.is_react(kind.strategy):
        reading = react.read(answer.text)
        if reading.problem:  # what it wrote is told as it stands
            is_conclusion = False
        else:
            text = reading.answer if is_conclusion else ""
        if reading.thought and not reading.problem:
            yield new(
                f"{entry.turn}.thought", "llm_thinking", "completed", reading.thought, {"source": "react"} | metadata
            )
    for index, result in enumerate(answer.native):
        details = result.details | metadata
        yield new(f"{entry.turn}.native-{index}", _NATIVE[result.tool], "completed", result.content, details)
    if text:
        yield new(f"{entry.turn}.text", _type_of(kind, is_conclusion=is_conclusion), "completed", text, metadata)
    for call in answer.calls:
        yield new(f"{call.id}.asked", "llm_tool_call", "completed", "", _of_call(call))
        yield new(f"{call.id}.call", "mcp_tool_call", "streaming", "", _of_call(call))


_RUNBOOKS: dict[entries.RunbookOrigin, str] = {
    "url": "the one that the alert names",
    "default": "the one of the platform file",
    "builtin": "the one that is built in",
}


def _of_run(entry: entries.RunStarted | entries.ToolsSelected | entries.RunbookRead, new: _New) -> Event:
    """Yield the events of a run's start: the question, the tool selection, the runbook."""
    match entry:
        case entries.RunStarted():
            return new("question", "user_question", "completed", entry.question, {"run": entry.run})
        case entries.ToolsSelected():
            return _selected(entry.mcp, new)
        case entries.RunbookRead():
            return _runbook(entry, new)


def _runbook(entry: entries.RunbookRead, new: _New) -> Event:
    metadata = {"url": entry.url, "origin": entry.origin, "characters": len(entry.text)}
    description = _RUNBOOKS[entry.origin]
    if entry.problem:
        content = f"The runbook cannot be read, {description} stands for it: {entry.problem}"
        return new("runbook", "error", "failed", content, {"kind": "runbook"} | metadata)
    return new("runbook", "runbook", "completed", f"The runbook is {description}.", metadata)


_NATIVE: dict[chains.NativeTool, Type] = {
    "code_execution": "code_execution",
    "google_search": "google_search_result",
    "url_context": "url_context_result",
    "web_search": "web_search_result",
}


def _changed(entry: entries.FellBack | entries.ContextCompacted | entries.ToolSummarised, new: _New) -> Event:
    """Yield the events of a change of the requests or of the provider."""
    match entry:
        case entries.FellBack():
            return _fell_back(entry, new)
        case entries.ContextCompacted():
            return _compacted(entry, new)
        case entries.ToolSummarised():
            return _summarised(entry, new)


def _fell_back(entry: entries.FellBack, new: _New) -> Event:
    failure = entry.failure
    metadata = {"from": entry.call.provider, "to": entry.provider, "kind": failure.kind, "code": failure.code}
    content = f"{entry.provider} is asked from here on: {failure.text}"
    return new(f"{entry.turn}.fallback-{entry.provider}", "provider_fallback", "completed", content, metadata)


def _compacted(entry: entries.ContextCompacted, new: _New) -> Event:
    metadata = {
        "results": list(entry.results),
        "cut": list(entry.cut),
        "shown": entry.shown,
        "tokens": entry.tokens,
        "limit": entry.limit,
    }
    parts = []
    if entry.results:
        parts.append(f"older results of tools that are a line each from here on: {len(entry.results)}")
    if entry.cut:
        parts.append(f"results of the last turn that are cut to {entry.shown} characters: {len(entry.cut)}")
    if entry.failure:
        parts.append(f"the request was refused: {entry.failure.text}")
    first = (*entry.results, *entry.cut, "")[0]
    key = f"{entry.turn}.compacted-{first}-{entry.shown}"  # what is cut may be cut shorter, for the same request
    return new(key, "context_compacted", "completed", "; ".join(parts), metadata)


def _retried(entry: entries.ModelRetried, logged: entries.Logged, new: _New) -> Event:
    # What stands in a row may be no time that there is; a model call waits for less than a day.
    wait = timedelta(seconds=min(entry.seconds, _DAY)) if entry.seconds > 0 else timedelta(0)
    metadata = {
        "provider": entry.provider,
        "model": entry.model,
        "code": entry.code,
        "attempt": entry.attempt,
        "again_at": (logged.at + wait).isoformat(),
    }
    # By its entry: the worker that takes over begins to count attempts anew.
    return new(f"{entry.turn}.retry-{logged.seq}", "model_retry", "completed", entry.error, metadata)


def _selected(mcp: investigations.MCP, new: _New) -> Event:
    return new("mcp", "mcp_selection", "completed", selection(mcp), mcp.model_dump(mode="json", exclude_none=True))


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


def _left_out(key: str, provider: str, tools: Sequence[chains.NativeTool], new: _New) -> Event:
    content = f"{provider} is not offered {', '.join(tools)}: it takes no native tools beside those of MCP servers"
    metadata = {"provider": provider, "tools": list(tools)}
    return new(f"{key}.native", "native_tools_left_out", "completed", content, metadata)


def _type_of(kind: Kind, *, is_conclusion: bool) -> Type:
    if not is_conclusion:
        return "llm_response"
    return "executive_summary" if kind.kind == "summary" else "final_analysis"


def _ran(run: entries.ToolRun, new: _New) -> Iterator[Event]:
    status: Status = "failed" if run.result.failed else "completed"
    metadata = _of_call(run.call) | ({"in_doubt": True} if run.result.in_doubt else {})
    yield new(f"{run.call.id}.call", "mcp_tool_call", status, "", metadata)
    yield new(f"{run.call.id}.result", "tool_result", status, run.result.text, metadata)


def _summarised(entry: entries.ToolSummarised, new: _New) -> Event:
    metadata = _named(entry.tool) | {"provider": entry.call.provider, "model": entry.call.model}
    status: Status = "completed" if entry.failure is None else "failed"
    content = entry.text if entry.failure is None else entry.failure.text
    return new(f"{entry.call_id}.summary", "mcp_tool_summary", status, content, metadata)


def _of_call(call: messages.ToolCall) -> dict[str, Any]:
    return {**_named(call.name), "arguments": call.arguments}


def _named(name: str) -> dict[str, Any]:
    """`server.tool` in two."""
    server, dot, tool = name.partition(".")
    return {"server_name": server if dot else "", "tool_name": tool if dot else name}


def _closes(entry: entries.Entry | entries.Unreadable) -> entries.Outcome | None:
    """As what an entry closes the calls of its execution that still stream, if it does.

    A model is asked again only once its calls have results: one that has none then has one that cannot be read.
    """
    match entry:
        case entries.ExecutionEnded():
            return entry.outcome
        case entries.Answered() | entries.Unanswered():
            return "Failed"
        case _:
            return None


def _closed(event: Event, outcome: entries.Outcome, logged: entries.Logged) -> Event:
    status = _CLOSED_AS.get(outcome, "failed")
    return replace(event, seq=logged.seq, status=status, updated_at=logged.at)


def _resumed(logged: entries.Logged) -> Event:
    return Event(
        id=f"run-{logged.run}.resumed-{logged.claim}",
        seq=logged.seq,
        created_seq=logged.seq,
        type="resumed",
        status="completed",
        stage="",
        execution="",
        content="it went on under another claim, after a takeover or a rest",
        metadata={"claim": logged.claim},
        created_at=logged.at,
        updated_at=logged.at,
    )


def _is_sum_of_stages(entry: entries.RunEnded) -> bool:
    """Whether its message only says again what its agents' errors said."""
    return entry.reason in ("StagesFailed", "NotAnswered")

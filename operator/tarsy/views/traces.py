"""The trace of an investigation: a line for each model call and tool call, and each call with its full request.

No request is stored: `agent.requests` builds it again from the log, as it built it for the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from tarsy.agent import requests
from tarsy.store.reads import trace_index, transcript_pages
from tarsy.transcript import entries, full_results, ports, record, tool_names
from tarsy.transcript.kinds import registry
from tarsy.views import base, executions, transcripts

_JSON = ["object", "array", "string", "number", "boolean", "null"]


class Line(base.View):
    """One call."""

    n: int
    """Its number among the calls of its type, from 1; it never changes."""
    type: transcript_pages.CallType
    seq: int
    """The number of the log's entry that records it."""
    run: int
    stage: str
    execution: str
    execution_name: str
    """The name of its execution among its siblings."""
    tool_call_id: str
    """The id of a tool call; of a model call the id of the tool call whose result it summarises, or ""."""
    provider: str | None = None
    """The provider of a model call."""
    model: str | None = None
    server_name: str | None = None
    """The server of a tool call."""
    tool_name: str | None = None
    seconds: float
    input_tokens: int | None = None
    """The tokens of a model call, as its provider counted them."""
    output_tokens: int | None = None
    thinking_tokens: int | None = None
    total_tokens: int | None = None
    cost: base.Cost | None = None
    """A decimal number as text; None if the provider has no price."""
    outcome: Literal["ok", "failed"]
    failure: str | None = None
    """timeout, rejected or fatal of a model call; error or in_doubt of a tool call."""
    failure_code: str | None = None
    """The provider's name for the failure, such as an HTTP status; "" if it has none."""
    failed_attempts: int
    """The number of its requests that failed."""
    full_result_deleted: transcripts.FullResultDeleted | None = None
    """The log has a part of a tool call's result, and its full text was deleted; else null."""
    created_at: datetime
    """The time of its commit."""


class Trace(base.View):
    """The calls that some entries of the log record."""

    calls: list[Line]
    """In the log's order."""
    last: int
    """The value of `after` for the next page."""
    more: bool
    """Whether there are more already."""


class Sent(base.View):
    """One message as the model was shown it."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    tool_calls: list[transcripts.Call]
    """The calls that it asked for before."""
    tool_call_id: str
    server_name: str
    tool_name: str
    failed: bool


class Request(base.View):
    """A request to a model, before its provider's protocol."""

    messages: list[Sent]
    """The whole conversation: compacted results are a line, summarised results are their summaries, and in ReAct
    results are part of the text."""
    tools: list[executions.OfferedTool]
    """The tools that were offered."""
    native_tools: list[str]
    """The provider's own tools that it could use."""
    final: bool
    """It was asked to conclude, without tools."""


class Answer(base.View):
    """The answer of a model."""

    text: str
    thinking: str
    tool_calls: list[transcripts.Call]
    native_results: list[transcripts.NativeResult]
    """The results of the provider's own tools."""


class Asked(transcripts.ModelCall):
    """One model call with its request and its answer."""

    execution_name: str
    agent: executions.Agent | None
    """The settings of its execution."""
    request: Request | None
    """The request; None if it cannot be built any more: `problem` has the reason."""
    problem: str
    answer: Answer | None


class Called(transcripts.ToolCall):
    """One tool call with its arguments and its whole result."""

    execution_name: str
    arguments_json: Annotated[Any, Field(json_schema_extra={"type": _JSON})]
    """The arguments, parsed; null if they are no JSON."""
    cut: bool
    """The model is shown less than the whole result; lines in `result` mark the parts that are left out."""
    whole: str | None
    """The whole of a result that was cut, masked; null if `result` is complete, or the rest was deleted or withheld."""
    summary: str | None
    """The summary that the model read instead of the result; null if it read the result."""
    asked_by: int
    """The number of the model call whose answer asked for it; 0 if unknown."""


class IndexRow(base.View):
    """A stage, an execution, a model call, a tool call or an event, without its texts."""

    id: str
    """`stage-<name>`, `execution-<id>`, `llm-<n>`, `tool-<n>` or `event-<seq>-<event>`; unique in a run."""
    type: trace_index.RowType
    event: trace_index.Event | None
    """The event of a row of this type: its execution goes on under another claim, a request is sent again, another
    provider is asked, the conversation is compacted, or MCP servers are away."""
    n: int | None
    """The number of a call among the calls of its type, as in `/trace`; null of a stage and of an execution."""
    seq: int
    """The number of the log's entry that starts a stage or an execution, or records a call."""
    run: int
    stage: str
    execution: str
    execution_name: str
    name: str
    """The name of a stage or an execution; `provider/model` of a model call, `server.tool` of a tool call. The name of
    a call is cut to 200 characters."""
    started_at: datetime | None
    """The start. A tool call begins here with the commit of the answer that asked for it, because the log has no starts
    of calls. Null for a skipped stage."""
    ended_at: datetime | None
    """The end; of a call the time of its commit. Null while it runs."""
    seconds: float | None
    outcome: str | None
    """The outcome of a stage or an execution, null while it runs; ok or failed of a call."""
    failed: bool
    failure: str | None
    """timeout, rejected or fatal of a model call; error or in_doubt of a tool call."""
    failure_code: str | None
    input_tokens: int | None
    """Tokens, those of a stage or an execution as of now."""
    output_tokens: int | None
    thinking_tokens: int | None
    total_tokens: int | None
    cost: base.Cost | None
    failed_attempts: int
    """The number of its requests that failed."""
    call_count: int
    """The number of an execution's calls as of now; 0 for all others."""
    tool_call_id: str
    """The id of a tool call, or of the one whose result a model call summarises; else ""."""
    note: str
    """The details of an event, such as the error or the next provider; else ""."""


class Index(base.View):
    """Some rows of the index of a trace."""

    rows: list[IndexRow]
    """By run, stage, execution and commit: each stage before its executions, each execution before its calls and
    events."""
    total: int
    """The number of rows that the filters leave."""
    offset: int
    """The number of rows before these."""
    upto: int
    """The entry of the log up to which it was read; the next page gives it back, so that no row moves."""
    begins_at: datetime | None
    """The start of the first stage or execution."""
    ends_at: datetime | None
    """The last commit."""
    run_count: int
    """The number of runs: the investigation itself and the questions."""
    model_call_count: int
    """The number of model calls of the run, whatever the filters leave; without a run, of all."""
    tool_call_count: int
    failed_call_count: int
    total_tokens: int
    """The tokens of the run's executions, as of now."""
    cost: base.Cost | None
    ended: bool
    """Whether no run goes on."""


class Matches(base.View):
    """The calls in some entries of the log that have a text in them."""

    model_call_numbers: list[int]
    """The numbers of model calls: in their answers, with thoughts and calls, or in their failures."""
    tool_call_numbers: list[int]
    """The numbers of tool calls: in their arguments or in their results, as far as the log has them."""
    last: int
    """The value of `after` to go on."""
    more: bool
    """Whether there are entries that were not searched."""


def lines(page: Iterable[transcript_pages.NumberedEntry], names: Mapping[str, str]) -> list[Line]:
    """Return the calls that these entries record; `names` are those of executions, by id."""
    return [line for numbered in page for line in _lines(numbered, names.get(numbered.logged.execution, ""))]


def _lines(numbered: transcript_pages.NumberedEntry, execution_name: str) -> list[Line]:
    if call := transcripts.model_call(numbered):
        return [
            Line(
                **call.model_dump(include={*Line.model_fields}),
                type="llm",
                execution_name=execution_name,
                outcome="failed" if call.failure else "ok",
                failed_attempts=len(call.failed_requests),
            )
        ]
    return [
        Line(
            **call.model_dump(include={*Line.model_fields}),
            type="tool",
            execution_name=execution_name,
            outcome="failed" if call.failed else "ok",
            failure=("in_doubt" if call.in_doubt else "error") if call.failed else None,
            failed_attempts=1 if call.failed else 0,
        )
        for call in transcripts.tool_calls(numbered)
    ]


def model_call(stored: transcript_pages.Call, *, investigation: str, full_result: str | None, mask: base.Mask) -> Asked:
    """Return a model call.

    The request for a summary also has the `investigation`'s name and the `full_result` of the tool call, if stored.
    """
    call, entry = transcripts.model_call(stored.entry), transcripts.call_entry(stored.entry.logged.entry)
    assert call  # noqa: S101 - `transcript_pages.call` finds no other entries
    assert entry  # noqa: S101 - the same
    request, problem = _request(stored.before, entry, investigation=investigation, full_result=full_result, mask=mask)
    starts = (logged.entry for logged in stored.before if isinstance(logged.entry, entries.ExecutionStarted))
    started = next(starts, None)
    message = transcripts.answer(entry)
    answer = Answer(
        text=message.text,
        thinking=message.thinking,
        tool_calls=transcripts.calls(message.calls),
        native_results=transcripts.native_results(message),
    )
    return Asked(
        **dict(call),
        execution_name=stored.name,
        agent=executions.agent(started.agent, mask=mask) if started else None,
        request=request,
        problem=problem,
        answer=None if call.failure else answer,
    )


def _request(
    before: Sequence[entries.Logged],
    entry: transcripts.CallEntry,
    *,
    investigation: str,
    full_result: str | None,
    mask: base.Mask,
) -> tuple[Request | None, str]:
    """Return a call's request, built from its execution's log before it, or the reason why it cannot be built."""
    for logged in before:
        if isinstance(logged.entry, entries.Unreadable):
            return None, f"entry {logged.seq} before it cannot be read by this version of TARSy: {logged.entry.problem}"
    try:
        execution = _execution(before)
        if isinstance(entry, entries.ToolSummarised):
            is_cut = entry.call_id in execution.cut and entry.call_id not in execution.excerpts
            shown = execution.text_of_result(entry.call_id)
            if is_cut and full_result is None and full_results.was_stored(shown, is_excerpt=False):
                return None, _deleted(before, entry.call_id).message
            request = requests.asked_for_summary(execution, entry, investigation=investigation, full_result=full_result)
            return _visible_request(request, final=False, mask=mask), ""
        ask, request = requests.request_of(execution, entry)
    except (LookupError, StopIteration) as error:
        return None, f"the log before it does not add up: {type(error).__name__} {error}"
    return _visible_request(request, final=ask.final, mask=mask), ""


def _deleted(before: Sequence[entries.Logged], call_id: str) -> full_results.Deleted:
    """Return the deletion of the full text of one of the results in these entries."""
    (logged, run), *_ = (
        (logged, run)
        for logged in before
        if not isinstance(logged.entry, entries.Unreadable)
        for run in registry.tool_runs(logged.entry)
        if run.call.id == call_id
    )
    return full_results.Deleted(at=logged.results_deleted_at, length=run.length or 0)


def _execution(before: Sequence[entries.Logged]) -> record.Execution:
    """Fold the entries of an execution; raises a LookupError if its start is not the first of them."""
    first = before[0].entry
    if not isinstance(first, entries.ExecutionStarted) or first.agent is None:
        raise LookupError("its execution has not begun")
    execution = record.begun(first)
    for logged in before[1:]:
        if not isinstance(logged.entry, entries.Unreadable):
            registry.add(execution, logged.entry)
    return execution


def _visible_request(request: ports.Request, *, final: bool, mask: base.Mask) -> Request:
    return Request(
        messages=[
            Sent(
                role=message.role,
                text=transcripts.message_text(message, mask=mask),
                tool_calls=transcripts.calls(message.calls),
                tool_call_id=message.call_id,
                **tool_names.fields(message.tool_name),
                failed=message.failed,
            )
            for message in request.messages
        ],
        tools=[executions.offered_tool(tool) for tool in request.tools],
        native_tools=list(request.native_tools),
        final=final,
    )


def tool_run(stored: transcript_pages.Call, *, number: int) -> entries.ToolRun:
    """Return the record of the tool call with this number, of those that an entry has."""
    return registry.tool_runs(stored.entry.logged.entry)[number - stored.entry.tool_calls - 1]


def stored_tool_call(stored: transcript_pages.Call, *, number: int) -> transcripts.ToolCall:
    """Return the tool call with this number, of those that an entry records."""
    return transcripts.tool_calls(stored.entry)[number - stored.entry.tool_calls - 1]


def tool_call(stored: transcript_pages.Call, *, number: int, full_result: str | None, summary: str | None) -> Called:
    """Return a tool call; `full_result` is its result if the log has less, `summary` the text that replaced it."""
    call = stored_tool_call(stored, number=number)
    logged, run = stored.entry.logged, tool_run(stored, number=number)
    length = run.length
    deleted = None
    if length is not None and full_result is None:
        was_stored = full_results.was_stored(run.result.text, is_excerpt=run.excerpt is not None)
        deleted = full_results.Deleted(at=logged.results_deleted_at, length=length) if was_stored else None
    return Called(
        **dict(call) | {"full_result_deleted": transcripts.full_result_deleted(deleted)},
        execution_name=stored.name,
        arguments_json=base.parsed_json(call.arguments or "{}"),
        cut=length is not None,
        whole=full_result,
        summary=summary,
        asked_by=stored.requested_by,
    )

"""The trace of an investigation: its model calls and tool calls, a line each, and each with all that was sent.

No request is stored: what a model was asked is made again from the log, by the function that made it for the model.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Response
from pydantic import Field

from tarsy.agent import requests
from tarsy.api.investigations import reads
from tarsy.auth import permissions
from tarsy.serve import answers, problems, strict
from tarsy.store.base import databases
from tarsy.store.reads import conversations
from tarsy.transcript import entries, messages, ports, record, tool_names
from tarsy.transcript.kinds import registry
from tarsy.views import shapes, transcripts

_JSON = ["object", "array", "string", "number", "boolean", "null"]
Number = Annotated[int, Path(ge=1, le=2**31 - 1, examples=[1], description="Its number in the trace.")]


class Line(shapes.Part):
    """One call."""

    n: int
    """Its number among the calls of its type, from 1; it never changes."""
    type: conversations.CallType
    seq: int
    """The entry of the log that tells of it."""
    run: int
    stage: str
    execution: str
    execution_name: str
    """The name of its execution among its siblings."""
    tool_call_id: str
    """The id of a tool call; of a model call the id of the tool call whose result it sums up, or ""."""
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
    cost: shapes.Cost | None = None
    """A decimal number as text; None where the provider has no price."""
    outcome: Literal["ok", "failed"]
    failure: str | None = None
    """timeout, rejected or fatal of a model call; error or in_doubt of a tool call."""
    failure_code: str | None = None
    """The provider's name for the failure, such as an HTTP status; "" if it has none."""
    failed_attempts: int
    """How many of its requests failed."""
    created_at: datetime
    """When it was committed."""


class Trace(shapes.Part):
    """The calls that some entries of the log tell of."""

    calls: list[Line]
    """In the log's order."""
    last: int
    """The value of `after` for the next page."""
    more: bool
    """Whether there are more already."""


class Sent(shapes.Part):
    """One message as the model was shown it."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    tool_calls: list[shapes.Call]
    """Calls that it asked for before."""
    tool_call_id: str
    server_name: str
    tool_name: str
    failed: bool


class Request(shapes.Part):
    """A request to a model, before its provider's protocol."""

    messages: list[Sent]
    """The whole conversation: results that had given way are a line, those that were summed up are their summaries, and
    in ReAct they stand in the text."""
    tools: list[shapes.OfferedTool]
    """Those that were offered."""
    native_tools: list[str]
    """The provider's own that it might use."""
    final: bool
    """It was asked to conclude, without tools."""


class Answer(shapes.Part):
    """The answer of a model."""

    text: str
    thinking: str
    tool_calls: list[shapes.Call]
    native_results: list[shapes.NativeResult]
    """The results of the provider's own tools."""


class Asked(shapes.ModelCall):
    """One model call: what was sent, and what came of it."""

    execution_name: str
    agent: shapes.Agent | None
    """The settings of its execution."""
    request: Request | None
    """None where it cannot be told any more: `problem` says why."""
    problem: str
    answer: Answer | None


class Called(shapes.ToolCall):
    """One tool call: what was sent, and what came of it."""

    execution_name: str
    arguments_json: Annotated[Any, Field(json_schema_extra={"type": _JSON})]
    """The arguments, parsed; null where they are no JSON."""
    cut: bool
    """The result has more than the model is shown of it; where a line says so, the rest is left out."""
    whole: str | None
    """All of a result that was cut, masked; null where `result` is all, or was cut before the whole was kept."""
    summary: str | None
    """The summary that the model read instead of the result; null if it read the result."""
    asked_by: int
    """The number of the model call whose answer asked for it; 0 where that cannot be told."""


def routes(database: databases.Database, may: permissions.Access, room: answers.Room) -> APIRouter:
    """An investigation's trace."""
    router = strict.router(prefix="/api/v1/investigations/{identity}/trace", tag="investigations")

    @router.get("", operation_id="listCalls", response_model=Trace)
    async def trace(
        target: permissions.Known = Depends(may.reads),
        after: reads.After = 0,
        limit: reads.Limit = reads.ENTRIES_MAX,
    ) -> Response:
        """Its model calls and tool calls, a line each: those behind entry `after` of its log."""
        return await room.answer(lambda: read(database, target.id, after=after, limit=limit))

    @router.get("/llm/{n}", operation_id="readModelCall", response_model=Asked)
    async def llm(n: Number, target: permissions.Known = Depends(may.reads)) -> Response:
        """One model call: the request as it was, the answer, and every attempt."""
        return await room.answer(lambda: model_call(database, target.id, number=n))

    @router.get("/tool/{n}", operation_id="readToolCall", response_model=Called)
    async def tool(n: Number, target: permissions.Known = Depends(may.reads)) -> Response:
        """One tool call: its arguments and its result."""
        return await room.answer(lambda: called(database, target.id, number=n))

    return router


async def read(database: databases.Database, identity: UUID, *, after: int, limit: int) -> Trace:
    """The calls that entries behind number `after` tell of, `limit` entries of them at most.

    It is empty only where nothing follows.
    """
    with reads.store_is_up():
        end = await conversations.end(database, identity)
    if end is None:
        raise reads.none_such(identity)
    kinds = {*conversations.ASKING, *conversations.CALLING}
    while True:
        with reads.store_is_up():
            page = await conversations.page(database, identity, kinds=kinds, after=after, upto=end, limit=limit)
            names = await conversations.names(database, identity, (placed.logged.execution for placed in page.placed))
        lines = await asyncio.to_thread(_all_lines, page.placed, names)
        if lines or not page.more:
            return Trace(calls=lines, last=page.last, more=page.more)
        after = page.last


def _all_lines(placed: Sequence[conversations.Placed], names: Mapping[str, str]) -> list[Line]:
    return [line for placed_entry in placed for line in _lines(placed_entry, names)]


async def model_call(database: databases.Database, identity: UUID, *, number: int) -> Asked:
    """A model call; a Problem where there is none of that number."""
    call = await _find(database, identity, kind="llm", number=number)
    entry, beside = call.placed.logged.entry, None
    if isinstance(entry, entries.ToolSummarised):
        with reads.store_is_up():
            name = await conversations.name(database, identity)
            beside = (name, await conversations.whole(database, identity, entry.execution, entry.call_id))
    return await asyncio.to_thread(_model_call, call, beside)


async def called(database: databases.Database, identity: UUID, *, number: int) -> Called:
    """A tool call; a Problem where there is none of that number."""
    call = await _find(database, identity, kind="tool", number=number)
    call_id = _tool_call(number, call).tool_call_id
    with reads.store_is_up():
        full_result = await conversations.whole(database, identity, call.placed.logged.execution, call_id)
        summary = await conversations.summary(database, identity, call.placed.logged, call_id)
    return await asyncio.to_thread(_called, number, call, full_result, summary)


async def _find(
    database: databases.Database, identity: UUID, *, kind: conversations.CallType, number: int
) -> conversations.Call:
    with reads.store_is_up():
        call = await conversations.call(database, identity, kind=kind, number=number)
    if call is None:
        raise problems.Problem(HTTPStatus.NOT_FOUND, f"the trace has no {kind} call {number}, so far")
    if isinstance(call.placed.logged.entry, entries.Unreadable):
        unreadable = f"{kind} call {number} cannot be read by this version of TARSy"
        raise problems.Problem(HTTPStatus.NOT_FOUND, f"{unreadable}: {call.placed.logged.entry.problem}")
    return call


def _lines(placed: conversations.Placed, names: Mapping[str, str]) -> list[Line]:
    """The calls that an entry tells of; `names` are those of executions."""
    name = names.get(placed.logged.execution, "")
    if model_call := transcripts.model_call(placed):
        return [
            Line(
                **model_call.model_dump(include={*Line.model_fields}),
                type="llm",
                execution_name=name,
                outcome="failed" if model_call.failure else "ok",
                failed_attempts=len(model_call.failed_requests),
            )
        ]
    return [_tool_line(call, name=name) for call in transcripts.tool_calls(placed)]


def _tool_line(call: shapes.ToolCall, *, name: str) -> Line:
    failure = ("in_doubt" if call.in_doubt else "error") if call.failed else None
    return Line(
        **call.model_dump(include={*Line.model_fields}),
        type="tool",
        execution_name=name,
        outcome="failed" if failure else "ok",
        failure=failure,
        failed_attempts=1 if failure else 0,
    )


_Beside: TypeAlias = tuple[str, str | None]
"""The further input of a summary's request: the investigation's name, and the full result (`stored.whole`)."""


def _model_call(stored_call: conversations.Call, beside: _Beside | None) -> Asked:
    call, entry = transcripts.model_call(stored_call.placed), transcripts.called(stored_call.placed.logged.entry)
    assert call  # noqa: S101 - `stored.call` counts no other
    assert entry  # noqa: S101 - the same
    request, problem = _request(stored_call.before, entry, beside)
    starts = (logged.entry for logged in stored_call.before if isinstance(logged.entry, entries.ExecutionStarted))
    started = next(starts, None)
    return Asked(
        **dict(call),
        execution_name=stored_call.name,
        agent=transcripts.agent(started.agent) if started else None,
        request=request,
        problem=problem,
        answer=None if call.failure else _answer(transcripts.answer(entry)),
    )


def _request(
    before: Sequence[entries.Logged], called: transcripts.Called, beside: _Beside | None
) -> tuple[Request | None, str]:
    """Return a call's request, by its execution's log before it, or the reason why it is unknown."""
    for logged in before:
        if isinstance(logged.entry, entries.Unreadable):
            return None, f"entry {logged.seq} before it cannot be read by this version of TARSy: {logged.entry.problem}"
    try:
        execution = _execution(before)
        if isinstance(called, entries.ToolSummarised):
            investigation, full_result = beside or ("", None)
            request = requests.asked_for_summary(
                execution, called, investigation=investigation, full_result=full_result
            )
            return _visible_request(request, final=False), ""
        ask, request = requests.request_of(execution, called)
    except (LookupError, StopIteration) as error:
        return None, f"the log before it does not add up: {type(error).__name__} {error}"
    return _visible_request(request, final=ask.final), ""


def _execution(before: Sequence[entries.Logged]) -> record.Execution:
    """The execution as these entries leave it; a LookupError where its start is not the first of them."""
    first = before[0].entry
    if not isinstance(first, entries.ExecutionStarted) or first.agent is None:
        raise LookupError("its execution has not begun")
    execution = record.begun(first)
    for logged in before[1:]:
        if not isinstance(logged.entry, entries.Unreadable):
            registry.add(execution, logged.entry)
    return execution


def _visible_request(request: ports.Request, *, final: bool) -> Request:
    return Request(
        messages=[
            Sent(
                role=message.role,
                text=transcripts.prompt(message),
                tool_calls=transcripts.calls(message.calls),
                tool_call_id=message.call_id,
                **tool_names.fields(message.tool_name),
                failed=message.failed,
            )
            for message in request.messages
        ],
        tools=[transcripts.tool(tool) for tool in request.tools],
        native_tools=list(request.native_tools),
        final=final,
    )


def _answer(message: messages.Message) -> Answer:
    return Answer(
        text=message.text,
        thinking=message.thinking,
        tool_calls=transcripts.calls(message.calls),
        native_results=transcripts.natives(message),
    )


def _tool_call(number: int, call: conversations.Call) -> shapes.ToolCall:
    return transcripts.tool_calls(call.placed)[number - call.placed.tool_calls - 1]


def _called(number: int, stored_call: conversations.Call, full_result: str | None, summary: str | None) -> Called:
    call = _tool_call(number, stored_call)
    entry = stored_call.placed.logged.entry
    runs = entry.runs if isinstance(entry, entries.ToolsAnswered) else ()
    return Called(
        **dict(call),
        execution_name=stored_call.name,
        arguments_json=_parsed(call.arguments),
        cut=any(run.call.id == call.tool_call_id and run.length is not None for run in runs),
        whole=full_result,
        summary=summary,
        asked_by=stored_call.asked_by,
    )


def _parsed(arguments: str) -> Any:
    """Arguments as JSON that every client can read; None where they are none."""
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return None
    return messages.storable_json(parsed) if messages.is_plain_json(parsed) else None

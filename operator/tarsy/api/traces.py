"""The trace of an investigation: its model calls and tool calls, a line each, and each with all that was sent.

No request is stored: what a model was asked is made again from the log, by the function that made it for the model.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Response
from pydantic import Field

from tarsy.agent import requests
from tarsy.api import access, answers, problems, strict, transcripts
from tarsy.api import messages as paging
from tarsy.store import database as databases
from tarsy.store import transcripts as stored
from tarsy.transcript import entries, messages, ports, record

_JSON = ["object", "array", "string", "number", "boolean", "null"]
Number = Annotated[int, Path(ge=1, le=2**31 - 1, examples=[1], description="Its number in the trace.")]


class Line(transcripts.Part):
    """One call."""

    n: int
    """Its number among the calls of its type, from 1; it never changes."""
    type: stored.CallType
    seq: int
    """The entry of the log that tells of it."""
    run: int
    stage: str
    execution: str
    name: str
    """Its execution's, beside its siblings."""
    provider: str | None = None
    """Of a model call."""
    model: str | None = None
    tool: str | None = None
    """Of a tool call: `server.tool`."""
    seconds: float
    input_tokens: int | None = None
    """Of a model call, as its provider counted them."""
    output_tokens: int | None = None
    thinking_tokens: int | None = None
    total_tokens: int | None = None
    cost: float | None = None
    """None where the provider has no price."""
    outcome: Literal["ok", "failed"]
    failure: str | None = None
    """timeout, rejected or fatal of a model call; error or in_doubt of a tool call."""
    failure_code: str | None = None
    """What the provider calls it, such as an HTTP status; "" where nothing does."""
    attempts: int
    """How many of its requests failed."""
    at: datetime
    """When it was committed."""


class Trace(transcripts.Part):
    """The calls that some entries of the log tell of."""

    calls: list[Line]
    """In the log's order."""
    last: int
    """What to give as `after` the next time."""
    more: bool
    """Whether there are more already."""


class Sent(transcripts.Part):
    """One message as the model was shown it."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    tool_calls: list[dict[str, Any]]
    """Calls that it asked for before: id, name, arguments."""
    tool_call_id: str
    tool_name: str
    failed: bool


class Request(transcripts.Part):
    """What a model was asked, before its provider's protocol."""

    messages: list[Sent]
    """The whole conversation: results that had given way are a line, and in ReAct they stand in the text."""
    tools: list[dict[str, Any]]
    """Those that were offered: name, description, parameters (a JSON Schema), idempotent."""
    native_tools: list[str]
    """The provider's own that it might use."""
    final: bool
    """It was asked to conclude, without tools."""


class Failure(transcripts.Part):
    """Why a call brought nothing."""

    kind: messages.FailureKind
    code: str
    text: str


class Usage(transcripts.Part):
    """Tokens, as the provider counted them."""

    input_tokens: int
    output_tokens: int
    thinking_tokens: int
    total_tokens: int


class Answer(transcripts.Part):
    """What a model said."""

    text: str
    thinking: str
    tool_calls: list[dict[str, Any]]
    native: list[dict[str, Any]]
    """What the provider's own tools brought: tool, content, details."""


class Asked(transcripts.Part):
    """One model call: what was sent, and what came of it."""

    n: int
    seq: int
    run: int
    stage: str
    execution: str
    name: str
    turn: int
    """Which of the execution's model calls, from 0; another provider is asked for the same turn once more."""
    provider: str
    model: str
    agent: dict[str, Any] | None
    """The settings of its execution."""
    request: Request | None
    """None where it cannot be told any more: `problem` says why."""
    problem: str
    answer: Answer | None
    failure: Failure | None
    attempts: list[dict[str, Any]]
    """Its requests that failed: provider, error, code, and usage, which is not in the below."""
    usage: Usage
    """Of its last request."""
    cost: float | None
    seconds: float
    at: datetime


class Called(transcripts.Part):
    """One tool call: what was sent, and what came of it."""

    n: int
    seq: int
    run: int
    stage: str
    execution: str
    name: str
    """Its execution's."""
    call_id: str
    server: str
    tool: str
    arguments: str
    """As the model gave them."""
    arguments_json: Annotated[Any, Field(json_schema_extra={"type": _JSON})]
    """The same, parsed; null where they are no JSON."""
    result: str
    """As it is kept and as the model was shown it first."""
    cut: bool
    """It was longer than what is kept; its last line says how long."""
    failed: bool
    in_doubt: bool
    """It may have happened, and was not repeated."""
    seconds: float
    asked_by: int
    """The number of the model call whose answer asked for it; 0 where that cannot be told."""
    at: datetime


def routes(database: databases.Database, may: access.Access, room: answers.Room) -> APIRouter:
    """An investigation's trace."""
    router = strict.router(prefix="/api/v1/investigations/{identity}/trace", tag="investigations")

    @router.get("", operation_id="listCalls", response_model=Trace)
    async def trace(
        known: access.Known = Depends(may.reads),
        after: paging.After = 0,
        limit: paging.Limit = transcripts.ENTRIES_MAX,
    ) -> Response:
        """Its model calls and tool calls, a line each: those behind entry `after` of its log."""
        return await room.answer(known.caller, lambda: read(database, known.id, after=after, limit=limit))

    @router.get("/llm/{n}", operation_id="readModelCall", response_model=Asked)
    async def llm(n: Number, known: access.Known = Depends(may.reads)) -> Response:
        """One model call: the request as it was, the answer, and every attempt."""
        return await room.answer(known.caller, lambda: asked(database, known.id, number=n))

    @router.get("/tool/{n}", operation_id="readToolCall", response_model=Called)
    async def tool(n: Number, known: access.Known = Depends(may.reads)) -> Response:
        """One tool call: its arguments and its result."""
        return await room.answer(known.caller, lambda: called(database, known.id, number=n))

    return router


async def read(database: databases.Database, identity: UUID, *, after: int, limit: int) -> Trace:
    """The calls that entries behind number `after` tell of, `limit` entries of them at most."""
    with transcripts.store_is_up():
        end = await stored.end(database, identity)
        if end is None:
            raise transcripts.none_such(identity)
        kinds = {*stored.ASKING, *stored.CALLING}
        page = await stored.page(database, identity, kinds=kinds, after=after, upto=end, limit=limit)
        names = await stored.names(database, identity, (placed.logged.execution for placed in page.placed))
    found = await asyncio.to_thread(lambda: [line for placed in page.placed for line in _lines(placed, names)])
    return Trace(calls=found, last=page.last, more=page.more)


async def asked(database: databases.Database, identity: UUID, *, number: int) -> Asked:
    """A model call; a Problem where there is none of that number."""
    return await asyncio.to_thread(_asked, number, await _find(database, identity, kind="llm", number=number))


async def called(database: databases.Database, identity: UUID, *, number: int) -> Called:
    """A tool call; a Problem where there is none of that number."""
    return await asyncio.to_thread(_called, number, await _find(database, identity, kind="tool", number=number))


async def _find(database: databases.Database, identity: UUID, *, kind: stored.CallType, number: int) -> stored.Call:
    with transcripts.store_is_up():
        found = await stored.call(database, identity, kind=kind, number=number)
    if found is None:
        raise problems.Problem(HTTPStatus.NOT_FOUND, f"the trace has no {kind} call {number}, so far")
    if isinstance(found.placed.logged.entry, entries.Unreadable):
        unreadable = f"{kind} call {number} cannot be read by this version of TARSy"
        raise problems.Problem(HTTPStatus.NOT_FOUND, f"{unreadable}: {found.placed.logged.entry.problem}")
    return found


def _lines(placed: stored.Placed, names: Mapping[str, str]) -> list[Line]:
    """The calls that an entry tells of; `names` are those of executions."""
    name = names.get(placed.logged.execution, "")
    if asked := transcripts.model_call(placed):
        shared = asked.model_dump(include={*Line.model_fields} - {"attempts"})
        outcome = "failed" if asked.failure else "ok"
        return [
            Line(
                **shared,
                type="llm",
                name=name,
                outcome=outcome,
                attempts=len(asked.attempts),
                at=asked.created_at,
            )
        ]
    return [_tool_line(call, result, name=name) for call, result in transcripts.tool_calls(placed)]


def _tool_line(call: transcripts.ToolCall, result: messages.Message, *, name: str) -> Line:
    failure = ("in_doubt" if result.in_doubt else "error") if result.failed else None
    return Line(
        **call.model_dump(include={*Line.model_fields}),
        type="tool",
        name=name,
        tool=call.tool_name,
        outcome="failed" if failure else "ok",
        failure=failure,
        attempts=1 if failure else 0,
        at=call.created_at,
    )


def _asked(number: int, found: stored.Call) -> Asked:
    logged = found.placed.logged
    entry = transcripts.called(logged.entry)
    assert entry  # noqa: S101 - `stored.call` counts no other
    assert entry.call  # noqa: S101 - the same
    call, failure = entry.call, transcripts.failed(entry)
    request, problem = _request(found.before, entry)
    starts = (one.entry for one in found.before if isinstance(one.entry, entries.ExecutionStarted))
    started = next(starts, None)
    return Asked(
        n=number,
        seq=logged.seq,
        run=logged.run,
        stage=logged.stage,
        execution=logged.execution,
        name=found.name,
        turn=entry.turn,
        provider=call.provider,
        model=call.model,
        agent=transcripts.shown(started.agent) if started and started.agent else None,
        request=request,
        problem=problem,
        answer=_answer(entry.messages[-1]) if isinstance(entry, entries.Answered) else None,
        failure=Failure.model_validate(failure) if failure else None,
        attempts=[transcripts.shown(attempt) for attempt in call.attempts],
        usage=Usage.model_validate(call.usage),
        cost=call.cost,
        seconds=call.seconds,
        at=logged.at,
    )


def _request(before: Sequence[entries.Logged], called: requests.Called) -> tuple[Request | None, str]:
    """What was asked for a call, given its execution's log before it; or why that cannot be told."""
    for logged in before:
        if isinstance(logged.entry, entries.Unreadable):
            return None, f"entry {logged.seq} before it cannot be read by this version of TARSy: {logged.entry.problem}"
    try:
        ask, request = requests.asked(_execution(before), called)
    except (LookupError, StopIteration) as error:
        return None, f"the log before it does not add up: {type(error).__name__} {error}"
    return _shown(request, final=ask.final), ""


def _execution(before: Sequence[entries.Logged]) -> record.Execution:
    """The execution as these entries leave it; a LookupError where its start is not the first of them."""
    first = before[0].entry
    if not isinstance(first, entries.ExecutionStarted) or first.agent is None:
        raise LookupError("its execution has not begun")
    execution = record.begun(first)
    for logged in before[1:]:
        if isinstance(logged.entry, record.OfExecution):
            execution.add(logged.entry)
    return execution


def _shown(request: ports.Request, *, final: bool) -> Request:
    return Request(
        messages=[
            Sent(
                role=message.role,
                text=message.text,
                tool_calls=[transcripts.shown(call) for call in message.calls],
                tool_call_id=message.call_id,
                tool_name=message.tool_name,
                failed=message.failed,
            )
            for message in request.messages
        ],
        tools=[transcripts.shown(tool) for tool in request.tools],
        native_tools=list(request.native_tools),
        final=final,
    )


def _answer(message: messages.Message) -> Answer:
    return Answer(
        text=message.text,
        thinking=message.thinking,
        tool_calls=[transcripts.shown(call) for call in message.calls],
        native=[transcripts.shown(result) for result in message.native],
    )


def _called(number: int, found: stored.Call) -> Called:
    call, result = transcripts.tool_calls(found.placed)[number - found.placed.tool_calls - 1]
    server, dot, tool = call.tool_name.partition(".")
    return Called(
        n=number,
        seq=call.seq,
        run=call.run,
        stage=call.stage,
        execution=call.execution,
        name=found.name,
        call_id=call.call_id,
        server=server if dot else "",
        tool=tool if dot else call.tool_name,
        arguments=call.arguments,
        arguments_json=_parsed(call.arguments),
        result=result.text,
        cut=messages.is_cut(result.text),
        failed=result.failed,
        in_doubt=result.in_doubt,
        seconds=call.seconds,
        asked_by=found.asked_by,
        at=call.created_at,
    )


def _parsed(arguments: str) -> Any:
    """Arguments as JSON that every client can read; None where they are none."""
    try:
        found = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return None
    return messages.storable_json(found) if messages.is_plain_json(found) else None

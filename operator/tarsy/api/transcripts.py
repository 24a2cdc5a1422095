"""What is shown of a log, wherever it is shown: executions, messages and calls, each in its place.

Nothing is shown that is not stored: alerts, answers and results as they were masked, chains and instructions as they
were written. Providers' state is shown nowhere: it is opaque, and theirs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from http import HTTPStatus
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from tarsy import errors
from tarsy.api import problems
from tarsy.store import transcripts as stored
from tarsy.transcript import entries, messages

ENTRIES_MAX = 500
"""Entries of the log whose messages or calls are on one page."""


class Part(BaseModel):
    """Something that is answered."""

    model_config = ConfigDict(from_attributes=True, frozen=True, use_attribute_docstrings=True)


class _Execution(Part):
    id: str
    run: int
    stage: str
    """"" where it is of no stage."""
    kind: str
    """agent, synthesis, summary or chat."""
    index: int
    """Its place in the stage, from 0."""
    name: str
    """What it is called beside its siblings."""
    agent: dict[str, Any] | None
    """Its settings, resolved; None where it ended before it could begin."""
    provider: str
    """The one that it asks now, or asked last: its agent's, or a fallback."""
    started_at: datetime
    ended_at: datetime | None = None
    outcome: str | None = None
    error: str = ""
    ungrounded: bool = False
    """It concluded without having looked at anything, although it had tools."""


class Execution(_Execution):
    """The work of one agent, a synthesis, a summary or an answer: what it ran with, and how it ended."""

    tools: list[str]
    """The names of the tools that it was shown."""


class WholeExecution(_Execution):
    """The same, with all that it was shown of its tools."""

    tools: list[dict[str, Any]]


class Message(Part):
    """One message of an execution's conversation, as it was said; what the model is shown of it later may be less."""

    seq: int
    """The entry of the log that brought it."""
    run: int
    stage: str
    execution: str
    position: int
    """In the conversation, from 0."""
    role: Literal["system", "user", "assistant", "tool"]
    text: str
    thinking: str
    """What the model let us see of its thoughts; it was never sent back as text."""
    tool_calls: list[dict[str, Any]]
    """The calls that it asks for: id, name (`server.tool`), arguments (JSON as text)."""
    native: list[dict[str, Any]]
    """What the provider's own tools brought on the way to it: tool, content, details."""
    tool_call_id: str
    """With role tool: the call that this is the result of."""
    tool_name: str
    failed: bool
    """With role tool: the tool answered with an error, or not at all."""
    in_doubt: bool
    """With role tool: the call may have happened, and was not repeated."""
    created_at: datetime


class ModelCall(Part):
    """One model call: what it was asked with, what it cost, and why it brought nothing, if so."""

    n: int
    """Its number in the trace, from 1."""
    seq: int
    run: int
    stage: str
    execution: str
    turn: int
    """Which of the execution's model calls, from 0."""
    provider: str
    model: str
    context_messages: int
    """It was sent the first so many messages of the execution."""
    seconds: float
    input_tokens: int
    output_tokens: int
    thinking_tokens: int
    total_tokens: int
    attempts: list[dict[str, Any]]
    """Its requests that failed: provider, error, code, and tokens counted by then, which are not in the above."""
    failure: str | None
    failure_code: str | None
    """What the provider calls it, such as an HTTP status; "" where nothing does."""
    failure_text: str | None
    cost: float | None
    """Of all its requests; None where the provider has no price."""
    created_at: datetime


class ToolCall(Part):
    """One tool call that was made; its result is the message with its `tool_call_id`."""

    n: int
    """Its number in the trace, from 1."""
    seq: int
    run: int
    stage: str
    execution: str
    call_id: str
    tool_name: str
    arguments: str
    seconds: float
    created_at: datetime


class Unreadable(Part):
    """An entry of the log that this version of TARSy cannot read: the investigation waits for one that can."""

    seq: int
    kind: str
    version: int
    problem: str


def executions(
    started: Iterable[stored.Placed], ends: Ends
) -> Iterator[tuple[entries.ExecutionStarted, dict[str, Any]]]:
    """What these entries start, as the fields of an Execution, but for its tools."""
    for placed in started:
        logged = placed.logged
        if isinstance(logged.entry, entries.ExecutionStarted):
            entry = logged.entry
            yield (
                entry,
                {
                    "id": logged.execution,
                    "run": logged.run,
                    "stage": logged.stage,
                    "kind": entry.kind,
                    "index": entry.index,
                    "name": entry.name,
                    "agent": entry.agent and shown(entry.agent),
                    "provider": entry.agent.provider if entry.agent else "",
                    "started_at": logged.at,
                }
                | ends.of(logged.execution),
            )


class Ends:
    """How executions went on after their starts: the providers that they came to, and their ends."""

    def __init__(self) -> None:
        self._changed: dict[str, dict[str, Any]] = {}

    def add(self, page: Iterable[stored.Placed]) -> None:
        """Take note of what these entries say of it."""
        for placed in page:
            changed = self._changed.setdefault(placed.logged.execution, {})
            match placed.logged.entry:
                case entries.FellBack(provider=provider):
                    changed["provider"] = provider
                case entries.ExecutionEnded() as entry:
                    changed["ended_at"] = placed.logged.at
                    changed |= {"outcome": entry.outcome, "error": entry.error, "ungrounded": entry.ungrounded}

    def of(self, execution: str) -> dict[str, Any]:
        """What has changed of an execution since it began, as fields of an Execution."""
        return self._changed.get(execution, {})


def said(placed: stored.Placed) -> list[Message]:
    """The messages that an entry brings."""
    match placed.logged.entry:
        case entries.ExecutionStarted() | entries.Answered() | entries.Unanswered() as entry:
            found = entry.messages
        case entries.ToolsAnswered() as entry:
            found = tuple(run.result for run in entry.runs)
        case _:
            found = ()
    return [_message(placed.logged, one, position=place) for place, one in enumerate(found, placed.messages)]


def model_call(placed: stored.Placed) -> ModelCall | None:
    """The model call that an entry tells of, if it does."""
    logged = placed.logged
    entry = called(logged.entry)
    if entry is None or entry.call is None:
        return None
    call, failure = entry.call, failed(entry)
    match entry:
        case entries.Answered() | entries.Unanswered():
            added = len(entry.messages) - isinstance(entry, entries.Answered)
        case _:
            added = 0
    return ModelCall(
        n=placed.model_calls + 1,
        seq=logged.seq,
        run=logged.run,
        stage=logged.stage,
        execution=logged.execution,
        turn=entry.turn,
        provider=call.provider,
        model=call.model,
        context_messages=placed.messages + added,
        seconds=call.seconds,
        input_tokens=call.usage.input_tokens,
        output_tokens=call.usage.output_tokens,
        thinking_tokens=call.usage.thinking_tokens,
        total_tokens=call.usage.total_tokens,
        attempts=[shown(attempt) for attempt in call.attempts],
        failure=failure and failure.kind,
        failure_code=failure and failure.code,
        failure_text=failure and failure.text,
        cost=call.cost,
        created_at=logged.at,
    )


def called(
    entry: entries.Entry | entries.Unreadable,
) -> entries.Answered | entries.Unanswered | entries.FellBack | entries.ContextCompacted | None:
    """The entry, if it tells of a model call."""
    match entry:
        case entries.Answered() | entries.Unanswered() | entries.FellBack():
            return entry
        case entries.ContextCompacted() if entry.call:
            return entry
        case _:
            return None


def failed(
    entry: entries.Answered | entries.Unanswered | entries.FellBack | entries.ContextCompacted,
) -> messages.Failure | None:
    """Why a call brought nothing; None where it did."""
    return None if isinstance(entry, entries.Answered) else entry.failure


def tool_calls(placed: stored.Placed) -> list[tuple[ToolCall, messages.Message]]:
    """The tool calls that an entry tells of, with their results."""
    logged = placed.logged
    runs = logged.entry.runs if isinstance(logged.entry, entries.ToolsAnswered) else ()
    return [
        (
            ToolCall(
                n=number,
                seq=logged.seq,
                run=logged.run,
                stage=logged.stage,
                execution=logged.execution,
                call_id=run.call.id,
                tool_name=run.call.name,
                arguments=run.call.arguments,
                seconds=run.seconds,
                created_at=logged.at,
            ),
            run.result,
        )
        for number, run in enumerate(runs, placed.tool_calls + 1)
    ]


def unreadable(seq: int, entry: entries.Unreadable) -> Unreadable:
    """An entry that cannot be read."""
    return Unreadable(seq=seq, kind=entry.kind, version=entry.version, problem=entry.problem)


def shown(part: Any) -> dict[str, Any]:
    """A part of the transcript as JSON that every client can read: a tool's schema may hold half a character."""
    found: dict[str, Any] = messages.storable_json(_listed(dataclasses.asdict(part)))
    return found


def _listed(value: Any) -> Any:
    """With lists where Python has tuples."""
    match value:
        case dict():
            return {key: _listed(item) for key, item in value.items()}
        case list() | tuple():
            return [_listed(item) for item in value]
        case _:
            return value


def _message(logged: entries.Logged, message: messages.Message, *, position: int) -> Message:
    return Message(
        seq=logged.seq,
        run=logged.run,
        stage=logged.stage,
        execution=logged.execution,
        position=position,
        role=message.role,
        text=message.text,
        thinking=message.thinking,
        tool_calls=[shown(call) for call in message.calls],
        native=[shown(result) for result in message.native],
        tool_call_id=message.call_id,
        tool_name=message.tool_name,
        failed=message.failed,
        in_doubt=message.in_doubt,
        created_at=logged.at,
    )


@contextmanager
def store_is_up() -> Iterator[None]:
    """Tell that the store is away as the problem that it is."""
    try:
        yield
    except errors.TemporaryError as error:
        raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error


def none_such(identity: UUID) -> problems.Problem:
    """Tell that there is no such investigation."""
    return problems.Problem(HTTPStatus.NOT_FOUND, f"there is no investigation with id {identity}")

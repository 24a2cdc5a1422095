"""Reads of investigations, for people and programs: everything that the store knows of one, and its timeline.

What is answered are models of this room, made from what the store has: the two may change apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict

from tarsy import errors
from tarsy.api import access, problems, strict
from tarsy.resources import investigation as investigations
from tarsy.store import database as databases
from tarsy.store import history
from tarsy.transcript import entries, messages, timeline

EVENTS_MAX = 500
"""Events of one page of a timeline."""


class _Part(BaseModel):
    model_config = ConfigDict(from_attributes=True, frozen=True, use_attribute_docstrings=True)


class Stage(_Part):
    """One stage in numbers."""

    name: str
    outcome: str | None
    message: str
    """What failed."""
    lacks: list[str]
    """What its agents had to do without."""
    started_at: datetime | None
    ended_at: datetime | None
    completed: int
    """How many of its agents have completed."""
    iterations: int
    tool_calls: int
    tokens: int


class Execution(_Part):
    """The work of one agent, a synthesis, a summary or an answer: what it ran with, and how it ended."""

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
    tools: list[dict[str, Any]]
    """The tools that it was shown."""
    provider: str
    """The one that it asks now, or asked last: its agent's, or a fallback."""
    started_at: datetime
    ended_at: datetime | None = None
    outcome: str | None = None
    error: str = ""
    ungrounded: bool = False
    """It concluded without having looked at anything, although it had tools."""


class Message(_Part):
    """One message of an execution's conversation, as the model saw it."""

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
    tool_call_id: str
    """With role tool: the call that this is the result of."""
    tool_name: str
    failed: bool
    """With role tool: the tool answered with an error, or not at all."""
    in_doubt: bool
    """With role tool: the call may have happened, and was not repeated."""
    created_at: datetime


class ModelCall(_Part):
    """One model call: what it was asked with, what it cost, and why it brought nothing, if so."""

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
    """Requests that failed before: provider, error, code, and tokens counted by then, which are not in the above."""
    failure: str | None
    failure_code: str | None
    """What the provider calls it, such as an HTTP status; "" where nothing does."""
    failure_text: str | None
    cost: float | None
    """Of all its requests; None where the provider has no price."""
    created_at: datetime


class ToolCall(_Part):
    """One tool call that was made; its result is the message with its `tool_call_id`."""

    run: int
    stage: str
    execution: str
    call_id: str
    tool_name: str
    arguments: str
    seconds: float
    created_at: datetime


class Unreadable(_Part):
    """An entry of the log that this version of TARSy cannot read: the investigation waits for one that can."""

    seq: int
    kind: str
    version: int
    problem: str


class Gap(_Part):
    """Something that could not be inspected."""

    tool: str
    reason: str


class Run(_Part):
    """One run: 0 is the investigation itself, each later one a question that was asked after its end."""

    number: int
    kind: Literal["investigation", "chat"]
    question: str
    """Masked."""
    attempts: int
    started_at: datetime | None
    """When a worker first had it."""
    ended_at: datetime | None
    ending: str | None
    reason: str
    message: str
    final_analysis: str
    """Of a question: its answer."""
    cost: float | None
    """Of its model calls; None where none had a price."""


class Summary(_Part):
    """One investigation in numbers: what it is, and how far it is."""

    id: UUID
    namespace: str
    name: str
    generation: int
    """Of its object, as last seen."""
    author: str
    """Who asked for it; "" where nobody says."""
    state: str
    """queued, running or ended."""
    cancel: str | None
    """Why it was cancelled: user, deleted or resolved."""
    suspend: bool
    waits_for: str
    """Where it stands still because of what is written in its log: what that is."""
    alert_type: str
    alert_status: Literal["firing", "resolved"] | None
    duplicates: int
    """Repeats of its alert that were counted on it."""
    chain_name: str | None
    chain_namespace: str | None
    chain_generation: int | None
    chain_hash: str | None
    stage_names: list[str]
    """The chain's stages, those that have not started too."""
    stage_agents: list[int]
    """How many agents each of them has."""
    revision: int
    """Rises with every change; `status.sequence` in the cluster."""
    attempts: int
    admitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    ending: str | None
    reason: str
    message: str
    final_analysis: str
    summary: str
    """The final analysis in a few lines."""
    gaps: list[Gap]
    grounds: entries.Grounds | None
    """What the result stands on; None where there is none."""
    input_tokens: int
    output_tokens: int
    thinking_tokens: int
    total_tokens: int
    llm_calls: int
    tool_calls: int
    cost: float | None
    """Of its model calls; None where none had a price."""
    stages: list[Stage]
    """Those that have started, or were skipped."""


class Investigation(_Part):
    """Everything that is known of one investigation; each list in the order of its commits."""

    phase: investigations.Phase
    summary: Summary
    alert_data: str
    """As the agents read it, masked."""
    severity: str | None
    runbook_url: str | None
    chain: dict[str, Any] | None
    """The chain's spec as it was when the investigation was admitted; None where there was none."""
    runs: list[Run]
    executions: list[Execution]
    messages: list[Message]
    llm_interactions: list[ModelCall]
    mcp_interactions: list[ToolCall]
    unreadable: list[Unreadable]


class Event(_Part):
    """One event of the timeline, in its newest form. One that was there under its id before has changed."""

    id: str
    seq: int
    """The entry of the log that brought its last change."""
    type: timeline.Type
    status: timeline.Status
    stage: str
    execution: str
    content: str
    metadata: dict[str, Any]
    created_at: datetime
    updated_at: datetime


class Timeline(_Part):
    """The events that changed behind an entry of the log."""

    events: list[Event]
    """By `seq`."""
    last: int
    """What to give as `after` the next time."""
    more: bool
    """Whether there are more already."""


def routes(database: databases.Database, may: access.Access) -> APIRouter:
    """An investigation, and its timeline."""
    router = strict.router(prefix="/api/v1/investigations/{identity}", tag="investigations")

    @router.get("", operation_id="readInvestigation")
    async def investigation(known: access.Known = Depends(may.reads)) -> Investigation:
        """Everything that is known of one investigation."""
        return await read(database, known.id)

    @router.get("/timeline", operation_id="readTimeline")
    async def timeline(
        known: access.Known = Depends(may.reads),
        after: Annotated[int, Query(ge=0, le=2**63 - 1, description="`last` of the page before; 0 begins.")] = 0,
        limit: Annotated[int, Query(ge=1, le=EVENTS_MAX, description="Of events, or a few more.")] = EVENTS_MAX,
    ) -> Timeline:
        """What happened, event by event: those that changed behind entry `after`, in their newest form."""
        return await read_timeline(database, known.id, after=after, limit=limit)

    return router


async def read(database: databases.Database, identity: UUID) -> Investigation:
    """Serve `GET /api/v1/investigations/{id}`; the id is the object's uid."""
    with _store_is_up():
        found = await history.transcript(database, identity)
    if found is None:
        raise _unknown(identity)
    return _investigation(found)


async def read_timeline(database: databases.Database, identity: UUID, *, after: int, limit: int) -> Timeline:
    """Serve `GET /api/v1/investigations/{id}/timeline`: what changed behind entry `after`, `limit` events or so.

    A page ends with an entry, never inside one: who goes on from its `last` misses nothing.
    """
    with _store_is_up():
        found = await history.log_page(database, identity, after=after, limit=limit)
    if found is None:
        raise _unknown(identity)
    events, last = timeline.page(
        timeline.fold(found.log, claims=found.claims, executions=found.executions),
        after=after,
        last=found.last,
        limit=limit,
    )
    shown = [Event.model_validate(event) for event in events]
    return Timeline(events=shown, last=last, more=found.more or last < found.last)


@contextmanager
def _store_is_up() -> Iterator[None]:
    try:
        yield
    except errors.TemporaryError as error:
        raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error


def _unknown(identity: UUID) -> problems.Problem:
    return problems.Problem(HTTPStatus.NOT_FOUND, f"there is no investigation with id {identity}")


def _investigation(found: history.Transcript) -> Investigation:
    log = _Log(found.log)
    return Investigation(
        phase=found.summary.phase,
        summary=Summary.model_validate(found.summary),
        alert_data=found.alert_data,
        severity=found.severity,
        runbook_url=found.runbook_url,
        chain=found.chain,
        runs=[Run.model_validate(one) for one in found.runs],
        executions=list(log.executions.values()),
        messages=log.messages,
        llm_interactions=log.model_calls,
        mcp_interactions=log.tool_calls,
        unreadable=log.unreadable,
    )


class _Log:
    """The log taken apart into what it says of executions, messages and calls."""

    def __init__(self, log: Sequence[entries.Logged]) -> None:
        self.executions: dict[str, Execution] = {}
        self.messages: list[Message] = []
        self.model_calls: list[ModelCall] = []
        self.tool_calls: list[ToolCall] = []
        self.unreadable: list[Unreadable] = []
        self._positions: dict[str, int] = {}
        for logged in log:
            self._add(logged)

    def _add(self, logged: entries.Logged) -> None:
        match logged.entry:
            case entries.ExecutionStarted() as entry:
                self.executions[logged.execution] = _execution(logged, entry)
                self._say(logged, entry.messages)
            case entries.Answered() as entry:
                self._say(logged, entry.messages[:-1])
                self._ask(logged, entry, failure=None)
                self._say(logged, entry.messages[-1:])
            case entries.Unanswered() as entry:
                self._say(logged, entry.messages)
                self._ask(logged, entry, failure=entry.failure)
            case entries.FellBack() as entry:
                self._ask(logged, entry, failure=entry.failure)
                self._change(logged.execution, provider=entry.provider)
            case entries.ContextCompacted() as entry if entry.call:
                self._ask(logged, entry, failure=entry.failure)
            case entries.ToolsAnswered() as entry:
                self.tool_calls += [_tool_call(logged, run) for run in entry.runs]
                self._say(logged, [run.result for run in entry.runs])
            case entries.ExecutionEnded() as entry:
                self._change(
                    logged.execution,
                    ended_at=logged.at,
                    outcome=entry.outcome,
                    error=entry.error,
                    ungrounded=entry.ungrounded,
                )
            case entries.Unreadable() as entry:
                self.unreadable.append(
                    Unreadable(seq=logged.seq, kind=entry.kind, version=entry.version, problem=entry.problem)
                )

    def _change(self, execution: str, **changed: Any) -> None:
        if execution in self.executions:
            self.executions[execution] = self.executions[execution].model_copy(update=changed)

    def _say(self, logged: entries.Logged, said: Iterable[messages.Message]) -> None:
        for message in said:
            position = self._positions.get(logged.execution, 0)
            self._positions[logged.execution] = position + 1
            self.messages.append(_message(logged, message, position=position))

    def _ask(
        self,
        logged: entries.Logged,
        entry: entries.Answered | entries.Unanswered | entries.FellBack | entries.ContextCompacted,
        *,
        failure: messages.Failure | None,
    ) -> None:
        call = entry.call
        assert call  # noqa: S101 - a compaction without one was for a request that nobody sent
        self.model_calls.append(
            ModelCall(
                run=logged.run,
                stage=logged.stage,
                execution=logged.execution,
                turn=entry.turn,
                provider=call.provider,
                model=call.model,
                context_messages=self._positions.get(logged.execution, 0),
                seconds=call.seconds,
                input_tokens=call.usage.input_tokens,
                output_tokens=call.usage.output_tokens,
                thinking_tokens=call.usage.thinking_tokens,
                total_tokens=call.usage.total_tokens,
                attempts=[_shown(attempt) for attempt in call.attempts],
                failure=failure and failure.kind,
                failure_code=failure and failure.code,
                failure_text=failure and failure.text,
                cost=call.cost,
                created_at=logged.at,
            )
        )


def _execution(logged: entries.Logged, entry: entries.ExecutionStarted) -> Execution:
    return Execution(
        id=logged.execution,
        run=logged.run,
        stage=logged.stage,
        kind=entry.kind,
        index=entry.index,
        name=entry.name,
        agent=entry.agent and _shown(entry.agent),
        tools=[_shown(tool) for tool in entry.tools],
        provider=entry.agent.provider if entry.agent else "",
        started_at=logged.at,
    )


def _message(logged: entries.Logged, message: messages.Message, *, position: int) -> Message:
    return Message(
        run=logged.run,
        stage=logged.stage,
        execution=logged.execution,
        position=position,
        role=message.role,
        text=message.text,
        thinking=message.thinking,
        tool_calls=[_shown(call) for call in message.calls],
        tool_call_id=message.call_id,
        tool_name=message.tool_name,
        failed=message.failed,
        in_doubt=message.in_doubt,
        created_at=logged.at,
    )


def _tool_call(logged: entries.Logged, run: entries.ToolRun) -> ToolCall:
    return ToolCall(
        run=logged.run,
        stage=logged.stage,
        execution=logged.execution,
        call_id=run.call.id,
        tool_name=run.call.name,
        arguments=run.call.arguments,
        seconds=run.seconds,
        created_at=logged.at,
    )


def _shown(part: Any) -> dict[str, Any]:
    """A part of the transcript as JSON that every client can read: a tool's schema may hold half a character."""
    shown: dict[str, Any] = messages.storable_json(dataclasses.asdict(part))
    return shown

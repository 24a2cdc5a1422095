"""The visible form of a log: executions, messages and calls, each in its place.

Only stored values are shown: alerts, answers and results as they were masked. Chains and instructions are stored as
they were written, for agents to run with, and masked on their way out. Providers' state is not shown: it is opaque, and
theirs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeAlias, cast

from tarsy.config import resolve
from tarsy.masking import masker
from tarsy.store.reads import conversations
from tarsy.transcript import entries, messages, tool_names
from tarsy.transcript.kinds import registry
from tarsy.views import shapes

_MASKER = masker.Masker(groups=["security"])


def execution(placed: conversations.Placed, ends: Ends) -> shapes.WholeExecution | None:
    """Return the execution that an entry starts, if it does."""
    logged = placed.logged
    if not isinstance(logged.entry, entries.ExecutionStarted):
        return None
    entry = logged.entry
    begun = {
        "id": logged.execution,
        "run": logged.run,
        "stage": logged.stage,
        "kind": entry.kind,
        "index": entry.index,
        "name": entry.name,
        "provider": entry.agent.provider if entry.agent else "",
        "started_at": logged.at,
        "agent": agent(entry.agent),
        "tools": [tool(tool_listed) for tool_listed in entry.tools],
    }
    return shapes.WholeExecution(**begun | ends.changes_of(logged.execution))


def agent(settings: resolve.ResolvedAgent | None) -> shapes.Agent | None:
    """Return an execution's settings, masked."""
    return shapes.Agent.model_validate(masked(plain_json(settings))) if settings else None


def tool(spec: messages.ToolSpec) -> shapes.OfferedTool:
    """A tool as a model was shown it."""
    return shapes.OfferedTool.model_validate(plain_json(spec))


def calls(asked: Iterable[messages.ToolCall]) -> list[shapes.Call]:
    """The calls that an answer asks for."""
    return [shapes.Call.model_validate(call) for call in asked]


def natives(answer: messages.Message) -> list[shapes.NativeResult]:
    """Return the results of the provider's own tools."""
    return [shapes.NativeResult.model_validate(plain_json(result)) for result in answer.native]


def masked(value: Any) -> Any:
    """JSON with all its texts masked, for what people wrote who may have written a secret into it."""
    match value:
        case str():
            return _MASKER.text(value)
        case dict():
            return {key: masked(member) for key, member in value.items()}
        case list():
            return [masked(member) for member in value]
        case _:
            return value


def prompt(message: messages.Message) -> str:
    """The text of a message; where it is instructions, masked: all else was masked when it came in."""
    return _MASKER.text(message.text) if message.role == "system" else message.text


class Ends:
    """How executions went on after their starts: the providers that they came to, and their ends."""

    def __init__(self) -> None:
        self._changed: dict[str, dict[str, Any]] = {}

    def add(self, page: Iterable[conversations.Placed]) -> None:
        """Take note of what these entries say of it."""
        for placed in page:
            changed = self._changed.setdefault(placed.logged.execution, {})
            match placed.logged.entry:
                case entries.FellBack(provider=provider):
                    changed["provider"] = provider
                case entries.ExecutionEnded() as entry:
                    changed["ended_at"] = placed.logged.at
                    changed |= {"outcome": entry.outcome, "error": entry.error, "ungrounded": entry.ungrounded}

    def changes_of(self, execution: str) -> dict[str, Any]:
        """Return the changes of an execution since its start, as fields of its row."""
        return self._changed.get(execution, {})


def messages_of(placed: conversations.Placed) -> list[shapes.Message]:
    """The messages that an entry brings."""
    return [
        _message(placed.logged, message, position=index)
        for index, message in enumerate(registry.messages_of(placed.logged.entry), placed.messages)
    ]


def model_call(placed: conversations.Placed) -> shapes.ModelCall | None:
    """The model call that an entry tells of, if it does."""
    logged = placed.logged
    entry = called(logged.entry)
    if entry is None or entry.call is None:
        return None
    call, failure = entry.call, failed(entry)
    return shapes.ModelCall(
        n=placed.model_calls + 1,
        seq=logged.seq,
        run=logged.run,
        stage=logged.stage,
        execution=logged.execution,
        turn=entry.turn,
        tool_call_id=entry.call_id if isinstance(entry, entries.ToolSummarised) else "",
        provider=call.provider,
        model=call.model,
        context_messages=registry.context_messages(entry, before=placed.messages),
        seconds=call.seconds,
        input_tokens=call.usage.input_tokens,
        output_tokens=call.usage.output_tokens,
        thinking_tokens=call.usage.thinking_tokens,
        total_tokens=call.usage.total_tokens,
        failed_requests=[shapes.Attempt.model_validate(attempt) for attempt in call.attempts],
        failure=failure and failure.kind,
        failure_code=failure and failure.code,
        failure_text=failure and failure.text,
        cost=call.cost,
        created_at=logged.at,
    )


Called: TypeAlias = (
    entries.Answered | entries.Unanswered | entries.FellBack | entries.ContextCompacted | entries.ToolSummarised
)
"""The entries that record a model call; a compaction does if the provider refused the request before it."""


def called(entry: entries.Entry | entries.Unreadable) -> Called | None:
    """The entry, if it tells of a model call."""
    return cast("Called", entry) if registry.model_call(entry) else None


def failed(entry: Called) -> messages.Failure | None:
    """Why a call brought nothing; None where it did."""
    reply = registry.reply(entry)
    return reply if isinstance(reply, messages.Failure) else None


def answer(entry: Called) -> messages.Message:
    """Return the model's message; an empty one if it brought nothing."""
    reply = registry.reply(entry)
    return reply if isinstance(reply, messages.Message) else messages.Message(role="assistant")


def tool_calls(placed: conversations.Placed) -> list[shapes.ToolCall]:
    """The tool calls that an entry tells of."""
    logged = placed.logged
    return [
        shapes.ToolCall(
            n=number,
            seq=logged.seq,
            run=logged.run,
            stage=logged.stage,
            execution=logged.execution,
            tool_call_id=run.call.id,
            **tool_names.fields(run.call.name),
            arguments=run.call.arguments,
            result=run.result.text,
            failed=run.result.failed,
            in_doubt=run.result.in_doubt,
            seconds=run.seconds,
            created_at=logged.at,
        )
        for number, run in enumerate(registry.tool_runs(logged.entry), placed.tool_calls + 1)
    ]


def unreadable(seq: int, entry: entries.Unreadable) -> shapes.Unreadable:
    """An entry that cannot be read."""
    return shapes.Unreadable(seq=seq, kind=entry.kind, version=entry.version, problem=entry.problem)


def plain_json(part: Any) -> dict[str, Any]:
    """A part of the transcript as JSON that every client can read: a tool's schema may hold half a character."""
    plain: dict[str, Any] = messages.storable_json(_listed(dataclasses.asdict(part)))
    return plain


def _listed(value: Any) -> Any:
    """With lists where Python has tuples."""
    match value:
        case dict():
            return {key: _listed(member) for key, member in value.items()}
        case list() | tuple():
            return [_listed(member) for member in value]
        case _:
            return value


def _message(logged: entries.Logged, message: messages.Message, *, position: int) -> shapes.Message:
    return shapes.Message(
        seq=logged.seq,
        run=logged.run,
        stage=logged.stage,
        execution=logged.execution,
        position=position,
        role=message.role,
        text=prompt(message),
        thinking=message.thinking,
        tool_calls=calls(message.calls),
        native_results=natives(message),
        tool_call_id=message.call_id,
        **tool_names.fields(message.tool_name),
        failed=message.failed,
        in_doubt=message.in_doubt,
        created_at=logged.at,
    )

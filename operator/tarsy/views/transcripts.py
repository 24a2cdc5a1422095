"""Transcripts: the messages, model calls and tool calls that entries of the log record.

Only stored values are shown: alerts, answers and results as they were masked. Chains and instructions are stored as
their authors wrote them, for agents to run with, and are masked here. The opaque state of providers is not shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal, TypeAlias, cast

from tarsy.resources import chains
from tarsy.store.reads import transcript_pages
from tarsy.transcript import entries, full_results, line_excerpts, messages, tool_names
from tarsy.transcript.kinds import registry
from tarsy.views import base


class Usage(base.View):
    """Tokens, as a provider counted them."""

    input_tokens: int
    output_tokens: int
    thinking_tokens: int
    total_tokens: int


class Call(base.View):
    """A tool call that an answer asks for."""

    id: str
    """Unique in its execution; other answers call it `tool_call_id`."""
    name: str
    """`server.tool`; other answers have `server_name` and `tool_name`."""
    arguments: str
    """JSON as text, as the model gave it."""


class NativeResult(base.View):
    """The result of a provider's own tool, within an answer."""

    tool: chains.NativeTool
    content: str
    """A text for people: the output of the code, or the sources, a line each."""
    details: dict[str, Any]
    """`code`, `language` and `outcome` of code; else `queries` and `sources` (title, url, problem)."""


class Attempt(base.View):
    """A request to a provider that failed."""

    error: str
    usage: Usage
    """The tokens that the provider counted until then; the call's own do not include them."""
    provider: str
    """The provider; "" in older logs: then it is the call's."""
    code: str
    """The provider's name for the error: an HTTP status, or a word; "" if it has none."""


class FullResultDeleted(base.View):
    """The full text of a tool result was deleted before its transcript."""

    rule: full_results.Rule
    """The key of the platform file that deleted it."""
    at: datetime | None
    """The time; null if it is not known, as of the copy in a retry whose original is purged."""
    length: int
    """The length that it had, in characters."""
    message: str
    """The same as a sentence."""


class Message(base.View):
    """One message of an execution's conversation, as it was added; a model may be shown less of it later."""

    seq: int
    """The number of the log's entry that added it."""
    run: int
    stage: str
    execution: str
    position: int
    """Its position in the conversation, from 0."""
    role: Literal["system", "user", "assistant", "tool"]
    text: str
    thinking: str
    """The thoughts that the model made visible; they were never sent back as text."""
    tool_calls: list[Call]
    """The calls that it asks for."""
    native_results: list[NativeResult]
    """The results of the provider's own tools for this answer."""
    tool_call_id: str
    """With role tool: the call whose result this is."""
    server_name: str
    tool_name: str
    failed: bool
    """With role tool: the tool answered with an error, or not at all."""
    in_doubt: bool
    """With role tool: the call may have happened, and was not repeated."""
    full_result_deleted: FullResultDeleted | None
    """With role tool: the log has a part of the result, and its full text was deleted; else null."""
    created_at: datetime


class Messages(base.View):
    """The messages that some entries of the log added."""

    messages: list[Message]
    """By `seq`, and in an entry by `position`."""
    last: int
    """The value of `after` for the next page."""
    more: bool
    """Whether there are more already."""


class ModelCall(base.View):
    """One model call: its request, its cost, and its failure if it brought no answer."""

    n: int
    """Its number in the trace, from 1."""
    seq: int
    run: int
    stage: str
    execution: str
    turn: int
    """The number of the call in its execution, from 0; of a summary the call that is to read it."""
    tool_call_id: str
    """The tool call whose result it summarises; "" for all others."""
    provider: str
    model: str
    response_model: str
    """The model that answered, by the provider's name, which may be a version of `model`; "" if it named none."""
    response_id: str
    """The provider's id of the response; "" if it named none."""
    context_messages: int
    """The number of the execution's messages that it was sent, from the first; a summary is sent two of its own."""
    seconds: float
    input_tokens: int
    output_tokens: int
    thinking_tokens: int
    total_tokens: int
    failed_requests: list[Attempt]
    """Its requests that failed; the token counts above do not include them."""
    failure: str | None
    failure_code: str | None
    """The provider's name for the failure, such as an HTTP status; "" if it has none."""
    failure_text: str | None
    cost: base.Cost | None
    """The cost of all its requests, a decimal number as text; None if the provider has no price."""
    created_at: datetime


class Lines(base.View):
    """Consecutive lines, numbered from 1; of a long line maybe a part."""

    first: int
    last: int


class Excerpt(base.View):
    """The excerpt of a long result that the model was shown."""

    lines: int
    """The lines of the whole result."""
    length: int
    """Its characters."""
    shown: list[Lines]


class ToolCall(base.View):
    """One tool call that was made, and its result."""

    n: int
    """Its number in the trace, from 1."""
    seq: int
    run: int
    stage: str
    execution: str
    tool_call_id: str
    server_name: str
    """The server; "" if the model named none."""
    tool_name: str
    arguments: str
    """The arguments as the model gave them."""
    result: str
    """The result, masked, as the model was shown it first; if it was summarised, the text before that."""
    excerpt: Excerpt | None
    """The lines that `result` shows of the whole result; null if it is no excerpt."""
    failed: bool
    """The tool answered with an error, or not at all."""
    in_doubt: bool
    """The call may have happened, and was not repeated."""
    full_result_deleted: FullResultDeleted | None
    """The log has a part of the result, and its full text was deleted; else null."""
    seconds: float
    created_at: datetime


class Unreadable(base.View):
    """An entry of the log that this version of TARSy cannot read: the investigation waits for one that can."""

    seq: int
    kind: str
    version: int
    problem: str


def messages_of(numbered: transcript_pages.NumberedEntry, *, mask: base.Mask) -> list[Message]:
    """Return the messages that an entry adds."""
    logged = numbered.logged
    deleted = {run.call.id: full_results.deleted(logged, run) for run in registry.tool_runs(logged.entry)}
    return [
        Message(
            seq=logged.seq,
            run=logged.run,
            stage=logged.stage,
            execution=logged.execution,
            position=position,
            role=message.role,
            text=message_text(message, mask=mask),
            thinking=message.thinking,
            tool_calls=calls(message.calls),
            native_results=native_results(message),
            tool_call_id=message.call_id,
            **tool_names.fields(message.tool_name),
            failed=message.failed,
            in_doubt=message.in_doubt,
            full_result_deleted=full_result_deleted(deleted.get(message.call_id)),
            created_at=logged.at,
        )
        for position, message in enumerate(registry.messages_of(logged.entry), numbered.messages)
    ]


def full_result_deleted(deleted: full_results.Deleted | None) -> FullResultDeleted | None:
    """Return the deletion of a full text as it is shown."""
    return FullResultDeleted.model_validate(deleted) if deleted else None


def message_text(message: messages.Message, *, mask: base.Mask) -> str:
    """Return the text of a message. Instructions are masked here; all other texts were when they came in."""
    return mask(message.text) if message.role == "system" else message.text


def calls(tool_calls: Iterable[messages.ToolCall]) -> list[Call]:
    """Return the tool calls that an answer asks for."""
    return [Call.model_validate(call) for call in tool_calls]


def native_results(answer: messages.Message) -> list[NativeResult]:
    """Return the results of the provider's own tools."""
    return [NativeResult.model_validate(base.plain_json(result)) for result in answer.native]


CallEntry: TypeAlias = (
    entries.Answered | entries.Unanswered | entries.FellBack | entries.ContextCompacted | entries.ToolSummarised
)
"""The entries that record a model call; a compaction does if the provider refused the request before it."""


def call_entry(entry: entries.Entry | entries.Unreadable) -> CallEntry | None:
    """Return the entry if it records a model call, else None."""
    return cast("CallEntry", entry) if registry.model_call(entry) else None


def failure(entry: CallEntry) -> messages.Failure | None:
    """Return the failure of a model call; None if it brought an answer."""
    reply = registry.reply(entry)
    return reply if isinstance(reply, messages.Failure) else None


def answer(entry: CallEntry) -> messages.Message:
    """Return the model's message; an empty one if the call failed."""
    reply = registry.reply(entry)
    return reply if isinstance(reply, messages.Message) else messages.Message(role="assistant")


def model_call(numbered: transcript_pages.NumberedEntry) -> ModelCall | None:
    """Return the model call that an entry records; None if it records none."""
    logged = numbered.logged
    entry = call_entry(logged.entry)
    if entry is None or entry.call is None:
        return None
    call, failed = entry.call, failure(entry)
    return ModelCall(
        n=numbered.model_calls + 1,
        seq=logged.seq,
        run=logged.run,
        stage=logged.stage,
        execution=logged.execution,
        turn=entry.turn,
        tool_call_id=entry.call_id if isinstance(entry, entries.ToolSummarised) else "",
        provider=call.provider,
        model=call.model,
        response_model=call.response_model,
        response_id=call.response_id,
        context_messages=registry.context_messages(entry, before=numbered.messages),
        seconds=call.seconds,
        input_tokens=call.usage.input_tokens,
        output_tokens=call.usage.output_tokens,
        thinking_tokens=call.usage.thinking_tokens,
        total_tokens=call.usage.total_tokens,
        failed_requests=[Attempt.model_validate(attempt) for attempt in call.attempts],
        failure=failed and failed.kind,
        failure_code=failed and failed.code,
        failure_text=failed and failed.text,
        cost=call.cost,
        created_at=logged.at,
    )


def tool_calls(numbered: transcript_pages.NumberedEntry) -> list[ToolCall]:
    """Return the tool calls that an entry records."""
    logged = numbered.logged
    return [
        ToolCall(
            n=number,
            seq=logged.seq,
            run=logged.run,
            stage=logged.stage,
            execution=logged.execution,
            tool_call_id=run.call.id,
            **tool_names.fields(run.call.name),
            arguments=run.call.arguments,
            result=run.result.text,
            excerpt=run.excerpt and excerpt(run.excerpt),
            failed=run.result.failed,
            in_doubt=run.result.in_doubt,
            full_result_deleted=full_result_deleted(full_results.deleted(logged, run)),
            seconds=run.seconds,
            created_at=logged.at,
        )
        for number, run in enumerate(registry.tool_runs(logged.entry), numbered.tool_calls + 1)
    ]


def excerpt(chosen: line_excerpts.Excerpt) -> Excerpt:
    """Return what the log has of an excerpt beside its text."""
    lines = [Lines(first=span.first, last=span.last) for span in chosen.spans]
    return Excerpt(lines=chosen.lines, length=chosen.length, shown=lines)


def unreadable(seq: int, entry: entries.Unreadable) -> Unreadable:
    """Return an entry that cannot be read."""
    return Unreadable(seq=seq, kind=entry.kind, version=entry.version, problem=entry.problem)

"""The kinds of entries about model calls: a retry, an answer, a failure, a fallback, a compacted conversation."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from tarsy.resources import chains
from tarsy.transcript import entries, messages, react, record, timeline_events
from tarsy.transcript.kinds import kind, tool_calls

_DAY = 24 * 3600.0
_NATIVE: dict[chains.NativeTool, timeline_events.Type] = {
    "code_execution": "code_execution",
    "google_search": "google_search_result",
    "url_context": "url_context_result",
    "web_search": "web_search_result",
}


def _apply(
    execution: record.Execution,
    entry: entries.Answered | entries.Unanswered | entries.FellBack | entries.ContextCompacted,
) -> None:
    execution.retries += entry.call.retries if entry.call else 0
    match entry:
        case entries.Answered() | entries.Unanswered():
            execution.log.extend(entry.messages)
            if isinstance(entry, entries.Unanswered):
                execution.log.append(entry.failure)
            execution.reported = _reported(entry, execution) or execution.reported
        case entries.FellBack():
            execution.fallen.append(entry.provider)
            execution.given_up.append(entry.failure.text)
            execution.since = entry.turn
        case entries.ContextCompacted():
            newly_compacted = dict.fromkeys(entry.results, 0) | dict.fromkeys(entry.cut, entry.shown)
            # A new dict, because `reported` keeps the old one.
            execution.compacted = {**execution.compacted, **newly_compacted}


def _reported(entry: entries.Answered | entries.Unanswered, execution: record.Execution) -> record.Reported | None:
    """Return the provider's count of the request for `entry`, which is in the execution's log; None if there is none.

    It is None also if the answer has results of the provider's own tools: that count includes what those tools read.
    """
    tokens = entry.call.usage.input_tokens
    if tokens <= 0 or any(message.native for message in entry.messages):
        return None
    count = sum(isinstance(event, messages.Message) for event in execution.log)
    sent = count - 1 if isinstance(entry, entries.Answered) else count
    return record.Reported(provider=entry.call.provider, tokens=tokens, messages=sent, compacted=execution.compacted)


def _retry_event(entry: entries.ModelRetried, context: timeline_events.Context) -> Iterator[timeline_events.Event]:
    logged = context.logged
    # A wait is shorter than a day. A corrupt row may have a number that no datetime can hold.
    wait = timedelta(seconds=min(entry.seconds, _DAY)) if entry.seconds > 0 else timedelta(0)
    metadata = {
        "provider": entry.provider,
        "model": entry.model,
        "code": entry.code,
        "attempt": entry.attempt,
        "again_at": (logged.at + wait).isoformat(),
    }
    # The key has the number of the entry, because after a takeover the attempts are counted from 1 again.
    yield context.event(f"{entry.turn}.retry-{logged.seq}", "model_retry", "completed", entry.error, metadata)


def _answer_events(entry: entries.Answered, context: timeline_events.Context) -> Iterator[timeline_events.Event]:
    answer = entry.messages[-1]
    metadata = {"provider": entry.call.provider, "model": entry.call.model}
    if answer.thinking:
        native = {"source": "native"} | metadata
        yield context.event(f"{entry.turn}.thinking", "llm_thinking", "completed", answer.thinking, native)
    text, is_conclusion = answer.text, not answer.calls
    if record.is_react(context.execution.strategy):
        reading = react.read(answer.text)
        if reading.problem:  # the event has the whole text
            is_conclusion = False
        else:
            text = reading.answer if is_conclusion else ""
        if reading.thought and not reading.problem:
            labelled = {"source": "react"} | metadata
            yield context.event(f"{entry.turn}.thought", "llm_thinking", "completed", reading.thought, labelled)
    for index, result in enumerate(answer.native):
        details = result.details | metadata
        yield context.event(f"{entry.turn}.native-{index}", _NATIVE[result.tool], "completed", result.content, details)
    if text:
        text_type: timeline_events.Type = "llm_response"
        if is_conclusion:
            text_type = "executive_summary" if context.execution.kind == "summary" else "final_analysis"
        yield context.event(f"{entry.turn}.text", text_type, "completed", text, metadata)
    for call in answer.calls:
        yield context.event(f"{call.id}.asked", "llm_tool_call", "completed", "", tool_calls.metadata(call))
        yield context.event(f"{call.id}.call", "mcp_tool_call", "streaming", "", tool_calls.metadata(call))


def _fallback_event(entry: entries.FellBack, context: timeline_events.Context) -> Iterator[timeline_events.Event]:
    failure = entry.failure
    metadata = {"from": entry.call.provider, "to": entry.provider, "kind": failure.kind, "code": failure.code}
    content = f"requests go to {entry.provider} from here on: {failure.text}"
    key = f"{entry.turn}.fallback-{entry.provider}"
    yield context.event(key, "provider_fallback", "completed", content, metadata)


def _compaction_event(
    entry: entries.ContextCompacted, context: timeline_events.Context
) -> Iterator[timeline_events.Event]:
    metadata = {
        "results": list(entry.results),
        "cut": list(entry.cut),
        "shown": entry.shown,
        "tokens": entry.tokens,
        "limit": entry.limit,
    }
    parts = []
    if entry.results:
        parts.append(f"older tool results, each replaced by one line from here on: {len(entry.results)}")
    if entry.cut:
        parts.append(f"tool results of the last answer, each cut to {entry.shown} characters: {len(entry.cut)}")
    if entry.failure:
        parts.append(f"the request was refused: {entry.failure.text}")
    first = (*entry.results, *entry.cut, "")[0]
    # One request may need several compactions, each with shorter results.
    key = f"{entry.turn}.compacted-{first}-{entry.shown}"
    yield context.event(key, "context_compacted", "completed", "; ".join(parts), metadata)


KINDS: dict[type[Any], kind.Kind[Any]] = {
    entries.ModelRetried: kind.Kind(
        order=kind.require_execution,
        effect=kind.none,
        messages=kind.nothing,
        model_calls=None,
        tool_calls=kind.nothing,
        timeline=kind.timeline_with(_retry_event),
    ),
    entries.Answered: kind.Kind(
        order=kind.require_execution,
        effect=_apply,
        messages=lambda entry: entry.messages,
        model_calls=kind.ModelCalls(
            call=lambda entry: entry.call,
            reply=lambda entry: entry.messages[-1],
            context=lambda entry, before: before + len(entry.messages) - 1,
        ),
        tool_calls=kind.nothing,
        timeline=kind.Timeline(events=_answer_events, closes=lambda _: "Failed", last_text=lambda _: "llm_response"),
    ),
    entries.Unanswered: kind.Kind(
        order=kind.require_execution,
        effect=_apply,
        messages=lambda entry: (*entry.messages, entry.failure),
        model_calls=kind.ModelCalls(
            call=lambda entry: entry.call,
            reply=lambda entry: entry.failure,
            context=lambda entry, before: before + len(entry.messages),
        ),
        tool_calls=kind.nothing,
        timeline=kind.Timeline(
            events=lambda entry, context: [
                context.event(
                    f"{entry.turn}.error",
                    "error",
                    "failed",
                    entry.failure.text,
                    {"kind": entry.failure.kind, "provider": entry.call.provider, "model": entry.call.model},
                )
            ],
            closes=lambda _: "Failed",
            last_text=lambda _: "llm_response",
        ),
    ),
    entries.FellBack: kind.Kind(
        order=kind.require_execution,
        effect=_apply,
        messages=kind.nothing,
        model_calls=kind.ModelCalls(
            call=lambda entry: entry.call, reply=lambda entry: entry.failure, context=lambda _, before: before
        ),
        tool_calls=kind.nothing,
        timeline=kind.Timeline(events=_fallback_event, closes=kind.none, last_text=lambda _: "llm_response"),
    ),
    entries.ContextCompacted: kind.Kind(
        order=kind.require_execution,
        effect=_apply,
        messages=kind.nothing,
        model_calls=kind.ModelCalls(
            call=lambda entry: entry.call,
            reply=lambda entry: entry.failure or messages.Message(role="assistant"),
            context=lambda _, before: before,
        ),
        tool_calls=kind.nothing,
        timeline=kind.timeline_with(_compaction_event),
    ),
}

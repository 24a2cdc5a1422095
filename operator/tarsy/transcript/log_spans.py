"""The spans of an investigation: a pure fold of its log.

A run is a trace: `invoke_workflow` with the chain's name, below it a span for each stage, `invoke_agent` for each
execution, `chat` for each model call and `execute_tool` for each tool call. A span comes with the entry that ends it.
Ids, times and attributes come from committed entries alone, so a takeover, or a second reading of the log, gives the
same spans.

A call's end is the time of its commit, by the database's clock, and its duration is the one that its worker measured.
Contents (prompts, answers, arguments, results) are left out unless they are asked for; the log has them masked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tarsy.telemetry import genai, spans
from tarsy.transcript import entries, excerpts, messages, record
from tarsy.transcript.kinds import registry

NAME_MAX = 200
"""Characters of a name that a model or a provider chose: of a tool, or of an error."""
CONTENT_MAX = 64 * 1024
"""Characters of the texts in one attribute; longer ones are cut in the middle."""
_TEXT_MIN = 256
_FAILED = ("Failed", "TimedOut")


@dataclass(kw_only=True)
class _Execution:
    """An execution that has started."""

    started: entries.ExecutionStarted
    at: datetime
    unread: list[messages.Message]
    """The messages that the next model call reads and earlier ones did not; empty without contents."""
    answer: messages.Message | None = None
    """The last answer."""


@dataclass(kw_only=True)
class LogSpans:
    """The spans of one investigation, entry by entry."""

    snapshot: record.Snapshot
    provider_type: Callable[[str], str | None] = lambda _: None
    """Returns the type of a provider of the platform file by its name; None if the file has none of this name."""
    contents: bool = False
    """Whether spans have the contents."""
    _runs: dict[int, tuple[datetime, str]] = field(default_factory=dict)
    """The start and the question of each run."""
    _stages: dict[tuple[int, str], datetime] = field(default_factory=dict)
    _executions: dict[str, _Execution] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.snapshot.admitted_at is not None:
            self._runs[entries.INVESTIGATION] = (self.snapshot.admitted_at, "")

    def add(self, seq: int, at: datetime, entry: entries.Entry | entries.Unreadable) -> Sequence[spans.Span]:
        """Add the entry with number `seq`, committed `at`, and return the spans that it ends.

        Entries that were copied from another investigation end none: they are in its trace.
        """
        ended = list(self._ended(seq, at, entry))
        return () if seq <= self.snapshot.copied_entries else ended

    def _ended(self, seq: int, at: datetime, entry: entries.Entry | entries.Unreadable) -> Iterator[spans.Span]:
        match entry:
            case entries.RunStarted():
                self._runs[entry.run] = (at, entry.question)
            case entries.StageStarted():
                self._stages[entry.run, entry.stage] = at
            case entries.ExecutionStarted():
                unread = [*entry.messages] if self.contents else []
                self._executions[entry.execution] = _Execution(started=entry, at=at, unread=unread)
            case entries.StageEnded():
                yield self._stage_span(entry, at)
            case entries.RunEnded():
                yield self._run_span(entry, at)
            case _ if isinstance(entry, entries.OfExecution) and entry.execution in self._executions:
                yield from self._execution_spans(seq, at, entry, self._executions[entry.execution])

    def _execution_spans(
        self, seq: int, at: datetime, entry: entries.OfExecution, execution: _Execution
    ) -> Iterator[spans.Span]:
        if call := registry.model_call(entry):
            yield self._model_span(seq, at, entry, call, execution)
        if runs := registry.tool_runs(entry):
            # Calls of one entry began together; the longest one was followed by the commit.
            start = at - timedelta(seconds=max(run.seconds for run in runs))
            for run in runs:
                yield self._tool_span(run, start, execution)
        if self.contents:
            _read(entry, execution)
        if isinstance(entry, entries.ExecutionEnded):
            yield self._agent_span(entry, at, execution)
            del self._executions[entry.execution]

    def _run_span(self, entry: entries.RunEnded, at: datetime) -> spans.Span:
        start, question = self._runs.get(entry.run, (at, ""))
        snapshot = self.snapshot
        attributes: dict[str, spans.Value] = {
            genai.OPERATION: "invoke_workflow",
            genai.WORKFLOW_NAME: snapshot.chain_name,
            "tarsy.namespace": snapshot.namespace,
            "tarsy.alert_type": snapshot.alert_type,
            "tarsy.investigation": snapshot.name,
            "tarsy.reason": entry.reason,
        }
        if entry.grounds:
            attributes["tarsy.grounds"] = entry.grounds
        if self.contents:
            asked = messages.Message(role="user", text=question if entry.run else snapshot.alert_data)
            attributes[genai.INPUT_MESSAGES] = _messages([asked])
            if entry.final_analysis:
                answer = messages.Message(role="assistant", text=entry.final_analysis)
                attributes[genai.OUTPUT_MESSAGES] = _messages([answer], finish_reason="stop")
        return self._span(
            entry.run,
            (),
            name=f"invoke_workflow {snapshot.chain_name}",
            start=start,
            end=at,
            attributes=attributes,
            links=self._links(entry.run),
            outcome=entry.ending,
            error=entry.reason,
            message=entry.message,
        )

    def _links(self, run: int) -> Sequence[spans.Link]:
        """Return the links of a run's span: what the alert names, and the investigation of a question or a retry."""
        snapshot = self.snapshot
        if run != entries.INVESTIGATION:
            return [_link_to_run(snapshot.id, reason="investigation")]
        links = [_link_to_run(snapshot.retry_of, reason="retry_of")] if snapshot.retry_of else []
        alert = spans.link_from_traceparent(snapshot.traceparent, reason="alert")
        return [*links, alert] if alert else links

    def _stage_span(self, entry: entries.StageEnded, at: datetime) -> spans.Span:
        return self._span(
            entry.run,
            ("stage", entry.stage),
            parent=(),
            name=f"stage {entry.stage}",
            start=self._stages.pop((entry.run, entry.stage), at),
            end=at,
            attributes={},
            stage=entry.stage,
            outcome=entry.outcome,
            message=entry.message,
        )

    def _agent_span(self, entry: entries.ExecutionEnded, at: datetime, execution: _Execution) -> spans.Span:
        started, agent = execution.started, execution.started.agent
        name = agent.name if agent else started.name
        attributes: dict[str, spans.Value] = {
            genai.OPERATION: "invoke_agent",
            genai.AGENT_NAME: name,
            genai.AGENT_ID: started.execution,
            "tarsy.execution.kind": started.kind,
            "tarsy.execution.name": started.name,
        }
        if agent:
            attributes |= self._provider(agent.provider) | {"tarsy.strategy": agent.strategy}
        if self.contents:
            attributes |= _instructions(started.messages)
            attributes[genai.INPUT_MESSAGES] = _messages([sent for sent in started.messages if sent.role != "system"])
            if execution.answer and entry.outcome == "Completed":
                attributes[genai.OUTPUT_MESSAGES] = _messages([execution.answer], finish_reason="stop")
        stage = ("stage", started.stage) if started.stage else ()
        return self._span(
            started.run,
            _names(started),
            parent=("execution", started.parent) if started.parent else stage,
            name=f"invoke_agent {name}",
            start=execution.at,
            end=at,
            attributes=attributes,
            stage=started.stage,
            outcome=entry.outcome,
            message=entry.error,
        )

    def _model_span(
        self, seq: int, at: datetime, entry: entries.OfExecution, call: entries.ModelCall, execution: _Execution
    ) -> spans.Span:
        reply = registry.reply(entry)
        failure = reply if isinstance(reply, messages.Failure) else None
        usage = call.usage
        attributes: dict[str, spans.Value] = {
            genai.OPERATION: "chat",
            genai.REQUEST_MODEL: call.model,
            genai.REQUEST_STREAM: True,
            genai.INPUT_TOKENS: usage.input_tokens,
            genai.OUTPUT_TOKENS: usage.output_tokens + usage.thinking_tokens,
            "tarsy.retries": call.retries,
            **self._provider(call.provider),
        }
        if call.response_model:
            attributes[genai.RESPONSE_MODEL] = call.response_model
        if call.response_id:
            attributes[genai.RESPONSE_ID] = call.response_id
        if usage.thinking_tokens:
            attributes[genai.REASONING_TOKENS] = usage.thinking_tokens
        if call.cost is not None:
            attributes[genai.COST] = call.cost
        if isinstance(reply, messages.Message):
            reason = "tool_call" if reply.calls else "stop"
            attributes[genai.FINISH_REASONS] = [reason]
            if self.contents:
                attributes[genai.OUTPUT_MESSAGES] = _messages([reply], finish_reason=reason)
        if self.contents:
            added = [message for message in _sent(entry) if message.role != "system"]
            unread = [message for message in execution.unread if message.role != "system"]
            attributes |= _instructions(execution.started.messages)
            attributes[genai.INPUT_MESSAGES] = _messages([*unread, *added])
        return self._span(
            execution.started.run,
            ("model", execution.started.execution, str(seq)),
            parent=_names(execution.started),
            name=f"chat {call.model}",
            kind="client",
            start=at - timedelta(seconds=call.seconds),
            end=at,
            attributes=attributes,
            stage=execution.started.stage,
            outcome="Failed" if failure else "Completed",
            error=failure.code or failure.kind if failure else "",
            message=failure.text if failure else "",
        )

    def _tool_span(self, run: entries.ToolRun, start: datetime, execution: _Execution) -> spans.Span:
        name = excerpts.one_line(run.call.name, NAME_MAX)
        attributes: dict[str, spans.Value] = {
            genai.OPERATION: "execute_tool",
            genai.TOOL_NAME: name,
            genai.TOOL_TYPE: "function",
            genai.TOOL_CALL_ID: run.call.id[:NAME_MAX],
        }
        if self.contents:
            attributes[genai.TOOL_ARGUMENTS] = _cut(run.call.arguments, CONTENT_MAX)
            attributes[genai.TOOL_RESULT] = _cut(run.result.text, CONTENT_MAX)
        return self._span(
            execution.started.run,
            ("tool", execution.started.execution, run.call.id),
            parent=_names(execution.started),
            name=f"execute_tool {name}",
            start=start,
            end=start + timedelta(seconds=run.seconds),
            attributes=attributes,
            stage=execution.started.stage,
            outcome="Failed" if run.result.failed else "Completed",
            error="in_doubt" if run.result.in_doubt else "tool_error",
            message=run.result.text[:NAME_MAX],
        )

    def _provider(self, name: str) -> dict[str, spans.Value]:
        provider_type = self.provider_type(name)
        return {genai.PROVIDER: genai.PROVIDERS.get(provider_type or "", provider_type or name), "tarsy.provider": name}

    def _span(
        self,
        run: int,
        names: Sequence[str],
        *,
        parent: Sequence[str] | None = None,
        attributes: Mapping[str, spans.Value],
        outcome: str,
        stage: str = "",
        error: str = "",
        message: str = "",
        **fields: Any,
    ) -> spans.Span:
        """Return a span; `names` identify it and its `parent` within the run, whose own span has no names."""
        uid = self.snapshot.id
        failed = outcome in _FAILED
        shared: dict[str, spans.Value] = {
            genai.CONVERSATION: uid,
            genai.SESSION: uid,
            "tarsy.run": run,
            "tarsy.outcome": outcome,
        }
        if stage:
            shared["tarsy.stage"] = stage
        if failed:
            shared[genai.ERROR_TYPE] = excerpts.one_line(error, NAME_MAX) or outcome
        return spans.Span(
            trace_id=spans.trace_id(uid, run),
            span_id=spans.span_id(uid, run, *names),
            parent_id=b"" if parent is None else spans.span_id(uid, run, *parent),
            attributes={**shared, **attributes},
            failed=failed,
            message=_cut(message, CONTENT_MAX) if failed and self.contents else "",
            **fields,
        )


def _link_to_run(investigation: str, *, reason: str) -> spans.Link:
    run = entries.INVESTIGATION
    return spans.Link(
        trace_id=spans.trace_id(investigation, run), span_id=spans.span_id(investigation, run), reason=reason
    )


def _names(started: entries.ExecutionStarted) -> Sequence[str]:
    return ("execution", started.execution)


def _sent(entry: entries.OfExecution) -> Sequence[messages.Message]:
    """Return the messages that were added for the model call of `entry`."""
    match entry:
        case entries.Answered():
            return entry.messages[:-1]
        case entries.Unanswered():
            return entry.messages
    return ()


def _read(entry: entries.OfExecution, execution: _Execution) -> None:
    """Update what the next model call reads."""
    match entry:
        case entries.Answered():
            execution.unread, execution.answer = [], entry.messages[-1]
        case entries.Unanswered():
            execution.unread.extend(entry.messages)
        case entries.ToolsAnswered():
            execution.unread.extend(run.result for run in entry.runs)


def _instructions(sent: Sequence[messages.Message]) -> dict[str, spans.Value]:
    texts = [message.text for message in sent if message.role == "system"]
    if not texts:
        return {}
    limit = _limit(len(texts))
    parts = [{"type": "text", "content": _cut(text, limit)} for text in texts]
    return {genai.SYSTEM_INSTRUCTIONS: spans.JSON(parts, sum(len(part["content"]) for part in parts))}


def _messages(sent: Sequence[messages.Message], *, finish_reason: str = "") -> spans.JSON:
    """Return messages in the convention's shape.

    Source: `docs/gen-ai/gen-ai-input-messages.json` and `gen-ai-output-messages.json` of `genai.COMMIT`.
    """
    count = sum(2 + len(message.calls) for message in sent)
    limit = _limit(count)
    characters = 0

    def cut(text: str) -> str:
        nonlocal characters
        text = _cut(text, limit)
        characters += len(text)
        return text

    document = []
    for message in sent:
        parts: list[dict[str, Any]] = []
        if message.role == "tool":
            parts.append({"type": "tool_call_response", "id": message.call_id, "response": cut(message.text)})
        else:
            if message.thinking:
                parts.append({"type": "reasoning", "content": cut(message.thinking)})
            if message.text:
                parts.append({"type": "text", "content": cut(message.text)})
            parts += [
                {"type": "tool_call", "id": call.id, "name": cut(call.name), "arguments": cut(call.arguments)}
                for call in message.calls
            ]
        description: dict[str, Any] = {"role": message.role, "parts": parts}
        document.append(description | ({"finish_reason": finish_reason} if finish_reason else {}))
    return spans.JSON(document, characters + 100 * count)


def _limit(texts: int) -> int:
    """Return the limit of each of several texts in one attribute, in characters."""
    return max(_TEXT_MIN, CONTENT_MAX // max(1, texts))


def _cut(text: str, limit: int) -> str:
    return excerpts.middle_cut(text, limit)

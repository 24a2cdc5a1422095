"""An investigation in Markdown, for people to read, keep and send on.

Text from outside (alerts, answers, results) stands in fences that are longer than any run of backticks in it, and
within lines in spans of code of the same kind: no heading, link, image or HTML of it is one in the document, and
nothing of it ends where it stands.

Source: CommonMark 0.31, "Fenced code blocks" and "Code spans".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from tarsy.api import transcripts
from tarsy.store import history
from tarsy.store import transcripts as stored
from tarsy.transcript import entries, messages

END = "\n---\n\nThe end of the transcript.\n"
"""What a whole document ends with."""

_BACKTICKS = re.compile("`+")
_KINDS = {"agent": "Agent", "synthesis": "Synthesis", "summary": "Summary", "chat": "Answer"}


def fence(text: str) -> str:
    """`text` as a block of its own, as it is."""
    marks = "`" * max(3, _longest(text) + 1)
    return f"{marks}text\n{text}\n{marks}\n\n"


def span(text: str) -> str:
    """`text` within a line, as it is but for its line ends."""
    line = " ".join(text.split()) or "(nothing)"
    marks = "`" * (_longest(line) + 1)
    room = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{marks}{room}{line}{room}{marks}"


def _longest(text: str) -> int:
    return max(map(len, _BACKTICKS.findall(text)), default=0)


def head(found: history.Head) -> str:
    """What the investigation is and what it found: the beginning of the document."""
    summary = found.summary
    parts = [f"# Investigation {span(f'{summary.namespace}/{summary.name}')}\n\n", "## Final analysis\n\n"]
    parts.append(fence(summary.final_analysis) if summary.final_analysis else "There is none.\n\n")
    if summary.summary:
        parts.append(f"### In a few lines\n\n{fence(summary.summary)}")
    facts = "".join(f"- {name}: {value}\n" for name, value in _facts(found))
    parts.append(f"## Facts\n\n{facts}\n")
    if summary.gaps:
        told = (f"- {span(gap['tool'])}: {span(gap['reason'])}\n" for gap in summary.gaps)
        parts.append(f"### What could not be inspected\n\n{''.join(told)}\n")
    parts.append(f"## Alert\n\n{fence(found.alert_data)}")
    return "".join(parts)


def _facts(found: history.Head) -> Iterator[tuple[str, str]]:
    summary = found.summary
    yield "Phase", f"{summary.phase}{f' ({summary.reason})' if summary.reason else ''}"
    if summary.message:
        yield "Message", span(summary.message)
    yield "Id", span(str(summary.id))
    yield "Alert type", span(summary.alert_type)
    if found.severity:
        yield "Severity", span(found.severity)
    if summary.chain_name:
        yield "Chain", span(f"{summary.chain_namespace}/{summary.chain_name}")
    if summary.author:
        yield "Author", span(summary.author)
    if found.runbook_url:
        yield "Runbook", span(found.runbook_url)
    yield "Admitted", _moment(summary.admitted_at)
    if summary.started_at:
        yield "Started", _moment(summary.started_at)
    if summary.ended_at:
        yield "Ended", _moment(summary.ended_at)
    if summary.grounds:
        yield "Grounds", summary.grounds
    yield "Calls", f"{summary.llm_calls} of models, {summary.tool_calls} of tools"
    used = (summary.input_tokens, summary.output_tokens, summary.thinking_tokens, summary.total_tokens)
    yield "Tokens", _tokens(*used)
    if summary.cost is not None:
        yield "Cost", f"{summary.cost:.6g}"
    skipped = [f"{span(stage.name)}: {span(stage.message)}" for stage in summary.stages if stage.outcome == "Skipped"]
    if skipped:
        yield "Skipped", "; ".join(skipped)
    yield "Log", f"{found.log_seq} entries"


def scope(found: history.Head, *, run: int, stage: str) -> str:
    """What begins a stage, or what belongs to none."""
    if stage:
        known = next((one for one in found.summary.stages if run == 0 and one.name == stage), None)
        told = f" ({known.outcome})" if known and known.outcome else ""
        message = f"{span(known.message)}\n\n" if known and known.message else ""
        return f"## Stage {span(stage)}{told}\n\n{message}"
    asked = next((one for one in found.runs if one.number == run and run > 0), None)
    if asked is None:
        return "## Summary of the investigation\n\n"
    ended = f"Ended: {asked.ending} ({asked.reason})\n\n" if asked.ending else ""
    return f"## Question {run}\n\n{fence(asked.question)}{ended}"


def execution(outline: stored.Outline) -> str:
    """What begins an execution."""
    return f"### {_KINDS.get(outline.kind, 'Execution')} {span(outline.name)}\n\nExecution {span(outline.id)}\n\n"


def entry(placed: stored.Placed) -> Iterator[str]:
    """What an entry tells of its execution."""
    logged = placed.logged
    match logged.entry:
        case entries.ExecutionStarted() as started:
            yield from _started(started)
        case entries.Answered() as answered:
            yield from map(_said, answered.messages[:-1])
            yield _call(placed)
            yield from _answered(answered.messages[-1])
        case entries.Unanswered() as failed:
            yield from map(_said, failed.messages)
            yield _call(placed)
        case entries.FellBack(provider=provider):
            yield _call(placed)
            yield f"From here on {span(provider)} is asked.\n\n"
        case entries.ContextCompacted() as compacted:
            if compacted.call:
                yield _call(placed)
            told = f"{len(compacted.results)} results are shown to the model as a line each from here on"
            yield f"{told}, and {len(compacted.cut)} cut to {compacted.shown} characters.\n\n"
        case entries.ToolsAnswered():
            for call, result in transcripts.tool_calls(placed):
                yield _result(call, result)
        case entries.ExecutionEnded() as ended:
            error = f": {span(ended.error)}" if ended.error else ""
            ungrounded = ", without having looked at anything" if ended.ungrounded else ""
            yield f"Ended {_moment(logged.at)}: {ended.outcome}{ungrounded}{error}\n\n"
        case entries.Unreadable() as unread:
            yield f"Entry {logged.seq} cannot be read by this version of TARSy: {span(unread.problem)}\n\n"


def _started(started: entries.ExecutionStarted) -> Iterator[str]:
    if started.agent:
        agent = started.agent
        yield f"- Provider: {span(agent.provider)}\n- Strategy: {agent.strategy}\n"
        yield f"- Iterations: {agent.max_iterations} at most\n"
        yield f"- Tools: {', '.join(span(tool.name) for tool in started.tools) or 'none'}\n\n"
    yield from map(_said, started.messages)


def _said(message: messages.Message) -> str:
    return f"#### {message.role.capitalize()}\n\n{fence(message.text)}"


def _call(placed: stored.Placed) -> str:
    call = transcripts.model_call(placed)
    assert call  # noqa: S101 - the entry tells of one
    used = _tokens(call.input_tokens, call.output_tokens, call.thinking_tokens, call.total_tokens)
    cost = f", cost {call.cost:.6g}" if call.cost is not None else ""
    parts = [
        f"#### Model call {call.n}\n\n",
        f"{span(call.provider)}, {span(call.model)}: {call.seconds:.1f} s, tokens {used}{cost}\n\n",
    ]
    parts += [
        f"- Failed attempt ({span(attempt['code'] or 'no code')}): {span(attempt['error'])}\n"
        for attempt in call.attempts
    ]
    if call.attempts:
        parts.append("\n")
    if call.failure:
        code = f", {span(call.failure_code)}" if call.failure_code else ""
        parts.append(f"Failed ({call.failure}{code}):\n\n{fence(call.failure_text or '')}")
    return "".join(parts)


def _answered(answer: messages.Message) -> Iterator[str]:
    if answer.thinking:
        yield f"Thoughts:\n\n{fence(answer.thinking)}"
    if answer.text:
        yield f"Answer:\n\n{fence(answer.text)}"
    for result in answer.native:
        yield f"By the provider's own tool {result.tool}:\n\n{fence(result.content)}"
    for call in answer.calls:
        yield f"Calls {span(call.name)} ({span(call.id)}):\n\n{fence(call.arguments)}"


def _result(call: transcripts.ToolCall, result: messages.Message) -> str:
    failed = ", failed" if result.failed else ""
    doubted = ", in doubt" if result.in_doubt else ""
    title = f"#### Tool call {call.n}: {span(call.tool_name)} ({span(call.call_id)})"
    return f"{title}\n\n{call.seconds:.1f} s{failed}{doubted}\n\n{fence(result.text)}"


def _tokens(given: int, gave: int, thought: int, total: int) -> str:
    return f"{total} ({given} in, {gave} out, {thought} thinking)"


def _moment(at: datetime) -> str:
    return at.isoformat(timespec="seconds")

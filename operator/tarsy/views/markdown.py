"""An investigation in Markdown, for people to read, keep and send on.

What it came to stands first, then what it is made of, agent by agent. Answers of models are shown as the Markdown that
they are, everything else from outside as it is (`escape`). What is long is folded; what is longer than anybody reads is
cut, and says so, and where the whole is; what stood in another prompt before is left out, and it says where it stands.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from tarsy.resources import investigations
from tarsy.store.reads import conversations, history
from tarsy.transcript import entries, record
from tarsy.transcript.kinds import runs
from tarsy.views import escape, shapes, transcripts

END = "---\n\nThe end of the transcript.\n"
"""The end of a complete document."""
SHOWN_MAX = 8_000
"""Characters of a prompt, a thought or a result that are shown."""
UNFOLDED_MAX = 800
"""Characters of what is not folded."""
UNFOLDED_LINES = 12
REPEATED_MIN = 200
"""Characters of lines of a prompt that are not shown again where they follow one another as they did in another one."""
REMEMBERED_MAX = 50_000
"""Lines of prompts that are remembered."""

_KINDS = {"agent": "Agent", "synthesis": "Synthesis", "summary": "Summary", "chat": "Answer"}


class Document:
    """One document, told part by part; it remembers what was in its prompts."""

    def __init__(self, head: history.Head) -> None:
        self._found = head
        self._path = f"/api/v1/investigations/{head.summary.id}"
        self._prompts: dict[int, str] = {}
        """The execution that a prompt's line appeared in first, by the line's hash."""
        self._name, self._execution = "", ""
        """The present execution."""
        self._is_react = False

    def head(self) -> str:
        """Return the beginning of the document: the investigation and its result."""
        summary = self._found.summary
        parts = [f"# Investigation {escape.span(f'{summary.namespace}/{summary.name}')}\n\n"]
        parts.append(_table(("", ""), _facts(self._found)))
        if summary.summary:
            parts.append(f"## Summary\n\n{escape.markdown(summary.summary, below=2)}")
        parts.append("## Final analysis\n\n")
        parts.append(
            escape.markdown(summary.final_analysis, below=2) if summary.final_analysis else "There is none.\n\n"
        )
        if summary.gaps:
            rows = ((escape.table_cell(gap["tool"]), escape.table_cell(gap["reason"])) for gap in summary.gaps)
            parts.append(f"## What could not be inspected\n\n{_table(('Tool', 'Reason'), rows)}")
        parts.append(f"## Alert\n\n{_folded('The alert', self._found.alert_data)}")
        return "".join(parts)

    def scope(self, outlines: Sequence[conversations.Outline]) -> str:
        """Return the heading of a stage, or of executions without one; `outlines` are its executions."""
        first = outlines[0]
        return self._title(first) + _table(
            ("Agent", "Status", "Duration", "Iterations", "Tool calls", "Tokens", "Cost"), map(_numbers, outlines)
        )

    def _title(self, first: conversations.Outline) -> str:
        if first.stage:
            stages = (stage for stage in self._found.summary.stages if first.run == 0 and stage.name == first.stage)
            own_stage = next(stages, None)
            outcome_text = f" ({own_stage.outcome})" if own_stage and own_stage.outcome else ""
            message = f"{escape.span(own_stage.message)}\n\n" if own_stage and own_stage.message else ""
            return f"## Stage {escape.span(first.stage)}{outcome_text}\n\n{message}"
        asked = next((stage for stage in self._found.runs if stage.number == first.run), None)
        if asked is None or asked.kind == "investigation":
            return "## How it was summed up\n\n"
        ended = f"Ended: {asked.ending} ({asked.reason})\n\n" if asked.ending else ""
        return f"## Question {first.run}\n\n{escape.code_block(asked.question)}{ended}"

    def execution(self, outline: conversations.Outline) -> str:
        """Return the heading of an execution."""
        self._name, self._execution = outline.name, outline.id
        self._is_react = record.is_react(outline.strategy)
        error = f"{escape.span(outline.error)}\n\n" if outline.error else ""
        return f"### {_KINDS.get(outline.kind, 'Execution')} {escape.span(outline.name)}\n\n{error}"

    def entry(self, placed: conversations.Placed) -> Iterator[str]:
        """Yield the text of an entry of the present execution."""
        logged = placed.logged
        match logged.entry:
            case entries.ExecutionStarted() as started:
                yield from self._started(started, placed)
            case entries.Answered():
                *before, answer = transcripts.messages_of(placed)
                yield from map(self._message, before)
                yield self._call(placed)
                yield from self._answered(answer)
            case entries.Unanswered():
                yield from map(self._message, transcripts.messages_of(placed))
                yield self._call(placed)
            case entries.FellBack(provider=provider):
                yield self._call(placed)
                yield f"From here on {escape.span(provider)} is asked.\n\n"
            case entries.ContextCompacted() as compacted:
                if compacted.call:
                    yield self._call(placed)
                notice = f"{len(compacted.results)} results are shown to the model as a line each from here on"
                yield f"{notice}, and {len(compacted.cut)} cut to {compacted.shown} characters.\n\n"
            case entries.ToolsAnswered():
                yield from map(self._result, transcripts.tool_calls(placed))
            case entries.ToolSummarised() as summarised:
                yield self._call(placed)
                if summarised.text:
                    call = escape.span(summarised.call_id)
                    yield f"A summary of the result of {call}, which the agent reads instead:\n\n"
                    yield _folded("Summary", summarised.text)
            case entries.ExecutionEnded() as ended:
                ungrounded = ", without having looked at anything" if ended.ungrounded else ""
                yield f"Ended {_moment(logged.at)}: {ended.outcome}{ungrounded}\n\n"
            case entries.Unreadable() as unread:
                yield f"Entry {logged.seq} cannot be read by this version of TARSy: {escape.span(unread.problem)}\n\n"

    def left_out(self, count: int) -> str:
        """Return the note on executions beyond the limit."""
        return f"**{count:,} executions are told; the others are in the JSON export**, `GET {self._path}/export`.\n\n"

    def _started(self, started: entries.ExecutionStarted, placed: conversations.Placed) -> Iterator[str]:
        if agent := started.agent:
            yield f"- Provider: {escape.span(agent.provider)}\n- Strategy: {agent.strategy}\n"
            yield f"- Iterations: {agent.max_iterations} at most\n"
            yield f"- Tools: {', '.join(escape.span(tool.name) for tool in started.tools) or 'none'}\n\n"
        yield from map(self._message, transcripts.messages_of(placed))

    def _message(self, message: shapes.Message) -> str:
        """A prompt, but for what stood in another one."""
        lines = message.text.split("\n")
        parts: list[str] = []
        room = SHOWN_MAX
        for other, run in self._runs(lines):
            text = "\n".join(run)
            if other:
                parts.append(f"Left out: {len(text):,} characters that stand in the prompt of {other}.\n\n")
            elif room > 0:
                parts.append(escape.code_block(text[:room]))
                room -= len(text)
        if room < 0:
            parts.append(_cut(SHOWN_MAX, SHOWN_MAX - room, self._messages))
        for line in lines[: REMEMBERED_MAX - len(self._prompts)]:
            self._prompts.setdefault(hash(line), f"{escape.span(self._name)}, execution {escape.span(self._execution)}")
        title, body = f"Prompt ({message.role})", "".join(parts)
        return f"{title}:\n\n{body}" if _is_short(body) else escape.details(title, body)

    def _runs(self, lines: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
        """Lines that follow one another, and in whose prompt they stood before, or ""."""
        new: list[str] = []
        for is_known_prompt, group in itertools.groupby(lines, key=lambda line: hash(line) in self._prompts):
            run = list(group)
            if not is_known_prompt or sum(map(len, run)) < REPEATED_MIN:
                new += run
                continue
            if new:
                yield "", new
            yield self._prompts[hash(max(run, key=len))], run
            new = []
        if new:
            yield "", new

    @property
    def _messages(self) -> str:
        return f"{self._path}/messages?execution={self._execution}"

    def _call(self, placed: conversations.Placed) -> str:
        call = transcripts.model_call(placed)
        assert call  # noqa: S101 - the entry tells of one
        used = _tokens(call.input_tokens, call.output_tokens, call.thinking_tokens, call.total_tokens)
        cost = f", cost {call.cost}" if call.cost is not None else ""
        parts = [
            f"#### Model call {call.n}\n\n",
            f"{escape.span(call.provider)}, {escape.span(call.model)}: {call.seconds:.1f} s, {used}{cost}\n\n",
        ]
        parts += [
            f"- Failed attempt ({escape.span(attempt.code or 'no code')}): {escape.span(attempt.error)}\n"
            for attempt in call.failed_requests
        ]
        if call.failed_requests:
            parts.append("\n")
        if call.failure:
            code = f", {escape.span(call.failure_code)}" if call.failure_code else ""
            parts.append(f"Failed ({call.failure}{code}):\n\n{escape.code_block(call.failure_text or '')}")
        return "".join(parts)

    def _answered(self, answer: shapes.Message) -> Iterator[str]:
        if answer.thinking:
            yield _bounded("Thoughts", answer.thinking, self._messages)
        if answer.text:
            yield escape.code_block(answer.text) if self._is_react else escape.markdown(answer.text, below=4)
        for result in answer.native_results:
            yield _bounded(f"By the provider's own tool {result.tool}", result.content, self._messages)
        for call in answer.tool_calls:
            arguments = escape.code_block(call.arguments, language="json")
            yield f"Calls {escape.span(call.name)} ({escape.span(call.id)}):\n\n{arguments}"

    def _result(self, call: shapes.ToolCall) -> str:
        failed = ", failed" if call.failed else ""
        doubted = ", in doubt" if call.in_doubt else ""
        name = ".".join(filter(None, (call.server_name, call.tool_name)))
        title = f"#### Tool call {call.n}: {escape.span(name)} ({escape.span(call.tool_call_id)})"
        result = _bounded("Result", call.result, f"{self._path}/trace/tool/{call.n}")
        return f"{title}\n\n{call.seconds:.1f} s{failed}{doubted}\n\n{result}"


def _facts(head: history.Head) -> Iterator[tuple[str, str]]:
    summary = head.summary
    yield "Phase", f"{summary.phase}{f' ({summary.reason})' if summary.reason else ''}"
    if summary.message:
        yield "Message", escape.table_cell(summary.message)
    yield "Alert type", escape.table_cell(summary.alert_type)
    if head.severity:
        yield "Severity", escape.table_cell(head.severity)
    if summary.alert_status:
        yield "Alert", summary.alert_status
    yield "Duplicates", f"{summary.duplicates:,}"
    if summary.previous:
        yield "Follows", escape.table_cell(f"{summary.namespace}/{summary.previous.name}")
    if summary.chain_name:
        yield "Chain", escape.table_cell(f"{summary.chain_namespace}/{summary.chain_name}")
    yield "Author", escape.table_cell(summary.author) if summary.author else "nobody says"
    if head.runbook_url:
        yield "Runbook", escape.table_cell(head.runbook_url)
    if head.mcp:
        yield "Tools", escape.table_cell(runs.selection(head.mcp))
    yield "Admitted", _moment(summary.admitted_at)
    if summary.started_at:
        yield "Started", _moment(summary.started_at)
        yield "Duration", _duration(summary.started_at, summary.ended_at)
    if summary.grounds:
        yield "Grounds", summary.grounds
    yield "Calls", f"{summary.llm_calls:,} of models, {summary.tool_calls:,} of tools"
    used = (summary.input_tokens, summary.output_tokens, summary.thinking_tokens, summary.total_tokens)
    yield "Tokens", _tokens(*used)
    yield "Cost", "no price is known" if summary.cost is None else investigations.cost_text(summary.cost)
    skipped = [escape.table_cell(stage.name) for stage in summary.stages if stage.outcome == "Skipped"]
    if skipped:
        yield "Skipped stages", ", ".join(skipped)
    yield "Id", escape.span(str(summary.id))
    yield "Log", f"{head.log_seq:,} entries"


def _numbers(outline: conversations.Outline) -> tuple[str, ...]:
    return (
        escape.table_cell(outline.name),
        outline.outcome or "running",
        _duration(outline.started_at, outline.ended_at),
        f"{outline.iterations:,}",
        f"{outline.tool_calls:,}",
        f"{outline.total_tokens:,}",
        "" if outline.cost is None else investigations.cost_text(outline.cost),
    )


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown."""
    lines = (titles, ["---"] * len(titles), *rows)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines) + "\n"


def _folded(title: str, text: str) -> str:
    """A text as it is, folded where it is long."""
    if _is_short(text):
        return escape.code_block(text)
    return escape.details(f"{title}, {len(text):,} characters", escape.code_block(text))


def _bounded(title: str, text: str, path: str) -> str:
    """The beginning of a text under its title, and by which `path` the API has all of it, where that is more."""
    if len(text) <= SHOWN_MAX:
        return f"{title}:\n\n{_folded(title, text)}"
    block = escape.code_block(text[:SHOWN_MAX]) + _cut(SHOWN_MAX, len(text), path)
    return escape.details(f"{title}, {len(text):,} characters", block)


def _is_short(text: str) -> bool:
    return len(text) <= UNFOLDED_MAX and text.count("\n") < UNFOLDED_LINES


def _cut(length_shown: int, length: int, path: str) -> str:
    return f"Cut: {length_shown:,} of {length:,} characters are shown; `GET {path}` has all.\n\n"


def _tokens(input_tokens: int, gave: int, thought: int, total: int) -> str:
    return f"{total:,} tokens ({input_tokens:,} in, {gave:,} out, {thought:,} thinking)"


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _duration(begin: datetime, end: datetime | None) -> str:
    if end is None:
        return "not ended"
    seconds = (end - begin).total_seconds()
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"

"""An investigation in Markdown, for people to read, keep and send on.

The result comes first, then the work, agent by agent. Answers of models are shown as Markdown, all other outside text
literally (`escape`). Long texts are folded. Very long ones are cut, with a note of the path that has the whole. Text
that an earlier prompt had is left out, with a note of that prompt.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from tarsy.resources import investigations
from tarsy.store.reads import group_alerts, summaries, transcript_pages
from tarsy.transcript import entries, record
from tarsy.transcript.kinds import runs
from tarsy.views import base, escape, transcripts

END = "---\n\nThe end of the transcript.\n"
"""The end of a complete document."""
SHOWN_MAX = 8_000
"""Characters of a prompt, a thought or a result that are shown."""
UNFOLDED_MAX = 800
"""Characters of a text that is not folded."""
UNFOLDED_LINES = 12
REPEATED_MIN = 200
"""Characters of successive lines of an earlier prompt, from which on they are left out of later prompts."""
REMEMBERED_MAX = 50_000
"""Lines of prompts that are remembered."""

_KINDS = {
    "agent": "Agent",
    "synthesis": "Synthesis",
    "summary": "Summary",
    "chat": "Answer",
    "recheck": "Compared with the last investigation:",
}


class Document:
    """One document, rendered part by part; it remembers the lines of its prompts."""

    def __init__(self, details: summaries.Details, *, mask: base.Mask) -> None:
        self._details = details
        self._mask = mask
        self._path = f"/api/v1/investigations/{details.summary.id}"
        self._prompts: dict[int, str] = {}
        """The execution whose prompt had a line first, by the line's hash."""
        self._name, self._execution, self._is_react = "", "", False
        """The present execution."""

    def head(self) -> str:
        """Return the beginning of the document: the investigation and its result."""
        summary = self._details.summary
        name = escape.span(f"{summary.namespace}/{summary.name}")
        parts = [f"# Investigation {name}\n\n", _table(("", ""), _facts(self._details))]
        if summary.summary:
            parts.append(f"## Summary\n\n{escape.markdown(summary.summary, below=2)}")
        analysis = escape.markdown(summary.final_analysis, below=2) if summary.final_analysis else "There is none.\n\n"
        parts.append(f"## Final analysis\n\n{analysis}")
        if summary.gaps:
            rows = ((escape.table_cell(gap["tool"]), escape.table_cell(gap["reason"])) for gap in summary.gaps)
            parts.append(f"## What could not be inspected\n\n{_table(('Tool', 'Reason'), rows)}")
        if self._details.feedback_by_person:
            parts.append(f"## Feedback\n\n{_feedback(self._details)}")
        return "".join([*parts, f"## Alert\n\n{_folded('The alert', self._details.alert_data)}"])

    def alerts_heading(self) -> str:
        """Return the heading of the table of all alerts, whose rows follow."""
        return (
            "## All alerts\n\n" + _table(("Alert", "Severity", "Status", "Started", "Labels"), ()).rstrip("\n") + "\n"
        )

    def alerts(self, alerts: Iterable[group_alerts.Listed]) -> str:
        """Return rows of the table of all alerts."""
        rows = (
            (
                alert.alert_type,
                alert.severity,
                alert.status,
                _moment(alert.starts_at),
                ", ".join(f"{name}={value}" for name, value in alert.labels.items()),
            )
            for alert in alerts
        )
        return "".join(f"| {' | '.join(map(escape.table_cell, row))} |\n" for row in rows)

    def scope(self, outlines: Sequence[transcript_pages.ExecutionOutline]) -> str:
        """Return the heading of a stage, or of executions without one; `outlines` are its executions."""
        first = outlines[0]
        return self._title(first) + _table(
            ("Agent", "Status", "Duration", "Iterations", "Tool calls", "Tokens", "Cost"), map(_numbers, outlines)
        )

    def _title(self, first: transcript_pages.ExecutionOutline) -> str:
        if first.stage:
            stages = self._details.summary.stages if first.run == 0 else ()
            stage = next((stage for stage in stages if stage.name == first.stage), None)
            outcome = f" ({stage.outcome})" if stage and stage.outcome else ""
            message = f"{escape.span(stage.message)}\n\n" if stage and stage.message else ""
            return f"## Stage {escape.span(first.stage)}{outcome}\n\n{message}"
        question = next((run for run in self._details.runs if run.number == first.run), None)
        if question is None or question.kind == "investigation":
            return "## How it was summed up\n\n"
        ended = f"Ended: {question.ending} ({question.reason})\n\n" if question.ending else ""
        return f"## Question {first.run}\n\n{escape.code_block(question.question)}{ended}"

    def execution(self, outline: transcript_pages.ExecutionOutline) -> str:
        """Return the heading of an execution."""
        self._name, self._execution = outline.name, outline.id
        self._is_react = record.is_react(outline.strategy)
        error = f"{escape.span(outline.error)}\n\n" if outline.error else ""
        return f"### {_KINDS.get(outline.kind, 'Execution')} {escape.span(outline.name)}\n\n{error}"

    def page(self, page: Iterable[transcript_pages.NumberedEntry]) -> str:
        """Return the text of entries of the present execution."""
        return "".join(part for numbered in page for part in self._entry(numbered))

    def _entry(self, numbered: transcript_pages.NumberedEntry) -> Iterator[str]:
        logged = numbered.logged
        match logged.entry:
            case entries.ExecutionStarted() as started:
                yield _settings(started)
                yield from map(self._message, transcripts.messages_of(numbered, mask=self._mask))
            case entries.Answered():
                *before, answer = transcripts.messages_of(numbered, mask=self._mask)
                yield from map(self._message, before)
                yield self._call(numbered)
                yield from self._answered(answer)
            case entries.Unanswered():
                yield from map(self._message, transcripts.messages_of(numbered, mask=self._mask))
                yield self._call(numbered)
            case entries.FellBack(provider=provider):
                yield self._call(numbered)
                yield f"From here on {escape.span(provider)} is asked.\n\n"
            case entries.ContextCompacted() as compacted:
                if compacted.call:
                    yield self._call(numbered)
                notice = f"{len(compacted.results)} results are shown to the model as a line each from here on"
                yield f"{notice}, and {len(compacted.cut)} cut to {compacted.shown} characters.\n\n"
            case entries.ToolsAnswered():
                yield from map(self._result, transcripts.tool_calls(numbered))
            case entries.ToolSummarised() as summarised:
                yield self._call(numbered)
                if summarised.text:
                    call = escape.span(summarised.call_id)
                    yield f"A summary of the result of {call}, which the agent reads instead:\n\n"
                    yield _folded("Summary", summarised.text)
            case entries.ExecutionEnded() as ended:
                ungrounded = ", without having inspected anything" if ended.ungrounded else ""
                yield f"Ended {_moment(logged.at)}: {ended.outcome}{ungrounded}\n\n"
            case entries.Unreadable() as unread:
                yield f"Entry {logged.seq} cannot be read by this version of TARSy: {escape.span(unread.problem)}\n\n"

    def left_out(self, count: int) -> str:
        """Return the note on executions beyond the limit."""
        return f"**{count:,} executions are shown; the others are in the JSON export**, `GET {self._path}/export`.\n\n"

    def _message(self, message: transcripts.Message) -> str:
        """Return a prompt without the text that an earlier prompt had."""
        lines = message.text.split("\n")
        parts: list[str] = []
        left = SHOWN_MAX
        for earlier_prompt, group in self._groups(lines):
            text = "\n".join(group)
            if earlier_prompt:
                parts.append(f"Left out: {len(text):,} characters that stand in the prompt of {earlier_prompt}.\n\n")
            elif left > 0:
                parts.append(escape.code_block(text[:left]))
                left -= len(text)
        if left < 0:
            parts.append(_cut(SHOWN_MAX, SHOWN_MAX - left, self._messages))
        for line in lines[: REMEMBERED_MAX - len(self._prompts)]:
            self._prompts.setdefault(hash(line), f"{escape.span(self._name)}, execution {escape.span(self._execution)}")
        title, body = f"Prompt ({message.role})", "".join(parts)
        return f"{title}:\n\n{body}" if _is_short(body) else escape.details(title, body)

    def _groups(self, lines: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield groups of successive lines, each with the earlier prompt that had them, or ""."""
        new: list[str] = []
        for is_repeated, group in itertools.groupby(lines, key=lambda line: hash(line) in self._prompts):
            repeated = list(group)
            if not is_repeated or sum(map(len, repeated)) < REPEATED_MIN:
                new += repeated
                continue
            if new:
                yield "", new
            yield self._prompts[hash(max(repeated, key=len))], repeated
            new = []
        if new:
            yield "", new

    @property
    def _messages(self) -> str:
        return f"{self._path}/messages?execution={self._execution}"

    def _call(self, numbered: transcript_pages.NumberedEntry) -> str:
        call = transcripts.model_call(numbered)
        assert call  # noqa: S101 - the entry records one
        cost = f", cost {call.cost}" if call.cost is not None else ""
        answered_by = f" ({escape.span(call.response_model)})" if call.response_model not in ("", call.model) else ""
        model = f"{escape.span(call.model)}{answered_by}"
        parts = [
            f"#### Model call {call.n}\n\n",
            f"{escape.span(call.provider)}, {model}: {call.seconds:.1f} s, {_tokens(call)}{cost}\n\n",
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

    def _answered(self, answer: transcripts.Message) -> Iterator[str]:
        if answer.thinking:
            yield _bounded("Thoughts", answer.thinking, self._messages)
        if answer.text:
            yield escape.code_block(answer.text) if self._is_react else escape.markdown(answer.text, below=4)
        for result in answer.native_results:
            yield _bounded(f"By the provider's own tool {result.tool}", result.content, self._messages)
        for call in answer.tool_calls:
            arguments = escape.code_block(call.arguments, language="json")
            yield f"Calls {escape.span(call.name)} ({escape.span(call.id)}):\n\n{arguments}"

    def _result(self, call: transcripts.ToolCall) -> str:
        failed = ", failed" if call.failed else ""
        doubted = ", in doubt" if call.in_doubt else ""
        name = ".".join(filter(None, (call.server_name, call.tool_name)))
        title = f"#### Tool call {call.n}: {escape.span(name)} ({escape.span(call.tool_call_id)})"
        result = _bounded("Result", call.result, f"{self._path}/trace/tool/{call.n}")
        deleted = f"{call.full_result_deleted.message}\n\n" if call.full_result_deleted else ""
        excerpt = ""
        if call.excerpt:
            excerpt = f", an excerpt of {call.excerpt.length:,} characters in {call.excerpt.lines:,} lines"
        return f"{title}\n\n{call.seconds:.1f} s{failed}{doubted}{excerpt}\n\n{result}{deleted}"


def _facts(details: summaries.Details) -> list[tuple[str, str]]:
    """Return the titles and values of the facts that are known."""
    summary, cell = details.summary, escape.table_cell
    started, previous = summary.started_at, summary.previous
    skipped = [cell(stage.name) for stage in summary.stages if stage.outcome == "Skipped"]
    facts = [
        ("Phase", f"{summary.phase} ({summary.reason})" if summary.reason else summary.phase),
        ("Message", cell(summary.message) if summary.message else ""),
        ("Alert type", cell(summary.alert_type)),
        ("Severity", cell(details.severity) if details.severity else ""),
        ("Alert", summary.alert_status),
        ("Duplicates", f"{summary.duplicates:,}"),
        (
            "Unchanged since" if summary.reason == "Unchanged" else "Follows",
            cell(f"{summary.namespace}/{previous.name}") if previous else "",
        ),
        ("Retry of", _retry_of(summary)),
        ("Split from", cell(f"{summary.namespace}/{summary.split_from.name}") if summary.split_from else ""),
        ("Split into", ", ".join(cell(f"{summary.namespace}/{part.name}") for part in summary.split_into)),
        ("Retried by", cell(f"{summary.namespace}/{summary.retried_by.name}") if summary.retried_by else ""),
        ("Chain", cell(f"{summary.chain_namespace}/{summary.chain_name}") if summary.chain_name else ""),
        ("Author", cell(summary.author) if summary.author else "unknown"),
        ("Runbook", cell(details.runbook_url) if details.runbook_url else ""),
        ("Tools", cell(runs.selection(details.mcp)) if details.mcp else ""),
        ("Admitted", _moment(summary.admitted_at)),
        ("Started", _moment(started) if started else ""),
        ("Duration", _duration(started, summary.ended_at) if started else ""),
        ("Grounds", summary.grounds),
        ("Calls", f"{summary.llm_calls:,} of models, {summary.tool_calls:,} of tools"),
        ("Tokens", _tokens(summary)),
        ("Cost", "no price is known" if summary.cost is None else investigations.cost_text(summary.cost)),
        ("Skipped stages", ", ".join(skipped)),
        ("Id", escape.span(str(summary.id))),
        ("Log", f"{details.log_seq:,} entries"),
    ]
    return [(title, value) for title, value in facts if value]


def _feedback(details: summaries.Details) -> str:
    """Return the feedback of people, the latest change first, and how many more there are."""
    cell, shown = escape.table_cell, details.feedback_by_person
    rows = (
        (
            cell(each.author),
            each.verdict,
            *(text and cell(text) for text in (each.cause, each.note)),
            _moment(each.changed_at),
        )
        for each in shown
    )
    more = sum(details.feedback.values()) - len(shown)
    left_out = f"{more:,} more are not shown.\n\n" if more > 0 else ""
    return _table(("Person", "Verdict", "Cause", "Note", "Changed"), rows) + left_out


def _settings(started: entries.ExecutionStarted) -> str:
    if (agent := started.agent) is None:
        return ""
    tools = ", ".join(escape.span(tool.name) for tool in started.tools) or "none"
    provider = f"- Provider: {escape.span(agent.provider)}\n- Strategy: {agent.strategy}\n"
    return f"{provider}- Iterations: {agent.max_iterations} at most\n- Tools: {tools}\n\n"


def _numbers(outline: transcript_pages.ExecutionOutline) -> tuple[str, ...]:
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
    """Return a table; its cells are Markdown already."""
    lines = (titles, ["---"] * len(titles), *rows)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines) + "\n"


def _folded(title: str, text: str) -> str:
    """Return a text literally, folded if it is long."""
    if _is_short(text):
        return escape.code_block(text)
    return escape.details(f"{title}, {len(text):,} characters", escape.code_block(text))


def _bounded(title: str, text: str, path: str) -> str:
    """Return the beginning of a text under its title, with the `path` of the whole if that is longer."""
    if len(text) <= SHOWN_MAX:
        return f"{title}:\n\n{_folded(title, text)}"
    block = escape.code_block(text[:SHOWN_MAX]) + _cut(SHOWN_MAX, len(text), path)
    return escape.details(f"{title}, {len(text):,} characters", block)


def _is_short(text: str) -> bool:
    return len(text) <= UNFOLDED_MAX and text.count("\n") < UNFOLDED_LINES


def _cut(length_shown: int, length: int, path: str) -> str:
    return f"Cut: {length_shown:,} of {length:,} characters are shown; `GET {path}` has all.\n\n"


def _retry_of(summary: summaries.Summary) -> str:
    original = summary.retry_of
    if original is None:
        return ""
    name = escape.table_cell(f"{summary.namespace}/{original.name}")
    if original.from_stage is None:
        return name
    return f"{name}, from stage {escape.table_cell(original.from_stage)} on; the work of earlier stages is a copy"


def _tokens(usage: summaries.Summary | transcripts.ModelCall) -> str:
    counts = f"{usage.input_tokens:,} in, {usage.output_tokens:,} out, {usage.thinking_tokens:,} thinking"
    return f"{usage.total_tokens:,} tokens ({counts})"


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

"""The work of other agents in a prompt: of earlier stages, of the agents of a synthesis, or all of it for a question.

It is built from the record when it is needed. The strategy of the reader decides how much is shown. The executive
summary is never shown, and earlier questions only to later ones.

The frame is the founding documents'. The text in it comes from models, tools and providers under the influence of an
alert, so it is escaped (`agent.escaping`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tarsy.agent import escaping, strategies
from tarsy.engine import evidence
from tarsy.transcript import entries, excerpts, messages, react, record

START = "<!-- Analysis Result START -->"
END = "<!-- Analysis Result END -->"
STATUS: dict[entries.StageOutcome, str] = {
    "Completed": "completed",
    "CompletedWithErrors": "completed",
    "Failed": "failed",
    "TimedOut": "timed_out",
    "Cancelled": "cancelled",
    "Skipped": "skipped",
}
"""Outcomes in the words of the founding documents."""
RESULTS_SHOWN = 400_000
"""The limit of all tool results together, in characters: about 130,000 tokens. Each has an equal share."""
RESULT_SHOWN = 20_000
"""The limit of one tool result, in characters: an excerpt of the default size is not cut again."""
CALLS_LISTED = 20
"""The last calls of an agent whose references are listed; of earlier ones the first and the last are."""
_NAME_MAX = 80
"""Characters of a tool's name in that list: models make up names."""
QUESTIONS_SHOWN, QUESTION_SHOWN = 20, 8_000
"""The number of latest questions that are shown, and the limit of each and of its answer, in characters."""


def earlier_stages(run: record.Run, *, reads: strategies.Reads, looks_into_results: bool = False) -> str:
    """Return the results of ended stages, each between markers; for a failed agent its error and its findings.

    `looks_into_results`: the reader has tools that search and read results, and gets the references of calls.
    """
    reader = _Reader.for_run(run, reads=reads, looks_into_results=looks_into_results)
    parts: list[str] = []
    for name, stage in run.stages.items():
        if stage.ended:
            parts.append(_stage(name, stage, reader))
            parts += _references(name, stage) if looks_into_results else ()
    if not parts:
        return ""
    return "\n\n".join(filter(None, ["# Results of earlier stages", *parts, not_inspected(evidence.gaps(run))]))


def rechecked(run: record.Run) -> str:
    """Return what differs from the last investigation of the alert; "" if its calls were not made again."""
    if (entry := run.rechecked) is None or not entry.differences:
        return ""
    more = [f"and {entry.more:,} more"] if entry.more else []
    lines = "\n".join(f"- {line}" for line in (*entry.differences, *more))
    before = f"{entry.name} investigated this alert until {entry.ended}."
    heading = f"# What differs from the last investigation\n\n{_clean(before)} Its calls were made again, and differ:"
    return f"{heading}\n\n{_marked(_clean(lines))}"


def agents_work(stage: record.Stage) -> str:
    """Return the complete work of a stage's agents, for the synthesis of their results."""
    reader = _Reader.for_run(record.Run(stages={"": stage}), reads="everything")
    parts = [
        f"{_name(number, execution)}\n{_result(execution, reader)}" for number, execution in enumerate(stage.agents, 1)
    ]
    return "\n\n".join(["# The agents of this stage", *parts])


def investigation(run: record.Run, earlier: Sequence[record.Run], *, looks_into_results: bool = False) -> str:
    """Return the whole investigation with its earlier questions, for the answer to another one."""
    asked = [_question(number, question) for number, question in enumerate(earlier, 1)][-QUESTIONS_SHOWN:]
    parts = [earlier_stages(run, reads="data", looks_into_results=looks_into_results)]
    if run.ended and run.ended.former:
        parts.append(f"# The result of the last investigation, which still holds\n\n{result(run.ended.final_analysis)}")
    if run.ended:
        ended = f"The investigation ended as {run.ended.ending}: {run.ended.message or run.ended.reason}"
        parts.append(_clean(ended))
    return "\n\n".join(filter(None, [*parts, *(["# Earlier questions", *asked] if asked else [])]))


def analysis(stage: record.Stage) -> str:
    """Return the result of a stage: its synthesis, or its agent's analysis; of several agents all, with their names."""
    if stage.synthesis and stage.synthesis.analysis:
        return stage.synthesis.analysis
    if len(stage.agents) == 1:
        return stage.agents[0].analysis
    return "\n\n".join(
        f"{_name(number, execution)}\n\n{execution.analysis}"
        for number, execution in enumerate(stage.agents, 1)
        if execution.analysis
    )


def result(analysis: str) -> str:
    """Return a result for the prompt of its summary."""
    return _marked(_clean(analysis))


def not_inspected(gaps: Sequence[entries.Gap]) -> str:
    """Return the gaps of earlier agents for the next one; "" if there are none."""
    if not gaps:
        return ""
    lines = "\n".join(f"- {gap.tool}: {gap.reason}" for gap in gaps)
    return f"### What could not be inspected:\n\n{_marked(_clean(lines))}"


def _question(number: int, run: record.Run) -> str:
    answers = [execution.analysis for execution in run.executions.values() if execution.analysis]
    answer = answers[-1] if answers else "(it was not answered)"
    asked, answered = (_marked(_clean(excerpts.beginning(text, QUESTION_SHOWN))) for text in (run.question, answer))
    return f"### Question {number}\n\n{asked}\n\nAnswer:\n\n{answered}"


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """How much of the work a prompt shows."""

    reads: strategies.Reads
    result_max: int
    """The limit of one tool result, in characters."""
    looks_into_results: bool
    """Whether the reader has tools that search and read results."""

    @classmethod
    def for_run(cls, run: record.Run, *, reads: strategies.Reads, looks_into_results: bool = False) -> _Reader:
        """Return the share of each result in a run: the more results, the less of each."""
        agents = [execution for stage in run.stages.values() for execution in stage.agents]
        results = (entry for execution in agents for entry in execution.log if isinstance(entry, messages.Message))
        share = RESULTS_SHOWN // max(sum(message.role == "tool" for message in results), 1)
        return cls(reads=reads, result_max=min(share, RESULT_SHOWN), looks_into_results=looks_into_results)


def _stage(name: str, stage: record.Stage, reader: _Reader) -> str:
    assert stage.ended  # noqa: S101 - the caller asks for ended ones
    heading = f"### Results from '{name}' stage:"
    agents = stage.agents
    synthesis = stage.synthesis.analysis if stage.synthesis else ""
    if not agents:
        return f"{heading}\n\n**Status**: {STATUS[stage.ended.outcome]}\n\n{_marked(_clean(stage.ended.message))}"
    if synthesis and reader.reads == "results":
        return f"{heading}\n\n{_marked(_clean(synthesis))}"
    if len(agents) == 1 and stage.ended.outcome == "Completed" and reader.reads != "everything":
        return f"{heading}\n\n{_marked(_work(agents[0], reader))}"
    if len(agents) == 1:
        return f"{heading}\n\n{_result(agents[0], reader)}"
    parts = [f"{_name(number, execution)}\n{_result(execution, reader)}" for number, execution in enumerate(agents, 1)]
    if synthesis:
        parts.append(f"#### Synthesis\n\n{_marked(_clean(synthesis))}")
    return "\n\n".join([heading, *parts])


def _name(number: int, execution: record.Execution) -> str:
    return f"#### Agent {number}: {execution.started.name}"


def _result(execution: record.Execution, reader: _Reader) -> str:
    status = STATUS[execution.ended.outcome] if execution.ended else "running"
    text = f"**Status**: {status}\n\n{_marked(_work(execution, reader))}"
    if reader.reads != "everything":
        return text
    agent = execution.started.agent
    settings = f"**Provider**: {agent.provider}\n**Strategy**: {agent.strategy}" if agent else "**Provider**: none"
    return f"{settings}\n{text}"


def _work(execution: record.Execution, reader: _Reader) -> str:
    """Return the steps and the analysis of an execution, as much as the reader gets, or its error and findings."""
    shown_steps = [] if reader.reads == "results" else list(_steps(execution, reader))
    if execution.analysis:
        return "\n\n".join([*shown_steps, *(["Final analysis:"] if shown_steps else []), _clean(execution.analysis)])
    error = execution.ended.error if execution.ended else ""
    parts = "\n\n".join(shown_steps if reader.reads != "results" else _partial_findings(execution)) or "(nothing)"
    return f"Error: {_clean(error)}\n\nBefore it failed it found:\n\n{parts}"


def _references(name: str, stage: record.Stage) -> Iterator[str]:
    """Yield the references of the last calls of a stage's agents, by which result.search and result.read know them."""
    lines = []
    for execution in stage.agents:
        results = [entry for entry in execution.log if isinstance(entry, messages.Message) and entry.role == "tool"]
        if earlier := results[:-CALLS_LISTED]:
            first, last = (f"{execution.started.execution}/{each.call_id}" for each in (earlier[0], earlier[-1]))
            lines.append(f"{first} to {last}: {len(earlier)} earlier calls of {execution.started.name}")
        lines += [
            f"{execution.started.execution}/{result.call_id}: "
            f"{_word(excerpts.one_line(result.tool_name, _NAME_MAX))} of {execution.started.name}"
            for result in results[-CALLS_LISTED:]
        ]
    if lines:
        listed = _marked(_clean("\n".join(lines)))
        yield f"### Calls in '{name}' stage, for result.search and result.read:\n\n{listed}"


def _steps(execution: record.Execution, reader: _Reader) -> Iterator[str]:
    """Yield answers, calls and results in order, with thoughts if the reader gets them, without the conclusion."""
    conversation = [entry for entry in execution.log if isinstance(entry, messages.Message)]
    last = conversation[-1] if execution.analysis else None
    for message in conversation:
        if message.role == "tool":
            reference = f"{execution.started.execution}/{message.call_id}"
            advice = excerpts.in_full(reference) if reader.looks_into_results else ""
            result = excerpts.middle_cut(message.text, reader.result_max, advice=advice)
            yield f"Observation: {_word(message.tool_name)}: {_clean(result)}"
        elif message.role == "assistant":
            thought, text = _thought_and_text(execution, message)
            if reader.reads == "everything" and thought:
                yield f"Thinking: {_clean(thought)}"
            if text and message is not last:
                yield _clean(text)
            for call in message.calls:
                yield f"Tool call [tool {call.id}]: {_word(call.name)} {_clean(call.arguments)}"


def _thought_and_text(execution: record.Execution, message: messages.Message) -> tuple[str, str]:
    """Return the thought and the text of an answer, without its call and without what follows that."""
    if not execution.is_react:
        return message.thinking, message.text
    reading = react.read(message.text)
    if reading.problem:
        return message.thinking, message.text[: reading.used].strip()
    return "\n\n".join(filter(None, [message.thinking, reading.thought])), reading.answer


def _partial_findings(execution: record.Execution) -> Iterator[str]:
    """Yield the texts of answers with tool calls; in ReAct the thoughts."""
    for entry in execution.log:
        if isinstance(entry, messages.Message) and entry.role == "assistant":
            thought, text = _thought_and_text(execution, entry)
            if finding := text.strip() or (thought if execution.is_react else ""):
                yield _clean(finding)


def _word(name: str) -> str:
    """Return a name that a model wrote, on one line."""
    return _clean(" ".join(name.split()))


def _clean(text: str) -> str:
    """Return escaped text: it has no marker, and no step of ReAct."""
    return escaping.escape_comments(escaping.quote_steps(text))


def _marked(cleaned: str) -> str:
    return f"{START}\n{cleaned}\n{END}"

"""The work of others as a prompt shows it: earlier stages, the agents of a synthesis, everything for a question.

It is built when it is needed, because the record holds it already. The strategy of the reader decides how much is
shown. The executive summary is never part of it, and questions of people only of later questions.

The frame is the founding documents'. Between its lines stands text that a model, a tool or a provider wrote, under the
influence of an alert: comments are escaped in it, so that it holds no marker, and lines that look like steps of ReAct
are quoted, so that it makes up no observation.
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
"""Characters of tool results that are read of others' work in all, about 130,000 tokens; each has an equal share."""
RESULT_SHOWN = 16_000
"""Characters of one of them at most, however few there are."""
QUESTIONS_SHOWN, QUESTION_SHOWN = 20, 8_000
"""How many of the latest questions are read, and characters of each and of its answer."""


def earlier_stages(run: record.Run, *, reads: strategies.Reads) -> str:
    """The ended stages' results, each between markers; of an agent that failed its error and what it had found."""
    reader = _Reader.for_run(run, reads=reads)
    parts = [_stage(name, stage, reader) for name, stage in run.stages.items() if stage.ended]
    if not parts:
        return ""
    return "\n\n".join(filter(None, ["# Results of earlier stages", *parts, not_inspected(evidence.gaps(run))]))


def agents_work(stage: record.Stage) -> str:
    """Return the complete work of a stage's agents, for the synthesis of their results."""
    reader = _Reader.for_run(record.Run(stages={"": stage}), reads="everything")
    parts = [
        f"{_name(number, execution)}\n{_result(execution, reader)}" for number, execution in enumerate(stage.agents, 1)
    ]
    return "\n\n".join(["# The agents of this stage", *parts])


def investigation(run: record.Run, earlier: Sequence[record.Run]) -> str:
    """The whole of an investigation with the questions that were asked about it before, for who answers another one."""
    asked = [_question(number, question) for number, question in enumerate(earlier, 1)][-QUESTIONS_SHOWN:]
    parts = [earlier_stages(run, reads="data")]
    if run.ended:
        ended = f"The investigation ended as {run.ended.ending}: {run.ended.message or run.ended.reason}"
        parts.append(_clean(ended))
    return "\n\n".join(filter(None, [*parts, *(["# Earlier questions", *asked] if asked else [])]))


def analysis(stage: record.Stage) -> str:
    """The stage's result: its synthesis, or its agent's analysis; of several agents all, under their names."""
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
    """A result on its way to who sums it up."""
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
    """How much of others' work is read."""

    reads: strategies.Reads
    result_max: int
    """Characters of one tool result."""

    @classmethod
    def for_run(cls, run: record.Run, *, reads: strategies.Reads) -> _Reader:
        """The more results there are, the less is shown of each."""
        agents = [execution for stage in run.stages.values() for execution in stage.agents]
        results = (entry for execution in agents for entry in execution.log if isinstance(entry, messages.Message))
        share = RESULTS_SHOWN // max(sum(message.role == "tool" for message in results), 1)
        return cls(reads=reads, result_max=min(share, RESULT_SHOWN))


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
    """Return the steps and findings of an execution, as far as the reader gets them, or the reason of its failure."""
    done = [] if reader.reads == "results" else list(_steps(execution, reader))
    if execution.analysis:
        return "\n\n".join([*done, *(["Final analysis:"] if done else []), _clean(execution.analysis)])
    error = execution.ended.error if execution.ended else ""
    parts = "\n\n".join(done if reader.reads != "results" else _partial_findings(execution)) or "(nothing)"
    return f"Error: {_clean(error)}\n\nBefore it failed it found:\n\n{parts}"


def _steps(execution: record.Execution, reader: _Reader) -> Iterator[str]:
    """Its answers, calls and results in order, with its thoughts if they are read, but without its conclusion."""
    conversation = [entry for entry in execution.log if isinstance(entry, messages.Message)]
    last = conversation[-1] if execution.analysis else None
    for message in conversation:
        if message.role == "tool":
            result = excerpts.middle_cut(message.text, reader.result_max)
            yield f"Observation: {_word(message.tool_name)}: {_clean(result)}"
        elif message.role == "assistant":
            thought, text = _taken_apart(execution, message)
            if reader.reads == "everything" and thought:
                yield f"Thinking: {_clean(thought)}"
            if text and message is not last:
                yield _clean(text)
            for call in message.calls:
                yield f"Tool call [tool {call.id}]: {_word(call.name)} {_clean(call.arguments)}"


def _taken_apart(execution: record.Execution, message: messages.Message) -> tuple[str, str]:
    """Return the thought and the words of an answer, as far as they count, without the call that it asks for."""
    if not execution.is_react:
        return message.thinking, message.text
    reading = react.read(message.text)
    if reading.problem:
        return message.thinking, message.text[: reading.used].strip()
    return "\n\n".join(filter(None, [message.thinking, reading.thought])), reading.answer


def _partial_findings(execution: record.Execution) -> Iterator[str]:
    """Yield the words beside its tool calls; in ReAct the thoughts."""
    for entry in execution.log:
        if isinstance(entry, messages.Message) and entry.role == "assistant":
            thought, text = _taken_apart(execution, entry)
            if finding := text.strip() or (thought if execution.is_react else ""):
                yield _clean(finding)


def _word(name: str) -> str:
    """A name that a model gave, on one line."""
    return _clean(" ".join(name.split()))


def _clean(text: str) -> str:
    """Text of others: no marker, and no step of ReAct."""
    return escaping.escape_comments(escaping.quote_steps(text))


def _marked(cleaned: str) -> str:
    return f"{START}\n{cleaned}\n{END}"

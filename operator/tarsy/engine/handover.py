"""What is read of others' work: by a stage of the stages before it, by a synthesis of its agents, by a chat of it all.

Built when it is needed: the record holds it already. How much is shown is the word of the strategy that reads it. What
people asked, and the executive summary, are in none of it.

The words around it are the founding documents'. A model, a tool or a provider wrote what stands between them, with what
an alert made them write: comments are escaped in it, so that it holds no marker, and lines that look like steps of
ReAct are quoted, so that it makes up no observation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tarsy.agent import quoting, strategies
from tarsy.engine import grounds
from tarsy.transcript import entries, messages, react, record

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


def earlier_stages(run: record.Run, *, reads: strategies.Reads) -> str:
    """The ended stages' results, each between markers; of an agent that failed its error and what it had found."""
    parts = [_stage(name, stage, reads=reads) for name, stage in run.stages.items() if stage.ended]
    return "\n\n".join(["# Results of earlier stages", *parts, *_not_inspected(run)]) if parts else ""


def agents_work(stage: record.Stage) -> str:
    """The whole investigations of a stage's agents, for whoever joins their results."""
    parts = [
        f"{_name(number, one)}\n{_settings(one)}\n{_result(one, reads='everything')}"
        for number, one in enumerate(stage.agents, 1)
    ]
    return "\n\n".join(["# The agents of this stage", *parts])


def investigation(run: record.Run, earlier: Sequence[record.Run]) -> str:
    """The whole of an investigation with the questions that were asked about it before, for who answers another one."""
    asked = [_question(number, one) for number, one in enumerate(earlier, 1)]
    told = [earlier_stages(run, reads="data")]
    if run.ended:
        ended = f"The investigation ended as {run.ended.ending}: {run.ended.message or run.ended.reason}"
        told.append(quoting.escaped(ended))
    return "\n\n".join(filter(None, [*told, *(["# Earlier questions", *asked] if asked else [])]))


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
    return _marked(analysis)


def not_inspected(run: record.Run) -> str:
    """What the agents of a run could not inspect, as the next one is told; "" where there is nothing."""
    return "\n\n".join(_not_inspected(run))


def _not_inspected(run: record.Run) -> list[str]:
    gaps = grounds.gaps(run)
    if not gaps:
        return []
    lines = "\n".join(f"- {gap.tool}: {gap.reason}" for gap in gaps)
    return [f"### What could not be inspected:\n\n{_marked(lines)}"]


def _question(number: int, run: record.Run) -> str:
    answers = [one.analysis for one in run.executions.values() if one.analysis]
    answer = answers[-1] if answers else "(it was not answered)"
    return f"### Question {number}\n\n{_marked(run.question)}\n\nAnswer:\n\n{_marked(answer)}"


def _stage(name: str, stage: record.Stage, *, reads: strategies.Reads) -> str:
    assert stage.ended  # noqa: S101 - the caller asks for ended ones
    heading = f"### Results from '{name}' stage:"
    agents = stage.agents
    synthesis = stage.synthesis.analysis if stage.synthesis else ""
    if not agents:
        return f"{heading}\n\n**Status**: {STATUS[stage.ended.outcome]}\n\n{_marked(stage.ended.message)}"
    if synthesis and reads == "results":
        return f"{heading}\n\n{_marked(synthesis)}"
    if len(agents) == 1 and stage.ended.outcome == "Completed":
        return f"{heading}\n\n{_marked(_work(agents[0], reads=reads))}"
    if len(agents) == 1:
        return f"{heading}\n\n{_result(agents[0], reads=reads)}"
    parts = [f"{_name(number, one)}\n{_result(one, reads=reads)}" for number, one in enumerate(agents, 1)]
    if synthesis:
        parts.append(f"#### Synthesis\n\n{_marked(synthesis)}")
    return "\n\n".join([heading, *parts])


def _name(number: int, execution: record.Execution) -> str:
    return f"#### Agent {number}: {execution.started.name}"


def _settings(execution: record.Execution) -> str:
    agent = execution.started.agent
    return f"**Provider**: {agent.provider}\n**Strategy**: {agent.strategy}" if agent else "**Provider**: none"


def _status(execution: record.Execution) -> str:
    return STATUS[execution.ended.outcome] if execution.ended else "running"


def _result(execution: record.Execution, *, reads: strategies.Reads) -> str:
    return f"**Status**: {_status(execution)}\n\n{_marked(_work(execution, reads=reads))}"


def _work(execution: record.Execution, *, reads: strategies.Reads) -> str:
    """What an execution did and found, as much as is read of it; where it failed, why."""
    done = [] if reads == "results" else list(_steps(execution, thoughts=reads == "everything"))
    if execution.analysis:
        return "\n\n".join([*done, *(["Final analysis:"] if done else []), execution.analysis])
    error = execution.ended.error if execution.ended else ""
    found = "\n\n".join(done if reads != "results" else _partial_findings(execution)) or "(nothing)"
    return f"Error: {error}\n\nBefore it failed it found:\n\n{found}"


def _steps(execution: record.Execution, *, thoughts: bool) -> Iterator[str]:
    """Its answers, calls and results in order, with its thoughts if they are wanted, but without its conclusion."""
    said = [entry for entry in execution.log if isinstance(entry, messages.Message)]
    last = said[-1] if execution.analysis else None
    for message in said:
        if message.role == "tool":
            yield f"Observation: {message.tool_name}: {quoting.quoted(message.text)}"
        elif message.role == "assistant":
            thought, text = _taken_apart(execution, message)
            if thoughts and thought:
                yield f"Thinking: {quoting.quoted(thought)}"
            if text and message is not last:
                yield quoting.quoted(text)
            for call in message.calls:
                yield f"Tool call [tool {call.id}]: {call.name} {quoting.quoted(call.arguments)}"


def _taken_apart(execution: record.Execution, message: messages.Message) -> tuple[str, str]:
    """What was thought and what was said in an answer, but for the call that it asks for."""
    if not execution.is_react:
        return message.thinking, message.text
    reading = react.read(message.text)
    if reading.problem:
        return message.thinking, message.text
    return "\n\n".join(filter(None, [message.thinking, reading.thought])), reading.answer


def _partial_findings(execution: record.Execution) -> Iterator[str]:
    """Text that it wrote beside its tool calls."""
    for entry in execution.log:
        if isinstance(entry, messages.Message) and entry.role == "assistant" and entry.text.strip():
            yield entry.text


def _marked(text: str) -> str:
    return f"{START}\n{quoting.escaped(text)}\n{END}"

"""What a stage reads of the stages before it. Built when it is needed: the record holds it already.

The words around it are the founding documents'. A model or a provider wrote what stands between them, with what an
alert or a tool made them write: comments are escaped in it, so that it holds no marker.
"""

from __future__ import annotations

from collections.abc import Iterator

from tarsy.agent import prompts
from tarsy.transcript import entries, messages, record

START = "<!-- Analysis Result START -->"
END = "<!-- Analysis Result END -->"
STATUS: dict[entries.StageOutcome, str] = {
    "Completed": "completed",
    "Failed": "failed",
    "TimedOut": "timed_out",
    "Cancelled": "cancelled",
    "Skipped": "skipped",
}
"""Outcomes in the words of the founding documents."""


def earlier_stages(run: record.Run) -> str:
    """The ended stages' results, each between markers; of an agent that failed its error and what it had found."""
    parts = [_stage(name, stage) for name, stage in run.stages.items() if stage.ended]
    return "\n\n".join(["# Results of earlier stages", *parts]) if parts else ""


def analysis(stage: record.Stage) -> str:
    """The stage's result: its agent's analysis; of several agents all analyses in order, under their names."""
    if len(stage.executions) == 1:
        return stage.agents[0].analysis
    return "\n\n".join(
        f"{_name(number, execution)}\n\n{execution.analysis}"
        for number, execution in enumerate(stage.agents, 1)
        if execution.analysis
    )


def _stage(name: str, stage: record.Stage) -> str:
    assert stage.ended  # noqa: S101 - the caller asks for ended ones
    heading = f"### Results from '{name}' stage:"
    executions = stage.agents
    if not executions:
        return f"{heading}\n\n**Status**: {STATUS[stage.ended.outcome]}\n\n{_marked(stage.ended.message)}"
    if len(executions) == 1 and stage.ended.outcome == "Completed":
        return f"{heading}\n\n{_marked(executions[0].analysis)}"
    if len(executions) == 1:
        return f"{heading}\n\n{_result(executions[0])}"
    parts = [f"{_name(number, execution)}\n{_result(execution)}" for number, execution in enumerate(executions, 1)]
    return "\n\n".join([heading, *parts])


def _name(number: int, execution: record.Execution) -> str:
    return f"#### Agent {number}: {execution.started.name}"


def _result(execution: record.Execution) -> str:
    assert execution.ended  # noqa: S101 - its stage has
    status = f"**Status**: {STATUS[execution.ended.outcome]}"
    if execution.ended.outcome == "Completed":
        return f"{status}\n\n{_marked(execution.analysis)}"
    found = "\n\n".join(_partial_findings(execution)) or "(nothing)"
    result = f"Error: {execution.ended.error}\n\nBefore it failed it found:\n\n{found}"
    return f"{status}\n\n{_marked(result)}"


def _marked(text: str) -> str:
    return f"{START}\n{prompts.escaped(text)}\n{END}"


def _partial_findings(execution: record.Execution) -> Iterator[str]:
    """Text that it wrote beside its tool calls."""
    for entry in execution.log:
        if isinstance(entry, messages.Message) and entry.role == "assistant" and entry.text.strip():
            yield entry.text

"""What a stage reads of the stages before it. Built when it is needed: the record holds it already."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tarsy.transcript import messages, record

START = "<!-- Analysis Result START -->"
END = "<!-- Analysis Result END -->"
_END = re.compile(r"<!--\s*(Analysis\s+Result\s+END)\s*-->", re.IGNORECASE)


def earlier_stages(so_far: record.Record) -> str:
    """The ended stages' results, each between markers; of a failed one its error and what it had found.

    A model or a provider wrote them, with what an alert or a tool made them write: an end marker among it is disarmed.
    """
    parts = [_stage(name, stage) for name, stage in so_far.stages.items() if stage.ended]
    return "\n\n".join(["# Results of earlier stages", *parts]) if parts else ""


def analysis(stage: record.Stage) -> str:
    """The stage's result: its agents' analyses."""
    return "\n\n".join(
        execution.ended.text
        for execution in stage.executions.values()
        if execution.ended and execution.ended.outcome == "Completed"
    )


def _stage(name: str, stage: record.Stage) -> str:
    assert stage.ended  # noqa: S101 - the caller asks for ended ones
    if stage.ended.outcome == "Completed":
        return f"## Stage '{name}'\n\n{_marked(analysis(stage))}"
    found = "\n\n".join(_partial_findings(stage)) or "(nothing)"
    told = f"Error: {stage.ended.message}\n\nBefore it failed it found:\n\n{found}"
    return f"## Stage '{name}' failed\n\n{_marked(told)}"


def _marked(told: str) -> str:
    disarmed = _END.sub(r"[\1]", told)
    return f"{START}\n{disarmed}\n{END}"


def _partial_findings(stage: record.Stage) -> Iterator[str]:
    """Text that its agents wrote beside their tool calls."""
    for execution in stage.executions.values():
        for entry in execution.log:
            if isinstance(entry, messages.Message) and entry.role == "assistant" and entry.text.strip():
                yield entry.text

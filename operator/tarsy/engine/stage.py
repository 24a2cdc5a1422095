"""One stage: its agents, and what their outcomes make of it."""

from __future__ import annotations

from collections.abc import Iterable

from tarsy.config import resolve
from tarsy.engine import execution
from tarsy.resources import chain
from tarsy.transcript import entries, ports, record


async def run(stage: chain.Stage, *, runtime: ports.Runtime, journal: ports.Journal) -> entries.StageEnded:
    """Run, or go on with, `stage`, and return how it ended."""
    if stage.name not in journal.record.stages:
        await journal.commit(entries.StageStarted(stage=stage.name))
    if ended := journal.record.stages[stage.name].ended:
        return ended
    outcome: entries.Outcome
    try:
        work = await execution.run(stage, number=1, runtime=runtime, journal=journal)
    except resolve.UnresolvedError as error:
        outcome, message = "Failed", str(error)
    else:
        outcome, message = work.outcome, "" if work.outcome == "Completed" else work.text
        message = "; ".join(filter(None, [message, *_lacks(journal.record.stages[stage.name])]))
    ended = entries.StageEnded(stage=stage.name, outcome=outcome, message=message)
    await journal.commit(ended)
    return ended


async def skip(stage: chain.Stage, *, after: entries.StageEnded, journal: ports.Journal) -> entries.StageEnded:
    """Record that `stage` will not run because `after` stopped the chain."""
    if stage.name not in journal.record.stages:
        message = f"skipped by failurePolicy Stop: {failure(after)}"
        await journal.commit(entries.StageEnded(stage=stage.name, outcome="Skipped", message=message))
    ended = journal.record.stages[stage.name].ended
    assert ended  # noqa: S101 - what was skipped has ended
    return ended


def _lacks(so_far: record.Stage) -> Iterable[str]:
    """What its agents lacked from their start: a stage that could not look at anything must not pass for a good one."""
    return dict.fromkeys(
        problem for execution in so_far.executions.values() for problem in execution.started.agent.problems
    )


def failure(end: entries.StageEnded) -> str:
    """How a stage failed, in words that name it."""
    return end.message if end.outcome == "TimedOut" else f"stage {end.stage!r} failed: {end.message}"

"""One investigation: the stages of its chain in order, and the sum of them."""

from __future__ import annotations

from collections.abc import Sequence

from tarsy.engine import handover, stage
from tarsy.resources import chain
from tarsy.transcript import entries, ports, record


async def run(*, runtime: ports.Runtime, journal: ports.Journal) -> None:
    """Run, or go on with, the journal's investigation until it has ended, or is to stand still.

    A failed stage is recorded and the next one runs, because it may find what the failed one could not; unless the
    chain's failurePolicy is Stop, which skips all that follow.
    """
    so_far = journal.record.runs[entries.INVESTIGATION]
    spec = journal.record.snapshot.chain

    def following(ended: record.Stage) -> Sequence[entries.Entry]:
        assert ended.ended  # noqa: S101 - that is when it is asked for
        return following_entries(spec, record.Run(stages=so_far.stages | {ended.ended.stage: ended}))

    for step in spec.stages:
        if so_far.ended or journal.suspended():
            return
        if not _has_ended(so_far, step.name):
            await stage.Stage(spec=step, runtime=runtime, journal=journal, following=following).run()
        if not _has_ended(so_far, step.name):  # it rests
            return


def following_entries(spec: chain.Spec, run: record.Run) -> Sequence[entries.Entry]:
    """What ends with the last stage of `run`: nothing where another one follows, else the run.

    After a failure failurePolicy Stop skips the stages that are left.
    """
    left = [step.name for step in spec.stages if step.name not in run.stages]
    failed = [end for end in _ends(run) if _has_failed(end)]
    if not left:
        return (ending(spec, run),)
    if not failed or spec.failure_policy != "Stop":
        return ()
    message = f"skipped by failurePolicy Stop: {_failure(failed[0])}"
    skipped = [entries.StageEnded(stage=name, outcome="Skipped", message=message) for name in left]
    stages = run.stages | {end.stage: record.Stage(started=None, ended=end) for end in skipped}
    return (*skipped, ending(spec, record.Run(stages=stages)))


def ending(spec: chain.Spec, run: record.Run) -> entries.RunEnded:
    """The sum of the stages: none failed, some did, or all; with failurePolicy Stop, one that failed is as bad as all.

    The last analysis that there is is the result, whatever the sum.
    """
    ends = _ends(run)
    failed = [end for end in ends if _has_failed(end)]
    completed = [end for end in ends if end.outcome == "Completed"]
    problems = [_failure(end) for end in failed]
    if len(failed) + len(completed) < len(ends):
        problems.append("the stages after it were skipped (failurePolicy Stop)")
    worst: entries.Ending = "CompletedWithErrors"
    if not completed or spec.failure_policy == "Stop":
        worst = "Failed"
    return entries.RunEnded(
        ending=worst if failed else "Completed",
        reason="StagesFailed" if failed else "StagesCompleted",
        message="; ".join(problems),
        final_analysis=handover.analysis(run.stages[completed[-1].stage]) if completed else "",
    )


def _has_ended(run: record.Run, name: str) -> bool:
    return name in run.stages and run.stages[name].ended is not None


def _ends(run: record.Run) -> list[entries.StageEnded]:
    return [known.ended for known in run.stages.values() if known.ended]


def _has_failed(end: entries.StageEnded) -> bool:
    return end.outcome in ("Failed", "TimedOut")


def _failure(end: entries.StageEnded) -> str:
    """How a stage failed, in words that name it."""
    return end.message if end.outcome == "TimedOut" else f"stage {end.stage!r} failed: {end.message}"

"""One investigation: the stages of its chain in order, the sum of them, and a few lines that say it all."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from tarsy.engine import evidence, handover, retries, runbook, stage, summary
from tarsy.resources import chains
from tarsy.transcript import entries, excerpts, ports, record

SHOWN_OF_A_STAGE = 203
"""The maximum length of a stage's result, or error, in the account of the stages: 200 characters and `...`."""


async def run(*, runtime: ports.Runtime, journal: ports.Journal) -> None:
    """Run, or go on with, the journal's investigation until it has ended, or is to stand still.

    A failed stage is recorded and the next one runs, because it may find what the failed one could not; unless the
    chain's failurePolicy is Stop, which skips all that follow.
    """
    with contextlib.ExitStack() as held:
        await _run(runtime=runtime, journal=journal, held=held)


async def _run(*, runtime: ports.Runtime, journal: ports.Journal, held: contextlib.ExitStack) -> None:
    so_far = journal.record.runs[entries.INVESTIGATION]
    spec = journal.record.snapshot.chain
    left = retries.of_run(so_far, runtime=runtime)
    lines = summary.Summary(
        runtime=runtime, journal=journal, retries=left, ending=lambda run: ending(spec, run), held=held
    )

    def following(ended: record.Stage) -> Sequence[entries.Entry]:
        assert ended.ended  # noqa: S101 - that is when it is asked for
        after = record.Run(stages=so_far.stages | {ended.ended.stage: ended})
        return following_entries(spec, after, summary=lines)

    if not journal.suspended():
        await runbook.read(runtime=runtime, journal=journal)
    for step in spec.stages:
        if so_far.ended or journal.suspended():
            return
        if not _has_ended(so_far, step.name):
            due = stage.Stage(spec=step, runtime=runtime, journal=journal, retries=left, following=following)
            await due.run()
        if not _has_ended(so_far, step.name):  # it rests
            return
    if not so_far.ended:
        await lines.run()


def ends_of_stages(so_far: record.Record) -> Sequence[entries.Entry]:
    """The entries that end an investigation as its stages ended, where all have and only their summary is missing.

    That is what a deadline does which comes meanwhile: the work is done.
    """
    run = so_far.runs[entries.INVESTIGATION]
    spec = so_far.snapshot.chain
    if run.ended or not all(_has_ended(run, step.name) for step in spec.stages):
        return ()
    message = "the investigation's deadline came first"
    return (*so_far.endings(entries.INVESTIGATION, "TimedOut", message=message), ending(spec, run))


def following_entries(spec: chains.Spec, run: record.Run, *, summary: summary.Summary) -> Sequence[entries.Entry]:
    """Return the entries that end together with the last stage of `run`: none if another follows, else the run's end.

    An open summary delays the run's end. After a failure, failurePolicy Stop skips the remaining stages.
    """
    left = [step.name for step in spec.stages if step.name not in run.stages]
    failed = [end for end in _ends(run) if _has_failed(end)]
    if not left:
        return summary.opening(run)
    if not failed or spec.failure_policy != "Stop":
        return ()
    message = f"skipped by failurePolicy Stop: {_failure(failed[0])}"
    skipped = [entries.StageEnded(stage=name, outcome="Skipped", message=message) for name in left]
    stages = run.stages | {end.stage: record.Stage(started=None, ended=end) for end in skipped}
    return (*skipped, *summary.opening(record.Run(stages=stages)))


def ending(spec: chains.Spec, run: record.Run) -> entries.RunEnded:
    """The sum of the stages: none failed, some did, or all; with failurePolicy Stop, one that failed is as bad as all.

    The result is the last analysis, whatever the sum. After a failure an account of the stages stands before it, and
    before all of it the MCP servers that could not be looked at.
    """
    ends = _ends(run)
    failed = [end for end in ends if _has_failed(end)]
    completed = [end for end in ends if _has_completed(end)]
    problems = [_failure(end) for end in ends if _has_failed(end) or end.outcome == "CompletedWithErrors"]
    if len(failed) + len(completed) < len(ends):
        problems.append("the stages after it were skipped (failurePolicy Stop)")
    worst: entries.Ending = "CompletedWithErrors"
    if not completed or (failed and spec.failure_policy == "Stop"):
        worst = "Failed"
    analysis = handover.analysis(run.stages[completed[-1].stage]) if completed else ""
    return entries.RunEnded(
        ending=worst if problems else "Completed",
        reason="StagesFailed" if problems else "StagesCompleted",
        message="; ".join(problems),
        final_analysis="\n\n".join(filter(None, [evidence.away_notice(run), account(run) if failed else "", analysis])),
        gaps=evidence.gaps(run),
        grounds=evidence.grounds(run),
    )


def account(run: record.Run) -> str:
    """Return the outcome of each stage, in the words of the founding documents."""
    ends = _ends(run)
    lines = [
        "Chain Execution Summary:",
        f"- Total stages: {len(ends)}",
        f"- Successful: {sum(map(_has_completed, ends))}",
        f"- Failed: {sum(map(_has_failed, ends))}",
        "",
        "Stage Results:",
    ]
    return "\n".join([*lines, *(_line(run.stages[end.stage], end) for end in ends)])


def _line(stage: record.Stage, end: entries.StageEnded) -> str:
    if _has_failed(end):
        return f"❌ {end.stage}: {excerpts.one_line(end.message, SHOWN_OF_A_STAGE, mark='...')}"
    if end.outcome == "Skipped":
        return f"⏭️ {end.stage}: skipped"
    text = excerpts.one_line(handover.analysis(stage), SHOWN_OF_A_STAGE, mark="...")
    return f"✅ {end.stage}: {text or 'Completed successfully'}"


def _has_ended(run: record.Run, name: str) -> bool:
    return name in run.stages and run.stages[name].ended is not None


def _ends(run: record.Run) -> list[entries.StageEnded]:
    return [stage.ended for stage in run.stages.values() if stage.ended]


def _has_failed(end: entries.StageEnded) -> bool:
    return end.outcome in ("Failed", "TimedOut")


def _has_completed(end: entries.StageEnded) -> bool:
    return end.outcome in ("Completed", "CompletedWithErrors")


def _failure(end: entries.StageEnded) -> str:
    """How a stage failed, or what failed in it, in words that name it."""
    match end.outcome:
        case "TimedOut":
            return end.message
        case "CompletedWithErrors":
            return f"stage {end.stage!r} completed with errors: {end.message}"
        case _:
            return f"stage {end.stage!r} failed: {end.message}"

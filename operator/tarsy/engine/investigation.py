"""One investigation: the stages of its chain in order, and the sum of them."""

from __future__ import annotations

from collections.abc import Sequence

from tarsy.engine import handover, stage
from tarsy.transcript import entries, ports, record


async def run(*, runtime: ports.Runtime, journal: ports.Journal) -> None:
    """Run, or go on with, the journal's investigation until it has ended.

    A failed stage is recorded and the next one runs, because it may find what the failed one could not; unless the
    chain's failurePolicy is Stop, which skips all that follow.
    """
    if journal.record.ended:
        return
    chain = journal.record.subject.chain
    ends: list[entries.StageEnded] = []
    for step in chain.stages:
        failed = _failed(ends)
        if failed and chain.failure_policy == "Stop":
            ends.append(await stage.skip(step, after=failed[0], journal=journal))
        else:
            ends.append(await stage.run(step, runtime=runtime, journal=journal))
    await journal.commit(ending(ends, so_far=journal.record))


def ending(ends: Sequence[entries.StageEnded], *, so_far: record.Record) -> entries.InvestigationEnded:
    """The sum of the stages: none failed, some did, or all; with failurePolicy Stop, one that failed is as bad as all.

    The last analysis that there is is the result, whatever the sum.
    """
    failed, completed = _failed(ends), [end for end in ends if end.outcome == "Completed"]
    told = [stage.failure(end) for end in failed]
    if len(failed) + len(completed) < len(ends):
        told.append("the stages after it were skipped (failurePolicy Stop)")
    worst: entries.Ending = "CompletedWithErrors"
    if not completed or so_far.subject.chain.failure_policy == "Stop":
        worst = "Failed"
    return entries.InvestigationEnded(
        ending=worst if failed else "Completed",
        reason="StagesFailed" if failed else "StagesCompleted",
        message="; ".join(told),
        final_analysis=handover.analysis(so_far.stages[completed[-1].stage]) if completed else "",
    )


def _failed(ends: Sequence[entries.StageEnded]) -> list[entries.StageEnded]:
    return [end for end in ends if end.outcome in ("Failed", "TimedOut")]

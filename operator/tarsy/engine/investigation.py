"""One investigation: the stages of its chain in order, and the sum of them."""

from __future__ import annotations

from collections.abc import Sequence

from tarsy.engine import handover, stage
from tarsy.transcript import entries, ports, record


async def run(*, kit: ports.Kit, journal: ports.Journal) -> None:
    """Run, or go on with, the journal's investigation until it has ended.

    A failed stage is recorded and the next one runs: it may find what the failed one could not.
    """
    if journal.record.ended:
        return
    ends = [await stage.run(step, kit=kit, journal=journal) for step in journal.record.subject.chain.stages]
    await journal.commit(ending(ends, so_far=journal.record))


def ending(ends: Sequence[entries.StageEnded], *, so_far: record.Record) -> entries.InvestigationEnded:
    """The sum of the stages: none failed, some did, or all."""
    failed = [end for end in ends if end.outcome == "Failed"]
    message = "; ".join(f"stage {end.stage!r} failed: {end.message}" for end in failed)
    if len(failed) == len(ends):
        return entries.InvestigationEnded(ending="Failed", reason="StagesFailed", message=message)
    last = next(end for end in reversed(ends) if end.outcome == "Completed")
    return entries.InvestigationEnded(
        ending="CompletedWithErrors" if failed else "Completed",
        reason="StagesFailed" if failed else "StagesCompleted",
        message=message,
        final_analysis=handover.analysis(so_far.stages[last.stage]),
    )

"""One investigation: the runbook, the stages of its chain in order, and a summary in a few lines."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from tarsy.engine import execution, outcomes, recheck, runbook, stage, summary
from tarsy.transcript import entries, ports, record


async def run(*, runtime: ports.Runtime, journal: ports.Journal) -> None:
    """Run the journal's investigation from where its record stands, until it ends or is suspended.

    An alert that comes again may end with the result of its last investigation (`recheck`).

    A failed stage does not stop the next one, which may find what the failed one could not, unless the chain's
    failurePolicy is Stop.
    """
    chain, so_far = journal.record.snapshot.chain, journal.record.runs[entries.INVESTIGATION]
    retries = execution.retry_budget(so_far, runtime=runtime)

    masking = recheck.masking_in_force(runtime) if chain.recurrence else ""

    def ends_with(*ended: record.Execution) -> Sequence[entries.Entry]:
        """Return what is committed with the ends of executions: the ends that follow, or the start of the summary."""
        ends = recheck.with_masking(outcomes.ends_with(journal.record, *ended), runtime, began=masking)
        match ends:
            case [*_, entries.RunEnded() as run_ended] if ended[0].started.stage:
                if outcomes.summary_is_due(chain, run_ended, so_far, *ended):
                    return (*ends[:-1], *summarising.opening(run_ended))
        return ends

    with contextlib.ExitStack() as held:
        summarising = summary.Summary(runtime=runtime, journal=journal, retries=retries, ends_with=ends_with, held=held)
        if not journal.suspended():
            await runbook.ensure_read(runtime=runtime, journal=journal)
        if not journal.suspended():
            await recheck.run(runtime=runtime, journal=journal)
        for spec in chain.stages:
            if so_far.ended or journal.suspended():
                return
            if not _has_ended(so_far, spec.name):
                await stage.Stage(
                    spec=spec, runtime=runtime, journal=journal, retries=retries, ends_with=ends_with
                ).run()
            if not _has_ended(so_far, spec.name):  # it is suspended
                return
        if not so_far.ended:
            await summarising.run()


def _has_ended(run: record.Run, name: str) -> bool:
    return name in run.stages and run.stages[name].ended is not None

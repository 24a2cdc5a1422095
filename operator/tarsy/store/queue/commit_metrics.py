"""Metrics of what a claim's holder commits: the times of stages and runs, and the wait for the first model call.

They are observed once the commit is certain. Entries are committed once, by one worker, so the sum over all processes
is right across takeovers.
"""

from __future__ import annotations

from collections.abc import Sequence

from tarsy.telemetry import metrics
from tarsy.transcript import entries, messages, record
from tarsy.transcript.kinds import registry


class CommitMetrics:
    """The metrics of the commits of one claim."""

    def __init__(self, so_far: record.Record, *, run: int, waited: float) -> None:
        """`so_far` is the record, to which each commit is applied later; `waited` is `work.Claim.waited`."""
        self._record = so_far
        self._run = run
        self._waited = waited
        self._awaits_first_call = run == entries.INVESTIGATION and not _has_called(so_far)

    def observe(self, added: Sequence[entries.Entry], *, clock: float) -> None:
        """Observe committed entries; `clock` is the time of the run in seconds (`ports.Journal.clock`)."""
        for entry in added:
            match entry:
                case entries.StageEnded(outcome=outcome) if outcome != "Skipped":
                    self._observe_stage(entry, added, clock)
                case entries.RunEnded(run=entries.INVESTIGATION):
                    metrics.INVESTIGATION_SECONDS.observe(clock, self._record.snapshot.chain_name, entry.ending)
            if self._awaits_first_call and (call := registry.model_call(entry)) is not None:
                self._awaits_first_call = False
                metrics.FIRST_MODEL_CALL.observe(self._waited + max(0.0, clock - call.seconds))

    def _observe_stage(self, ended: entries.StageEnded, added: Sequence[entries.Entry], clock: float) -> None:
        stage = self._record.runs[ended.run].stages.get(ended.stage)
        started = stage.started if stage else None
        for entry in added:
            if isinstance(entry, entries.StageStarted) and (entry.run, entry.stage) == (ended.run, ended.stage):
                started = entry
        if started is not None:
            chain = self._record.snapshot.chain_name
            metrics.STAGE_SECONDS.observe(max(0.0, clock - started.clock), chain, ended.outcome)


def _has_called(so_far: record.Record) -> bool:
    """Return whether a model was called, with any outcome."""
    return any(
        execution.fallen
        or any(isinstance(message, messages.Failure) or message.role == "assistant" for message in execution.log)
        for execution in so_far.executions.values()
    )

"""The executive summary: one to four lines for the on-call engineer, once all stages have ended.

It belongs to no stage, and fails open: without it the investigation ends with the outcome of its stages, and an event
has the reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tarsy.agent import loop, prompts
from tarsy.config import resolve
from tarsy.config.model import platforms
from tarsy.engine import execution, handover, outcomes, timeouts
from tarsy.transcript import entries, messages, ports

SECONDS = 30.0
"""The time limit of a summary, without the time in which it waits for a slot of its provider."""


@dataclass(kw_only=True)
class Summary:
    """The summary of one investigation, as this process makes it."""

    runtime: ports.Runtime
    journal: ports.Journal
    retries: execution.RetryBudget
    ends_with: loop.EndsWith
    held: contextlib.ExitStack
    """Keeps the runtime that the summary was started with until the run ends: its start is committed before it runs."""
    _started_with: ports.Runtime | None = field(init=False, default=None)
    _execution: execution.Execution = field(init=False)

    def __post_init__(self) -> None:
        task = execution.Task(kind="summary", name=resolve.SUMMARY, settings=self._settings, prompt=self._prompt)
        self._execution = execution.Execution(
            task=task, runtime=self.runtime, journal=self.journal, retries=self.retries, ends_with=self.ends_with
        )

    def opening(self, run_ended: entries.RunEnded) -> Sequence[entries.Entry]:
        """Return the start of the summary of a run that would else end so; if it cannot start, both their ends."""
        self._started_with = self.held.enter_context(self.runtime.in_force())
        try:
            agent = self._settings(self._started_with.platform)
        except resolve.UnresolvedError as error:
            ends, _ = self._execution.ends(str(error), outcome="Failed")
            return (*ends, run_ended)
        return (self._execution.start(agent=agent, prompt=self._messages(run_ended)),)

    async def run(self) -> None:
        """Write the summary, or continue it, and end the run with it; or return when the run is suspended."""
        in_time = await timeouts.PausableTimeout(SECONDS).run(
            lambda timeout: self._execution.run(timeout.pause, started_with=self._started_with)
        )
        if in_time:
            return
        await self.journal.settle()  # an end whose commit was cut off counts
        if self.journal.record.ended is None:
            await self._execution.fail(f"there was no summary after {SECONDS:g} s", outcome="TimedOut")

    def _settings(self, platform_file: platforms.Platform) -> resolve.ResolvedAgent:
        snapshot = self.journal.record.snapshot
        return resolve.summary_for(platform_file, chain_name=snapshot.chain_name, chain=snapshot.chain)

    def _prompt(self, _agent: resolve.ResolvedAgent, _tools: Sequence[messages.ToolSpec]) -> Sequence[messages.Message]:
        run = self.journal.record.runs[entries.INVESTIGATION]
        return self._messages(outcomes.run_end(self.journal.record.snapshot.chain, run))

    def _messages(self, run_ended: entries.RunEnded) -> Sequence[messages.Message]:
        snapshot = self.journal.record.snapshot
        parts = [handover.result(run_ended.final_analysis), handover.not_inspected(run_ended.gaps)]
        return prompts.summary_prompt(
            prompts.Assignment(
                snapshot=snapshot,
                position=f"chain '{snapshot.chain_name}'",
                name=resolve.SUMMARY,
                findings="\n\n".join(filter(None, parts)),
                task="Sum up this investigation.",
                now=datetime.now(UTC),
            )
        )

"""The executive summary: one to four lines for who is on call, once all stages have ended.

It is of no stage, and fails open: without it the investigation ends as its stages ended, and an event says why.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from tarsy.agent import prompts
from tarsy.config import resolve
from tarsy.config.model import platforms
from tarsy.engine import evidence, execution, handover, retries, timeouts
from tarsy.transcript import entries, messages, ports, record

SECONDS = 30.0
"""Its own limit, without what it waits for a slot of its provider."""
LINES_MAX, CHARACTERS_MAX = 4, 1024
"""The limits of a stored summary."""


@dataclass(kw_only=True)
class Summary:
    """The summary of one investigation, as this process makes it."""

    runtime: ports.Runtime
    journal: ports.Journal
    retries: retries.Retries
    ending: Callable[[record.Run], entries.RunEnded]
    """The end of a run whose stages have ended."""
    held: contextlib.ExitStack
    """Holds for the run what its summary began with: that is committed with the end of another execution."""
    _begun_with: ports.Runtime | None = field(init=False, default=None)
    _execution: execution.Execution = field(init=False)

    def __post_init__(self) -> None:
        task = execution.Task(kind="summary", name=resolve.SUMMARY, settings=self._settings, prompt=self._prompt)
        self._execution = execution.Execution(
            task=task,
            runtime=self.runtime,
            journal=self.journal,
            retries=self.retries,
            ends_with=self._ends_with,
        )

    def opening(self, run: record.Run) -> Sequence[entries.Entry]:
        """Return the entries after the last stage of `run`.

        The start of its summary, or the run's end if there is none.
        """
        ended = self.ending(run)
        has_analysis = any(handover.analysis(stage) for stage in run.stages.values())
        if not has_analysis or not self.journal.record.snapshot.chain.is_summarised:
            return (ended,)
        self._begun_with = self.held.enter_context(self.runtime.in_force())
        try:
            agent = self._settings(self._begun_with.platform)
        except resolve.UnresolvedError as error:
            ends, _ = self._execution.ends(str(error), outcome="Failed")
            return (*ends, ended)
        return (self._execution.start(agent=agent, prompt=self._said_of(ended, run)),)

    async def run(self) -> None:
        """Make it, or go on with it, and end the run with it; or until the run is to stand still."""
        in_time = await timeouts.PausableTimeout(SECONDS).run(self._run)
        if in_time:
            return
        await self.journal.settle()  # an end whose commit was cut off counts
        if self.journal.record.ended is None:
            await self._execution.fail(f"there was no summary after {SECONDS:g} s", outcome="TimedOut")

    async def _run(self, time: timeouts.PausableTimeout) -> None:
        await self._execution.run(time.pause, equipped=self._begun_with)

    def _settings(self, platform_file: platforms.Platform) -> resolve.ResolvedAgent:
        snapshot = self.journal.record.snapshot
        return resolve.summary_for(platform_file, chain_name=snapshot.chain_name, chain=snapshot.chain)

    def _prompt(self, _agent: resolve.ResolvedAgent, _tools: Sequence[messages.ToolSpec]) -> Sequence[messages.Message]:
        run = self.journal.record.runs[entries.INVESTIGATION]
        return self._said_of(self.ending(run), run)

    def _said_of(self, ended: entries.RunEnded, run: record.Run) -> Sequence[messages.Message]:
        snapshot = self.journal.record.snapshot
        parts = [handover.result(ended.final_analysis), handover.not_inspected(run)]
        return prompts.of_summary(
            prompts.Assignment(
                snapshot=snapshot,
                place=f"chain '{snapshot.chain_name}'",
                name=resolve.SUMMARY,
                known="\n\n".join(filter(None, parts)),
                task="Sum up this investigation.",
                now=datetime.now(UTC),
            )
        )

    def _ends_with(self, ended: record.Execution) -> Sequence[entries.Entry]:
        """The end of the run, with the summary if there is one: first the MCP servers that could not be looked at."""
        run = self.journal.record.runs[entries.INVESTIGATION]
        end = self.ending(run)
        lines = [line.strip() for line in ended.analysis.splitlines() if line.strip()]
        if lines and (missing := evidence.away_notice(run)):
            lines.insert(0, missing)
        return (replace(end, summary="\n".join(lines[:LINES_MAX])[:CHARACTERS_MAX]),)

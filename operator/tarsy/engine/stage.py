"""One stage: its agents side by side, and the synthesis of their results, within the stage's time.

Agents are independent: none is stopped because another one has ended. If the stage completed with several
agents (`outcomes`), one more execution joins their results in the time that is left: none, if an agent timed out. If
the synthesis fails, later stages read the results of the agents.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tarsy.agent import loop, prompts, result_tools, strategies
from tarsy.config import resolve
from tarsy.config.model import platforms
from tarsy.engine import execution, handover, outcomes, runbook, timeouts
from tarsy.resources import chains
from tarsy.telemetry import logs
from tarsy.transcript import entries, messages, ports, record

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Stage:
    """A stage of the investigation, as this process runs it."""

    spec: chains.Stage
    runtime: ports.Runtime
    journal: ports.Journal
    retries: execution.RetryBudget
    ends_with: Callable[..., Sequence[entries.Entry]]
    """Returns the entries to commit with the ends of executions, given their states after these (`outcomes`)."""
    _start: entries.StageStarted = field(init=False)
    _start_is_due: bool = field(init=False)
    _waited: float = field(init=False, default=0.0)
    """Seconds for which the last execution waited for its provider's slots: the stage's time is longer by them."""
    _agents: list[execution.Execution] = field(init=False)
    _synthesis: execution.Execution = field(init=False)

    def __post_init__(self) -> None:
        so_far = self._so_far
        self._start_is_due = so_far is None
        started = so_far and so_far.started
        self._start = started or entries.StageStarted(stage=self.spec.name, clock=self.journal.clock())
        tasks = [self._agents_task(index) for index in range(len(self.spec.members))]
        self._agents = [self._execution(task) for task in tasks]
        self._synthesis = self._execution(self._synthesis_task())

    async def run(self) -> None:
        """Run the stage from where its record stands, until it ends or the run is suspended."""
        with logs.fields(stage=self.spec.name):
            log.info("stage %s", "started" if self._start_is_due else "continues", extra={"action": "stage_started"})
            await self._run()
            if self._so_far and (ended := self._so_far.ended):
                seconds = self.journal.clock() - self._start.clock
                log_fields = {"action": "stage_ended", "outcome": ended.outcome, "seconds": round(seconds, 3)}
                log.info("stage ended: %s after %.1f s", ended.outcome, seconds, extra=log_fields)

    async def _run(self) -> None:
        await self._work(self._agents)
        if self._so_far and outcomes.synthesis_is_due(self.spec, self._so_far):
            await self._work([self._synthesis])
        elif self._so_far and not self._so_far.ended and outcomes.is_done(self.spec, self._so_far):
            # Its last agents ended at the same time: neither commit held the end of the other.
            await self.journal.commit(*self.ends_with(*self._so_far.agents))

    async def _work(self, executions: Sequence[execution.Execution]) -> None:
        """Run the executions that have not ended, and end them when the stage's time is over."""
        unfinished = _unfinished(executions)
        if unfinished and not await self._run_in_time(unfinished):
            await self.journal.settle()  # an end whose commit was cut off counts
            if unfinished := _unfinished(executions):
                await self._time_out(unfinished)

    @property
    def _so_far(self) -> record.Stage | None:
        return self.journal.record.stages.get(self.spec.name)

    async def _run_in_time(self, executions: Sequence[execution.Execution]) -> bool:
        """Run executions side by side within the stage's time; return False if it was over for one of them.

        The time for which an agent waits for its provider's slots is added to its own time, not to its siblings'.
        """
        left = self._seconds_left
        if left is not None and left <= 0:  # the agents used it up, or a takeover came too late: no call may be sent
            return False

        async def run(member: execution.Execution) -> bool:
            timeout = timeouts.PausableTimeout(left)
            in_time = await timeout.run(lambda timeout: member.run(timeout.pause))
            self._waited = timeout.paused_seconds
            return in_time

        return all(await loop.side_by_side(map(run, executions)))

    @property
    def _seconds_left(self) -> float | None:
        """The seconds that are left to the stage; None without a limit.

        It is 0 once an agent timed out: a small difference of clocks, or the waits of another agent, must not give time
        back. The record holds that, so a takeover knows it.
        """
        if self.spec.timeout_seconds is None:
            return None
        executions = self._so_far.executions.values() if self._so_far else ()
        if any(execution.ended and execution.ended.outcome == "TimedOut" for execution in executions):
            return 0.0
        return self.spec.timeout_seconds - (self.journal.clock() - self._start.clock) + self._waited

    def _opening(self) -> Sequence[entries.Entry]:
        """Return the stage's start once: it is committed with the start of the agent that begins first."""
        due, self._start_is_due = self._start_is_due, False
        return (self._start,) if due else ()

    async def _time_out(self, executions: Sequence[execution.Execution]) -> None:
        """End executions, started or not, and all that ends with them."""
        error = f"Stage {self.spec.name} timed out after {self.spec.timeout_seconds} s"
        ends = [execution.ends(error, outcome="TimedOut") for execution in executions]
        added = [entry for execution_ends, _ in ends for entry in execution_ends]
        await self.journal.commit(*self._opening(), *added, *self.ends_with(*(after for _, after in ends)))

    def _execution(self, task: execution.Task) -> execution.Execution:
        return execution.Execution(
            task=task,
            runtime=self.runtime,
            journal=self.journal,
            retries=self.retries,
            opening=self._opening,
            ends_with=self.ends_with,
        )

    def _agents_task(self, index: int) -> execution.Task:
        snapshot, name = self.journal.record.snapshot, self.spec.shown_names[index]

        def settings(platform_file: platforms.Platform) -> resolve.ResolvedAgent:
            return resolve.agent_for(
                platform_file,
                chain_name=snapshot.chain_name,
                chain=snapshot.chain,
                stage=self.spec,
                member=self.spec.members[index],
                mcp=self.journal.record.mcp,
            )

        def prompt(agent: resolve.ResolvedAgent, tools: Sequence[messages.ToolSpec]) -> Sequence[messages.Message]:
            run = self.journal.record.runs[entries.INVESTIGATION]
            findings = handover.earlier_stages(
                run,
                reads=strategies.STRATEGIES[agent.strategy].reads,
                looks_into_results=any(result_tools.is_own(spec.name) for spec in tools),
            )
            findings = "\n\n".join(filter(None, [handover.rechecked(run), findings]))
            task = f"Do the work of stage '{self.spec.name}'."
            return prompts.agent_prompt(self._assignment(name, findings, task), agent=agent, tools=tools)

        return execution.Task(
            kind="agent", stage=self.spec.name, index=index, name=name, settings=settings, prompt=prompt
        )

    def _synthesis_task(self) -> execution.Task:
        snapshot, synthesis = self.journal.record.snapshot, self.spec.synthesis
        name = (synthesis and synthesis.agent) or resolve.SYNTHESIS_AGENT

        def settings(platform_file: platforms.Platform) -> resolve.ResolvedAgent:
            return resolve.synthesis_for(
                platform_file, chain_name=snapshot.chain_name, chain=snapshot.chain, stage=self.spec
            )

        def prompt(agent: resolve.ResolvedAgent, tools: Sequence[messages.ToolSpec]) -> Sequence[messages.Message]:
            assert self._so_far  # noqa: S101 - its agents have worked
            findings = handover.agents_work(self._so_far)
            task = f"Join the results of the agents of stage '{self.spec.name}'."
            return prompts.agent_prompt(self._assignment(agent.name, findings, task), agent=agent, tools=tools)

        return execution.Task(kind="synthesis", stage=self.spec.name, name=name, settings=settings, prompt=prompt)

    def _assignment(self, name: str, findings: str, task: str) -> prompts.Assignment:
        snapshot = self.journal.record.snapshot
        return prompts.Assignment(
            snapshot=snapshot,
            runbook=runbook.text(self.journal.record),
            former=snapshot.former,
            position=f"stage '{self.spec.name}' of chain '{snapshot.chain_name}'",
            name=name,
            findings=findings,
            task=task,
            now=datetime.now(UTC),
        )


def _unfinished(executions: Sequence[execution.Execution]) -> Sequence[execution.Execution]:
    return [execution for execution in executions if not (execution.so_far and execution.so_far.ended)]

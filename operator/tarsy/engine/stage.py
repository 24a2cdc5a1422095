"""One stage: its agents side by side, within its time, what joins their results, and what their ends make of it.

Each agent goes on by itself, and none is stopped because another one has ended. The stage ends with the last of them:
in that agent's own commit where the others had ended before, else in one of its own.

    successPolicy   its agents                      the stage
    any             one or more Completed           Completed; its message names those that did not
    all             all Completed                   Completed
    either          all TimedOut                    TimedOut
    either          anything else                   Failed

Where it completed with more than one agent, their results are joined, by an execution of its own in what is left of the
stage's time: nothing, where an agent was timed out. Where that fails the stage is CompletedWithErrors, and the results
go on as they are. So is a stage that completed with an agent that could call none of its MCP servers because they were
away.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeAlias

from tarsy.agent import loop, prompts, strategies
from tarsy.config import resolve
from tarsy.config.model import platforms
from tarsy.engine import evidence, execution, handover, retries, runbook, timeouts
from tarsy.resources import chains
from tarsy.telemetry import logs
from tarsy.transcript import entries, messages, ports, record

log = logging.getLogger(__name__)

Following: TypeAlias = Callable[[record.Stage], Sequence[entries.Entry]]
"""Return the entries that end together with a stage, given its state after its end."""


@dataclass(kw_only=True)
class Stage:
    """One stage of the investigation, as this process runs it."""

    spec: chains.Stage
    runtime: ports.Runtime
    journal: ports.Journal
    retries: retries.Retries
    following: Following
    _start: entries.StageStarted = field(init=False)
    _start_is_due: bool = field(init=False)
    _waited: float = field(init=False, default=0.0)
    """Seconds that the execution that ended last had waited for its provider's slots.

    The stage's remaining time grows by them.
    """
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
        """Run it, or go on with it, until it has ended or the run is to stand still."""
        with logs.fields(stage=self.spec.name):
            log.info("stage %s", "started" if self._start_is_due else "goes on", extra={"action": "stage_started"})
            await self._run()
            if self._so_far and (ended := self._so_far.ended):
                seconds = self.journal.clock() - self._start.clock
                log_fields = {"action": "stage_ended", "outcome": ended.outcome, "seconds": round(seconds, 3)}
                log.info("stage ended: %s after %.1f s", ended.outcome, seconds, extra=log_fields)

    async def _run(self) -> None:
        await self._work(self._agents)
        if self._synthesis_is_due(self._executions):
            await self._work([self._synthesis])
        elif not self._has_ended and not self._open(self._agents):
            await self.journal.commit(*self._end({}))

    async def _work(self, executions: Sequence[execution.Execution]) -> None:
        """Run those that have not ended, and end them where their time is over."""
        open_ones = self._open(executions)
        if open_ones and not await self._run_in_time(open_ones):
            await self.journal.settle()  # an end whose commit was cut off counts
            if still_open := self._open(open_ones):
                await self._time_out(still_open)

    @property
    def _so_far(self) -> record.Stage | None:
        return self.journal.record.stages.get(self.spec.name)

    @property
    def _has_ended(self) -> bool:
        return self._so_far is not None and self._so_far.ended is not None

    def _open(self, executions: Sequence[execution.Execution]) -> Sequence[execution.Execution]:
        return [opened for opened in executions if not (opened.so_far and opened.so_far.ended)]

    @property
    def _executions(self) -> dict[str, record.Execution]:
        return self._so_far.executions if self._so_far else {}

    async def _run_in_time(self, executions: Sequence[execution.Execution]) -> bool:
        """Run some, each while it has time; False where that was over for one of them.

        What an agent waits for its provider's slots is added to its own time, and to none of its siblings'.
        """
        left = self._seconds_left
        if left is not None and left <= 0:  # its agents had it all, or a takeover came later: no call may be sent
            return False

        async def run(one: execution.Execution) -> bool:
            time = timeouts.PausableTimeout(left)
            in_time = await time.run(lambda time: one.run(time.pause))
            self._waited = time.waited
            return in_time

        return all(await loop.side_by_side(map(run, executions)))

    @property
    def _seconds_left(self) -> float | None:
        """Seconds that are left to the stage; None: no limit.

        Zero once one of its agents timed out: neither a clock that differs a little from the timer's nor the waits of
        another agent give time back. The record holds it, so a takeover knows it.
        """
        if self.spec.timeout_seconds is None:
            return None
        if any(execution.ended and execution.ended.outcome == "TimedOut" for execution in self._executions.values()):
            return 0.0
        return self.spec.timeout_seconds - (self.journal.clock() - self._start.clock) + self._waited

    def _opening(self) -> Sequence[entries.Entry]:
        """The stage's start, for whichever of its agents begins first: the two are committed together."""
        due, self._start_is_due = self._start_is_due, False
        return (self._start,) if due else ()

    async def _time_out(self, executions: Sequence[execution.Execution]) -> None:
        """End what is open, those too that never began, and what ends with them."""
        error = f"Stage {self.spec.name} timed out after {self.spec.timeout_seconds} s"
        ended: dict[str, record.Execution] = {}
        added: list[entries.Entry] = [*self._opening()]
        for running in executions:
            so_far = running.so_far
            if so_far is None:
                so_far = record.Execution(started=running.start(agent=None))
                added.append(so_far.started)
            end = entries.ExecutionEnded(execution=running.id, outcome="TimedOut", error=error)
            added.append(end)
            ended[running.id] = replace(so_far, ended=end)
        await self.journal.commit(*added, *self._end(ended))

    def _ends_with(self, ended: record.Execution) -> Sequence[entries.Entry]:
        """Return the entries that end together with an execution.

        The stage's end after the last one, and what that ends.
        """
        return self._end({ended.started.execution: ended})

    def _end(self, ended: dict[str, record.Execution]) -> Sequence[entries.Entry]:
        """The ends that follow once `ended` have ended too."""
        executions = self._executions | ended
        agents = [execution for execution in executions.values() if execution.started.kind == "agent"]
        if len(agents) < len(self._agents) or not all(execution.ended for execution in executions.values()):
            return ()
        if self._synthesis_is_due(executions):
            return ()
        after = record.Stage(started=self._start, executions=executions)
        after.ended = end_of(after, policy=self._policy)
        return (after.ended, *self.following(after))

    def _synthesis_is_due(self, executions: dict[str, record.Execution]) -> bool:
        """Whether the agents' results are to be joined, and have not been."""
        after = record.Stage(started=self._start, executions=executions)
        if len(after.agents) < max(2, len(self._agents)) or not all(agent.ended for agent in after.agents):
            return False
        joined = after.synthesis and after.synthesis.ended
        return not joined and outcome_of(after.agents, policy=self._policy) == "Completed"

    @property
    def _policy(self) -> chains.SuccessPolicy:
        return self.spec.success_policy or "any"

    def _execution(self, task: execution.Task) -> execution.Execution:
        return execution.Execution(
            task=task,
            runtime=self.runtime,
            journal=self.journal,
            retries=self.retries,
            opening=self._opening,
            ends_with=self._ends_with,
        )

    def _agents_task(self, index: int) -> execution.Task:
        snapshot = self.journal.record.snapshot
        name = self.spec.shown_names[index]

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
            earlier_work = handover.earlier_stages(run, reads=strategies.STRATEGIES[agent.strategy].reads)
            task = f"Do the work of stage '{self.spec.name}'."
            return prompts.of_agent(
                self._assignment(name, earlier_work=earlier_work, task=task), agent=agent, tools=tools
            )

        return execution.Task(
            kind="agent",
            stage=self.spec.name,
            index=index,
            name=name,
            settings=settings,
            prompt=prompt,
        )

    def _synthesis_task(self) -> execution.Task:
        snapshot = self.journal.record.snapshot

        def settings(platform_file: platforms.Platform) -> resolve.ResolvedAgent:
            return resolve.synthesis_for(
                platform_file, chain_name=snapshot.chain_name, chain=snapshot.chain, stage=self.spec
            )

        def prompt(agent: resolve.ResolvedAgent, tools: Sequence[messages.ToolSpec]) -> Sequence[messages.Message]:
            assert self._so_far  # noqa: S101 - its agents have worked
            agents_work = handover.agents_work(self._so_far)
            task = f"Join the results of the agents of stage '{self.spec.name}'."
            return prompts.of_agent(
                self._assignment(agent.name, earlier_work=agents_work, task=task), agent=agent, tools=tools
            )

        return execution.Task(
            kind="synthesis", stage=self.spec.name, name=self._synthesis_name, settings=settings, prompt=prompt
        )

    @property
    def _synthesis_name(self) -> str:
        return (self.spec.synthesis and self.spec.synthesis.agent) or resolve.SYNTHESIS_AGENT

    def _assignment(self, name: str, *, earlier_work: str, task: str) -> prompts.Assignment:
        snapshot = self.journal.record.snapshot
        return prompts.Assignment(
            snapshot=snapshot,
            runbook=runbook.text(self.journal.record),
            place=f"stage '{self.spec.name}' of chain '{snapshot.chain_name}'",
            name=name,
            known=earlier_work,
            task=task,
            now=datetime.now(UTC),
        )


def outcome_of(agents: Sequence[record.Execution], *, policy: chains.SuccessPolicy) -> entries.StageOutcome:
    """How a stage ends whose agents have all ended: a pure function of their ends (the table above)."""
    outcomes = [agent.ended.outcome for agent in agents if agent.ended]
    completed = outcomes.count("Completed")
    if completed == len(outcomes) or (completed and policy == "any"):
        return "Completed"
    return "TimedOut" if outcomes.count("TimedOut") == len(outcomes) else "Failed"


def end_of(stage: record.Stage, *, policy: chains.SuccessPolicy) -> entries.StageEnded:
    """The end of a stage whose executions have all ended."""
    assert stage.started  # noqa: S101 - one that never started was skipped
    agents, synthesis = stage.agents, stage.synthesis
    outcome = outcome_of(agents, policy=policy)
    ends = [(agent.started.name, agent.ended.error) for agent in agents if agent.ended and agent.ended.error]
    if len(agents) > 1 and outcome != "TimedOut":
        errors = [f"{name}: {error}" for name, error in ends]
    else:
        errors = list(dict.fromkeys(error for _, error in ends))
    if blind := list(filter(None, map(_away, agents))):
        outcome = "CompletedWithErrors" if outcome == "Completed" else outcome
        errors += blind
    if synthesis and synthesis.ended and synthesis.ended.outcome != "Completed":
        outcome = "CompletedWithErrors"
        errors.append(f"synthesis by {synthesis.started.name}: {synthesis.ended.error}")
    return entries.StageEnded(
        run=stage.started.run,
        stage=stage.started.stage,
        outcome=outcome,
        message="; ".join(errors),
        lacks=tuple(
            dict.fromkeys(
                problem for agent in agents if agent.started.agent for problem in agent.started.agent.problems
            )
        ),
    )


def _away(agent: record.Execution) -> str:
    """The sentence that an agent with an analysis could call none of its MCP servers; "" if it could, or has none."""
    servers = evidence.servers_away(agent) if agent.analysis else ()
    if not servers:
        return ""
    return f"{agent.started.name}: none of its MCP servers could be reached: {', '.join(servers)}"

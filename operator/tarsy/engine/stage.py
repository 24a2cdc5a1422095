"""One stage: its agents side by side, within its time, and what their ends make of it.

Each agent goes on by itself, and none is stopped because another one has ended. The stage ends with the last of them:
in that agent's own commit where the others had ended before, else in one of its own.

    successPolicy   its agents                      the stage
    any             one or more Completed           Completed; its message names those that did not
    all             all Completed                   Completed
    either          all TimedOut                    TimedOut
    either          anything else                   Failed
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tarsy.agent import loop
from tarsy.engine import execution, timer
from tarsy.resources import chain
from tarsy.telemetry import logs
from tarsy.transcript import entries, ports, record

log = logging.getLogger(__name__)

Following: TypeAlias = Callable[[record.Stage], Sequence[entries.Entry]]
"""What ends with a stage, given how it stands once it has ended."""


@dataclass(kw_only=True)
class Stage:
    """One stage of the investigation, as this process runs it."""

    spec: chain.Stage
    runtime: ports.Runtime
    journal: ports.Journal
    following: Following
    _start: entries.StageStarted = field(init=False)
    _start_is_due: bool = field(init=False)
    _executions: list[execution.Execution] = field(init=False)

    def __post_init__(self) -> None:
        so_far = self._so_far
        self._start_is_due = so_far is None
        started = so_far and so_far.started
        self._start = started or entries.StageStarted(stage=self.spec.name, clock=self.journal.clock())
        self._executions = [
            execution.Execution(
                stage=self.spec,
                index=index,
                runtime=self.runtime,
                journal=self.journal,
                opening=self._opening,
                following=self._following,
            )
            for index in range(len(self.spec.members))
        ]

    async def run(self) -> None:
        """Run it, or go on with it, until it has ended or the run is to stand still."""
        with logs.fields(stage=self.spec.name):
            log.info("stage %s", "started" if self._start_is_due else "goes on", extra={"action": "stage_started"})
            await self._run()
            if self._so_far and (ended := self._so_far.ended):
                seconds = self.journal.clock() - self._start.clock
                told = {"action": "stage_ended", "outcome": ended.outcome, "seconds": round(seconds, 3)}
                log.info("stage ended: %s after %.1f s", ended.outcome, seconds, extra=told)

    async def _run(self) -> None:
        in_time = await self._run_in_time()
        if not in_time:
            await self.journal.settle()  # an end whose commit was cut off counts
        if self._so_far and self._so_far.ended:  # with its last agent
            return
        if not in_time:
            await self._time_out()
        elif all(one.so_far and one.so_far.ended for one in self._executions):
            await self.journal.commit(*self._end({}))

    @property
    def _so_far(self) -> record.Stage | None:
        return self.journal.record.stages.get(self.spec.name)

    async def _run_in_time(self) -> bool:
        """Run the agents, each while it has time; False where that was over for one of them.

        What an agent waits for its provider's slots is added to its own time, and to none of its siblings'.
        """
        seconds = self.spec.timeout_seconds
        left = None if seconds is None else seconds - (self.journal.clock() - self._start.clock)
        if left is not None and left <= 0:  # a takeover after its time: not even a first call may be sent
            return False
        return all(await loop.side_by_side(timer.Timer(left).run(one.run) for one in self._executions))

    def _opening(self) -> Sequence[entries.Entry]:
        """The stage's start, for whichever of its agents begins first: the two are committed together."""
        due, self._start_is_due = self._start_is_due, False
        return (self._start,) if due else ()

    async def _time_out(self) -> None:
        """End what has not ended: the agents, those too that never began, and the stage."""
        error = f"Stage {self.spec.name} timed out after {self.spec.timeout_seconds} s"
        ended: dict[str, record.Execution] = {}
        added: list[entries.Entry] = [*self._opening()]
        for one in self._executions:
            so_far = one.so_far
            if so_far and so_far.ended:
                continue
            if so_far is None:
                so_far = record.Execution(started=one.start(agent=None))
                added.append(so_far.started)
            end = entries.ExecutionEnded(execution=one.id, outcome="TimedOut", error=error)
            added.append(end)
            ended[one.id] = replace(so_far, ended=end)
        await self.journal.commit(*added, *self._end(ended))

    def _following(self, ended: record.Execution) -> Sequence[entries.Entry]:
        """What ends with an execution: the stage, if it was the last one, and what ends with that."""
        return self._end({ended.started.execution: ended})

    def _end(self, ended: dict[str, record.Execution]) -> Sequence[entries.Entry]:
        """The ends that follow once `ended` have ended too."""
        executions = (self._so_far.executions if self._so_far else {}) | ended
        if len(executions) < len(self._executions) or not all(one.ended for one in executions.values()):
            return ()
        after = record.Stage(started=self._start, executions=executions)
        after.ended = end_of(after, policy=self.spec.success_policy or "any")
        return (after.ended, *self.following(after))


def end_of(stage: record.Stage, *, policy: chain.SuccessPolicy) -> entries.StageEnded:
    """How a stage ends whose executions have all ended: a pure function of their ends (the table above)."""
    assert stage.started  # noqa: S101 - one that never started was skipped
    executions = stage.agents
    outcomes = [one.ended.outcome for one in executions if one.ended]
    completed = outcomes.count("Completed")
    outcome: entries.StageOutcome
    if completed == len(outcomes) or (completed and policy == "any"):
        outcome = "Completed"
    else:
        outcome = "TimedOut" if outcomes.count("TimedOut") == len(outcomes) else "Failed"
    errors = [(one.started.name, one.ended.error) for one in executions if one.ended and one.ended.error]
    if len(executions) > 1 and outcome != "TimedOut":
        message = "; ".join(f"{name}: {error}" for name, error in errors)
    else:
        message = "; ".join(dict.fromkeys(error for _, error in errors))
    return entries.StageEnded(
        run=stage.started.run,
        stage=stage.started.stage,
        outcome=outcome,
        message=message,
        lacks=tuple(
            dict.fromkeys(problem for one in executions if one.started.agent for problem in one.started.agent.problems)
        ),
    )

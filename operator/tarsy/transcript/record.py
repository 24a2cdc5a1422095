"""Folded entries: where an investigation stands. A new one and one that is taken over differ in nothing else."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tarsy.resources import chain
from tarsy.transcript import entries, messages


class OutOfOrderError(Exception):
    """An entry that cannot follow what there is: a defect of ours, or a journal that was tampered with."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is investigated, and by which chain; fixed when the investigation was admitted."""

    id: str
    """The object's uid."""
    namespace: str
    name: str
    alert_type: str
    alert_data: str
    severity: str | None = None
    runbook_url: str | None = None
    chain_name: str
    chain: chain.Spec


@dataclass(kw_only=True)
class Execution:
    """One agent's work so far."""

    started: entries.ExecutionStarted
    log: messages.Log = field(default_factory=list)
    ended: entries.ExecutionEnded | None = None


@dataclass(kw_only=True)
class Stage:
    """One stage so far."""

    executions: dict[str, Execution] = field(default_factory=dict)
    ended: entries.StageEnded | None = None
    since: float = field(default_factory=time.monotonic, compare=False)
    """Monotonic seconds at which it started. A journal that is taken over sets it by its own clock, so that a stage's
    time does not begin anew with each worker."""

    def age(self) -> float:
        """Seconds since it started, whoever ran it then."""
        return time.monotonic() - self.since


@dataclass(kw_only=True)
class Record:
    """One investigation so far."""

    subject: Subject
    stages: dict[str, Stage] = field(default_factory=dict)
    ended: entries.InvestigationEnded | None = None

    def apply(self, entry: entries.Entry) -> None:
        """Add one fact; an OutOfOrderError says what it lacks."""
        self.check(entry)
        match entry:
            case entries.StageStarted():
                self.stages[entry.stage] = Stage()
            case entries.ExecutionStarted():
                execution = Execution(started=entry, log=list(entry.messages))
                self.stages[entry.stage].executions[entry.execution] = execution
            case entries.Answered():
                self.execution(entry.execution).log.extend(entry.messages)
            case entries.Unanswered():
                self.execution(entry.execution).log.extend((*entry.messages, entry.failure))
            case entries.ToolsAnswered():
                self.execution(entry.execution).log.extend(run.result for run in entry.runs)
            case entries.ExecutionEnded():
                self.execution(entry.execution).ended = entry
            case entries.StageEnded(outcome="Skipped"):
                self.stages[entry.stage] = Stage(ended=entry)
            case entries.StageEnded():
                self.stages[entry.stage].ended = entry
            case entries.InvestigationEnded():
                self.ended = entry

    def check(self, entry: entries.Entry) -> None:
        """Raise an OutOfOrderError if `entry` cannot follow what there is: before it is written, not after."""
        if self.ended:
            raise OutOfOrderError(f"{self.subject.id} has ended; {type(entry).__name__} came after")
        match entry:
            case entries.StageStarted() | entries.StageEnded(outcome="Skipped"):
                if entry.stage in self.stages:
                    raise OutOfOrderError(f"stage {entry.stage!r} has started already")
            case entries.ExecutionStarted():
                if entry.execution in self._open_stage(entry.stage).executions:
                    raise OutOfOrderError(f"execution {entry.execution!r} has started already")
            case entries.Answered() | entries.Unanswered() | entries.ToolsAnswered() | entries.ExecutionEnded():
                self._open_execution(entry.execution)
            case entries.StageEnded():
                self._open_stage(entry.stage)

    def execution(self, name: str) -> Execution:
        """The execution of that name; an OutOfOrderError when it has not started."""
        for stage in self.stages.values():
            if name in stage.executions:
                return stage.executions[name]
        raise OutOfOrderError(f"execution {name!r} has not started")

    def _open_stage(self, name: str) -> Stage:
        stage = self.stages.get(name)
        if stage is None or stage.ended:
            raise OutOfOrderError(f"stage {name!r} has {'ended' if stage else 'not started'}")
        return stage

    def _open_execution(self, name: str) -> None:
        if self.execution(name).ended:
            raise OutOfOrderError(f"execution {name!r} has ended")

"""The state of an investigation, which its log adds up to (`kinds`).

A new investigation and one that is taken over differ in nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tarsy.config import resolve
from tarsy.resources import chains, investigations
from tarsy.transcript import entries, messages, nesting, react

CHAIN_VERSION = 4
"""The version of a snapshot's stored chain (`chain.Spec`); rises with each change of its shape."""
CHAIN_DECODERS: dict[int, Callable[[Any], chains.Spec]] = dict.fromkeys((1, 2, 3, 4), chains.Spec.model_validate)
"""A decoder for each version that was ever stored; what it raises is a ValueError.

Each newer version has more fields and more strategies, none of them required, so what an older one wrote is one of it.
"""


def build() -> str:
    """Return the identity of all programs that can read the same: 16 hex digits."""
    return hashlib.sha256(repr((sorted(entries.DECODERS), sorted(CHAIN_DECODERS))).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The alert and the chain of an investigation, fixed at its admission."""

    id: str
    """The object's uid."""
    namespace: str
    name: str
    alert_type: str
    alert_data: str
    severity: str | None = None
    runbook_url: str | None = None
    chain_name: str
    chain: chains.Spec


@dataclass(frozen=True, kw_only=True)
class Reported:
    """The provider's count of a request."""

    provider: str
    tokens: int
    messages: int
    """How many of the conversation's the request had."""
    compacted: Mapping[str, int]
    """See `Execution.compacted`: as it was then."""


@dataclass(kw_only=True)
class Execution:
    """One agent's work so far."""

    started: entries.ExecutionStarted
    log: messages.Log = field(default_factory=list)
    ended: entries.ExecutionEnded | None = None
    fallen: list[str] = field(default_factory=list)
    """The fallbacks that it came to, in order: the last one is asked."""
    given_up: list[str] = field(default_factory=list)
    """Why each provider before was given up, in order."""
    since: int = 0
    """The first turn of the provider that is asked now."""
    retries: int = 0
    """Its repeated model requests."""
    compacted: Mapping[str, int] = field(default_factory=dict)
    """The calls whose results the model is not shown whole: how many characters of each, 0 for a line in its place."""
    reported: Reported | None = None
    """The last request of which a provider told how large it was."""
    cut: dict[str, int] = field(default_factory=dict)
    """The calls of whose results only a part was read: how many characters each had."""
    due: dict[str, entries.SummaryDue] = field(default_factory=dict)
    """The calls whose results are to be summed up before the model is asked again."""
    away: set[str] = field(default_factory=set)
    """The MCP servers that could not be reached when it began, or later for a call."""
    unreached: set[str] = field(default_factory=set)
    """The ids of the calls that reached no server because it was away."""

    @property
    def source(self) -> resolve.Fallback:
        """The provider that is asked now."""
        agent = self.started.agent
        assert agent  # noqa: S101 - one that has none has ended with its start
        if not self.fallen:
            return resolve.Fallback(provider=agent.provider, native=agent.native)
        return next(fallback for fallback in agent.fallbacks if fallback.provider == self.fallen[-1])

    @property
    def next_source(self) -> resolve.Fallback | None:
        """The provider that is asked where this one gives no answer; None where there is none left."""
        agent = self.started.agent
        left = agent.fallbacks[len(self.fallen) :] if agent else ()
        return left[0] if left else None

    @property
    def analysis(self) -> str:
        """The finding: its last answer; "" if it has not completed."""
        if self.ended is None or self.ended.outcome != "Completed":
            return ""
        answers = messages.answers(self.log)
        return self.conclusion(answers[-1].text) if answers else ""

    @property
    def is_react(self) -> bool:
        """Whether its answers are in the ReAct dialect."""
        return self.started.agent is not None and is_react(self.started.agent.strategy)

    def result(self, call_id: str) -> tuple[int, messages.Message]:
        """The result of a call that has one, and its place in the log."""
        return next(
            (index, logged)
            for index, logged in enumerate(self.log)
            if isinstance(logged, messages.Message) and logged.role == "tool" and logged.call_id == call_id
        )

    def conclusion(self, answer: str) -> str:
        """Return the conclusion of an answer, in either dialect."""
        return conclusion(answer, strategy=self.started.agent.strategy if self.started.agent else "")


@dataclass(kw_only=True)
class Stage:
    """One stage so far."""

    started: entries.StageStarted | None
    """None where it was skipped."""
    executions: dict[str, Execution] = field(default_factory=dict)
    ended: entries.StageEnded | None = None

    @property
    def agents(self) -> list[Execution]:
        """Its agents' executions by their place in the stage, whichever began first."""
        own_executions = (member for member in self.executions.values() if member.started.kind == "agent")
        return sorted(own_executions, key=lambda execution: execution.started.index)

    @property
    def synthesis(self) -> Execution | None:
        """The execution that joins its agents' results, if it has started."""
        return next(
            (execution for execution in self.executions.values() if execution.started.kind == "synthesis"), None
        )


@dataclass(kw_only=True)
class Run:
    """One run so far: the investigation, or what was asked about it later."""

    question: str = ""
    """The question, unless it is the investigation itself."""
    runbook: entries.RunbookRead | None = None
    """None where none was looked for: then what is built in is read."""
    stages: dict[str, Stage] = field(default_factory=dict)
    executions: dict[str, Execution] = field(default_factory=dict)
    """Those of no stage: its summary, or its answer."""
    ended: entries.RunEnded | None = None

    @property
    def retries(self) -> int:
        """The repeated model requests of all its executions."""
        scopes: tuple[Stage | Run, ...] = (self, *self.stages.values())
        return sum(execution.retries for scope in scopes for execution in scope.executions.values())


def _first_run() -> nesting.Nesting:
    levels = nesting.Nesting()
    levels.begin(nesting.run(entries.INVESTIGATION))
    return levels


@dataclass(kw_only=True)
class Record:
    """One investigation so far."""

    snapshot: Snapshot
    runs: dict[int, Run] = field(default_factory=lambda: {entries.INVESTIGATION: Run()})
    executions: dict[str, Execution] = field(default_factory=dict)
    """All of them, by their ids."""
    mcp: investigations.MCP | None = None
    """The alert's selection of tools."""
    order: nesting.Nesting = field(default_factory=_first_run, compare=False, repr=False)
    """The levels that have begun and ended: the order that entries have to keep."""

    @property
    def stages(self) -> dict[str, Stage]:
        """The stages of the investigation's own run that have started, or were skipped."""
        return self.runs[entries.INVESTIGATION].stages

    @property
    def ended(self) -> entries.RunEnded | None:
        """How the investigation's own run ended."""
        return self.runs[entries.INVESTIGATION].ended


def begun(entry: entries.ExecutionStarted) -> Execution:
    """An execution that has just begun."""
    return Execution(started=entry, log=list(entry.messages))


def is_react(strategy: str) -> bool:
    """Whether answers of this strategy are in the ReAct dialect (`agent.strategies`)."""
    return strategy in ("react", "react-stage")


def conclusion(answer: str, *, strategy: str) -> str:
    """Return the conclusion of an answer of this strategy; a forced one may have no label."""
    if not is_react(strategy):
        return answer
    reading = react.read(answer)
    return reading.answer or reading.thought or answer[: reading.used].strip()


def results(log: Iterable[messages.Message | messages.Failure]) -> list[messages.Message]:
    """Return the results of tools, without errors."""
    return [entry for entry in log if isinstance(entry, messages.Message) and entry.role == "tool" and not entry.failed]


def execution_id(investigation: str, *, run: int, stage: str, kind: entries.ExecutionKind, index: int) -> str:
    """Return an execution's id: 16 hex digits, the same after a takeover, and without a meaning to parse."""
    identity = "\n".join([investigation, str(run), kind, str(index), stage])
    return hashlib.sha256(identity.encode()).hexdigest()[:16]

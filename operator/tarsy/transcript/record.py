"""The state of an investigation: the fold of its log (`kinds.registry.fold`).

After a takeover the record is the only difference from a new investigation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tarsy.config import resolve
from tarsy.resources import chains, investigations, tool_patterns
from tarsy.transcript import entries, entry_versions, line_excerpts, messages, nesting, react, tool_names

CHAIN_VERSION = 10
"""The version of a snapshot's stored chain (`chain.Spec`); rises with each change of its shape."""
CHAIN_DECODERS: dict[int, Callable[[Any], chains.Spec]] = dict.fromkeys(range(1, 11), chains.Spec.model_validate)
"""The decoder of each stored version; its errors are ValueErrors.

Each newer version only adds optional fields and strategies, so a chain of an older version is valid in it.
"""


def build() -> str:
    """Return 16 hex digits that are the same for all programs that can read the same versions."""
    return hashlib.sha256(repr((sorted(entry_versions.DECODERS), sorted(CHAIN_DECODERS))).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Former:
    """The result of the investigation that another one follows, masked."""

    name: str
    ended_at: datetime
    summary: str
    """Its summary, else its analysis."""


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
    chain_namespace: str = ""
    """"" is the investigation's."""
    chain: chains.Spec
    admitted_at: datetime | None = field(default=None, compare=False)
    """The time of the admission; None in tests without one."""
    traceparent: str = ""
    """The span that the alert names (`telemetry.spans.link_from_traceparent`); "" if it names none."""
    depth: int = 0
    """The number of investigations in a row that led to this one."""
    former: Former | None = field(default=None, compare=False)
    """The result of the investigation that it follows; None without one that can be read."""
    retry_of: str = ""
    """The uid of the ended investigation that this one runs again; "" if it is no retry."""
    copied_entries: int = 0
    """The entries up to this number are copies from that one."""


@dataclass(frozen=True, kw_only=True)
class Reported:
    """A provider's count of the tokens of a request."""

    provider: str
    tokens: int
    messages: int
    """The number of messages of the conversation in the request."""
    compacted: Mapping[str, int]
    """`Execution.compacted` at that time."""


@dataclass(kw_only=True)
class Execution:
    """The state of an execution."""

    started: entries.ExecutionStarted
    log: messages.Log = field(default_factory=list)
    ended: entries.ExecutionEnded | None = None
    fallen: list[str] = field(default_factory=list)
    """The fallback providers that were taken, in order; the last one is the present provider."""
    given_up: list[str] = field(default_factory=list)
    """The failures of the earlier providers, in order."""
    since: int = 0
    """The first call number of the present provider."""
    retries: int = 0
    """The number of repeated model requests."""
    compacted: Mapping[str, int] = field(default_factory=dict)
    """The calls whose results are shortened in requests: the length of each in characters, 0 for a line instead."""
    reported: Reported | None = None
    """The last count of a request by its provider."""
    cut: dict[str, int] = field(default_factory=dict)
    """The calls whose results are stored in part in the log: the whole length of each in characters."""
    excerpts: dict[str, line_excerpts.Excerpt] = field(default_factory=dict)
    """The calls whose results are excerpts, with the places of their texts in the whole."""
    summarised: dict[str, str] = field(default_factory=dict)
    """The calls whose results are replaced by summaries: the former text of each."""
    due: dict[str, entries.SummaryDue] = field(default_factory=dict)
    """The calls whose results get summaries before the model is asked again."""
    told: entries.AlertJoined | None = None
    """The last alerts that it was told of; None if there were none."""
    away: set[str] = field(default_factory=set)
    """The MCP servers that could not be reached at its start, or for a call."""
    unreached: set[str] = field(default_factory=set)
    """The ids of the calls that reached no server because it was away."""

    @property
    def source(self) -> resolve.Fallback:
        """The present provider."""
        agent = self.started.agent
        assert agent  # noqa: S101 - an execution without an agent ends when it starts
        if not self.fallen:
            return resolve.Fallback(provider=agent.provider, native=agent.native)
        return next(fallback for fallback in agent.fallbacks if fallback.provider == self.fallen[-1])

    @property
    def next_source(self) -> resolve.Fallback | None:
        """The next fallback provider; None if there is none left."""
        agent = self.started.agent
        left = agent.fallbacks[len(self.fallen) :] if agent else ()
        return left[0] if left else None

    @property
    def analysis(self) -> str:
        """The conclusion of its last answer; "" if it has not completed."""
        if self.ended is None or self.ended.outcome != "Completed":
            return ""
        answers = messages.answers(self.log)
        return self.conclusion(answers[-1].text) if answers else ""

    @property
    def is_react(self) -> bool:
        """Whether its answers are in the ReAct dialect."""
        return self.started.agent is not None and is_react(self.started.agent.strategy)

    @property
    def has_unread(self) -> bool:
        """Whether a result has more than its next request shows."""
        return bool(self.cut or self.excerpts or self.summarised or self.compacted)

    @property
    def tools(self) -> tuple[messages.ToolSpec, ...]:
        """Its tools now: those of its start, and those that look into results once there is something unread."""
        return self.started.tools + (self.started.result_tools if self.has_unread else ())

    @property
    def looks_into_results(self) -> bool:
        """Whether it has the tools that look into results, now or once there is something unread."""
        return any(
            tool_names.split(tool.name)[0] == tool_patterns.RESULT_SERVER
            for tool in (*self.started.result_tools, *self.started.tools)
        )

    def result(self, call_id: str) -> tuple[int, messages.Message]:
        """Return the index in the log, and the message, of the result of a call."""
        return next(
            (index, logged)
            for index, logged in enumerate(self.log)
            if isinstance(logged, messages.Message) and logged.role == "tool" and logged.call_id == call_id
        )

    def text_of_result(self, call_id: str) -> str:
        """Return the text of the result of a call as it was committed, also if a summary has replaced it."""
        return self.summarised.get(call_id) or self.result(call_id)[1].text

    def whole_length(self, call_id: str) -> int | None:
        """Return the length of the whole result of a call of which the log has a part; None if it has all of it."""
        excerpt = self.excerpts.get(call_id)
        return self.cut.get(call_id, excerpt.length if excerpt else None)

    def conclusion(self, answer: str) -> str:
        """Return the conclusion of an answer, in either dialect."""
        return conclusion(answer, strategy=self.started.agent.strategy if self.started.agent else "")


@dataclass(kw_only=True)
class Stage:
    """The state of a stage."""

    started: entries.StageStarted | None
    """None if it was skipped."""
    executions: dict[str, Execution] = field(default_factory=dict)
    ended: entries.StageEnded | None = None

    @property
    def agents(self) -> list[Execution]:
        """The executions of its agents, by their index in the stage."""
        agents = (execution for execution in self.executions.values() if execution.started.kind == "agent")
        return sorted(agents, key=lambda execution: execution.started.index)

    @property
    def synthesis(self) -> Execution | None:
        """The execution that joins its agents' results, if it has started."""
        return next(
            (execution for execution in self.executions.values() if execution.started.kind == "synthesis"), None
        )


@dataclass(kw_only=True)
class Run:
    """The state of a run: the investigation, or a later question about it."""

    question: str = ""
    """The question; "" for the investigation itself."""
    runbook: entries.RunbookRead | None = None
    """None if none was fetched: agents read the built-in one."""
    rechecked: entries.Rechecked | None = None
    """None if no calls of an earlier investigation were made again."""
    stages: dict[str, Stage] = field(default_factory=dict)
    executions: dict[str, Execution] = field(default_factory=dict)
    """The executions that belong to no stage: the summary, or the answer."""
    ended: entries.RunEnded | None = None

    @property
    def retries(self) -> int:
        """The repeated model requests of all its executions."""
        scopes: tuple[Stage | Run, ...] = (self, *self.stages.values())
        return sum(execution.retries for scope in scopes for execution in scope.executions.values())


_FIRST_RUN = nesting.run(entries.INVESTIGATION)


@dataclass(kw_only=True)
class Record:
    """The state of an investigation."""

    snapshot: Snapshot
    runs: dict[int, Run] = field(default_factory=lambda: {entries.INVESTIGATION: Run()})
    executions: dict[str, Execution] = field(default_factory=dict)
    """All of them, by their ids."""
    mcp: investigations.MCP | None = None
    """The alert's selection of tools."""
    order: nesting.Nesting = field(
        default_factory=lambda: nesting.Nesting(begun={_FIRST_RUN}, open={_FIRST_RUN: 0}), compare=False, repr=False
    )
    """The levels that have begun and ended: the order that entries have to keep."""

    @property
    def stages(self) -> dict[str, Stage]:
        """The stages of the investigation's own run that have started, or were skipped."""
        return self.runs[entries.INVESTIGATION].stages

    @property
    def ended(self) -> entries.RunEnded | None:
        """The end of the investigation's own run."""
        return self.runs[entries.INVESTIGATION].ended

    def forget_retries(self) -> None:
        """Count no repeated model request so far: those of copied executions were another investigation's."""
        for execution in self.executions.values():
            execution.retries = 0


def begun(entry: entries.ExecutionStarted) -> Execution:
    """Return an execution that has just started."""
    return Execution(started=entry, log=list(entry.messages))


def is_react(strategy: str) -> bool:
    """Return whether answers of this strategy are in the ReAct dialect (`agent.strategies`)."""
    return strategy in ("react", "react-stage")


def conclusion(answer: str, *, strategy: str) -> str:
    """Return the conclusion of an answer of this strategy; a forced conclusion may have no label."""
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

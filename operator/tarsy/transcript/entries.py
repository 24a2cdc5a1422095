"""The facts of an investigation, in the only order in which they can happen.

Each is committed whole, in one transaction, and never changed. A worker that takes over folds them (`record`) and goes
on where they end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tarsy.config import resolve
from tarsy.transcript import messages

Outcome = Literal["Completed", "Failed", "TimedOut"]
"""How an execution ends, or a stage that has started."""

StageOutcome = Literal[Outcome, "Skipped"]
"""How a stage ends. A skipped one never starts: the chain was stopped before it."""

Ending = Literal["Completed", "CompletedWithErrors", "Failed", "Cancelled", "TimedOut"]
"""How an investigation ends."""


@dataclass(frozen=True, kw_only=True)
class StageStarted:
    """The chain came to this stage."""

    stage: str


@dataclass(frozen=True, kw_only=True)
class ExecutionStarted:
    """An agent began to work; all that it runs with is fixed here."""

    stage: str
    execution: str
    """`<stage>/<number>`, unique in the investigation."""
    agent: resolve.ResolvedAgent
    tools: tuple[messages.ToolSpec, ...]
    messages: tuple[messages.Message, ...]
    """What the conversation begins with: the system prompt and the task."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One request to a provider that failed and may be repeated."""

    error: str
    usage: messages.Usage = field(default_factory=messages.Usage)
    """What the provider had counted until then; no part of the call's own, which is the last request's."""


@dataclass(frozen=True, kw_only=True)
class ModelCall:
    """One model call as it is accounted for."""

    provider: str
    model: str
    seconds: float
    usage: messages.Usage = field(default_factory=messages.Usage)
    attempts: tuple[Attempt, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Answered:
    """A model call brought an answer."""

    execution: str
    messages: tuple[messages.Message, ...]
    """The answer; before it, what was added to the conversation for this call, if anything."""
    call: ModelCall


@dataclass(frozen=True, kw_only=True)
class Unanswered:
    """A model call brought none."""

    execution: str
    failure: messages.Failure
    call: ModelCall
    messages: tuple[messages.Message, ...] = ()
    """What was added to the conversation for this call, if anything. It was sent, so it stays, and the next call does
    not add it again."""


@dataclass(frozen=True, kw_only=True)
class ToolRun:
    """One tool call with its result."""

    call: messages.ToolCall
    result: messages.Message
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ToolsAnswered:
    """Results of tool calls; those of read-only tools together, a writing tool's alone."""

    execution: str
    runs: tuple[ToolRun, ...]


@dataclass(frozen=True, kw_only=True)
class ExecutionEnded:
    """An agent is done: `text` is its analysis, or why there is none."""

    execution: str
    outcome: Outcome
    text: str


@dataclass(frozen=True, kw_only=True)
class StageEnded:
    """A stage is done; `message` says why it failed or was skipped, and what it lacked."""

    stage: str
    outcome: StageOutcome
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class InvestigationEnded:
    """Nothing follows."""

    ending: Ending
    reason: str
    """CamelCase, for conditions."""
    message: str = ""
    final_analysis: str = ""


Entry: TypeAlias = (
    StageStarted
    | ExecutionStarted
    | Answered
    | Unanswered
    | ToolsAnswered
    | ExecutionEnded
    | StageEnded
    | InvestigationEnded
)

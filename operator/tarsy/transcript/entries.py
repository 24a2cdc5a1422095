"""The entries of an investigation's log: what is recorded of a run. `entry_versions` stores and reads them.

Entries of one moment are committed together, and none is ever changed. A takeover folds them into a record (`record`)
and goes on from there; the timeline (`timeline`) is another fold of the same entries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Literal, TypeAlias

import pydantic
from pydantic.json_schema import SkipJsonSchema

from tarsy.config import resolve
from tarsy.resources import investigations
from tarsy.transcript import line_excerpts, messages

Outcome = Literal["Completed", "Failed", "TimedOut", "Cancelled"]
"""The outcome of an execution, or of a stage that started."""

StageOutcome = Literal[Outcome, "CompletedWithErrors", "Skipped"]
"""The outcome of a stage (`engine.outcomes`). A skipped stage never starts."""

Ending = Literal["Completed", "CompletedWithErrors", "Failed", "Cancelled", "TimedOut"]
"""The outcome of a run."""

ExecutionKind = Literal["agent", "synthesis", "summary", "chat", "recheck"]
"""The work of an execution.

`agent`: a part of a stage. `synthesis`: joins the results of a stage's agents. `summary`: the investigation in a few
lines. `chat`: the answer to a question. `recheck`: the calls of an earlier investigation, made again without a model.
The last three belong to no stage.
"""

Grounds = Literal["Inspected", "InspectedWithGaps", "NothingInspected", "ServersAway", "UnknownReferences"]
"""The basis of a result: whether the agents inspected anything, and whether its references are real.

ServersAway: nothing was inspected, and an agent could call none of its MCP servers because they were away."""

INVESTIGATION = 0
"""The number of the run that is the investigation itself; it starts with the admission."""


@dataclass(frozen=True, kw_only=True)
class RunStarted:
    """A later run began: a question about the investigation, queued like the first run."""

    run: int
    question: str
    """Masked."""


RunbookOrigin = Literal["url", "default", "builtin"]
"""The source of a runbook: its URL, the platform file, or TARSy itself."""


@dataclass(frozen=True, kw_only=True)
class RunbookRead:
    """The runbook was read, before the first stage and for the whole run."""

    run: int = INVESTIGATION
    url: str = ""
    """The URL that the alert names; "" if none."""
    origin: RunbookOrigin
    text: str
    """The whole text, masked."""
    problem: str = ""
    """Why the runbook at `url` could not be read; masked."""


@dataclass(frozen=True, kw_only=True)
class Rechecked:
    """The calls of an earlier investigation of the same alert were made again, before the first stage, or why not."""

    run: int = INVESTIGATION
    former: str
    """The uid of the earlier investigation."""
    name: str
    """Its name."""
    ended: str
    """The time of its end, for people: `2026-11-25 07:22 UTC`."""
    calls: tuple[str, ...]
    """The calls, in words; () if they were not made."""
    differences: tuple[str, ...] = ()
    """The first differences, a line each; masked, as the results are. () if all results are alike."""
    more: int = 0
    """The number of further differences."""
    problem: str = ""
    """Why the results were not compared; "" if they were."""


@dataclass(frozen=True, kw_only=True)
class ToolsSelected:
    """The tool selection of the alert, committed with the admission."""

    run: int = INVESTIGATION
    mcp: investigations.MCP


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Something that could not be inspected."""

    tool: str
    """`server.tool`, a server, or a reference as an answer writes it."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class StageStarted:
    """A stage started."""

    run: int = INVESTIGATION
    stage: str
    clock: float
    """The seconds for which its run had been running, without suspensions.

    The stage's time counts from here, across takeovers.
    """


@dataclass(frozen=True, kw_only=True)
class ExecutionStarted:
    """An execution started; its settings, tools and prompt are fixed here."""

    run: int = INVESTIGATION
    stage: str
    """"" if it belongs to no stage."""
    execution: str
    """The opaque id (`record.execution_id`), the same after a takeover."""
    kind: ExecutionKind = "agent"
    index: int
    """The ordinal in the stage, from 0."""
    parent: str = ""
    """The id of the execution that it works for; "" if none."""
    name: str
    """The name among its siblings, such as KubernetesAgent-2."""
    agent: resolve.ResolvedAgent | None
    """None if it could only end: its settings were not found, or the stage's time was over."""
    tools: tuple[messages.ToolSpec, ...] = ()
    result_tools: tuple[messages.ToolSpec, ...] = ()
    """The tools that it gets, too, once a result of its own has more than its model has read (`agent.result_tools`)."""
    messages: tuple[messages.Message, ...] = field(default_factory=tuple)  # no attribute that hides the module
    """The first messages of the conversation: the system prompt and the task."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One request to a provider that failed and may be repeated."""

    error: str
    usage: messages.Usage = field(default_factory=messages.Usage)
    """The provider's count for this request; that of the last request is the call's."""
    provider: str = ""
    """"" in older entries: then it is the call's."""
    code: str = ""
    """The provider's name for the error: an HTTP status, or a word; "" if it has none."""


@dataclass(frozen=True, kw_only=True)
class Settlement:
    """The count of a request that was reserved in budgets."""

    request: str
    """The id of its reservation."""
    tokens: int
    """The tokens that the provider has counted."""
    cost: Decimal | None
    """Their cost; None without a price."""
    is_whole: bool
    """Whether that is all: the answer ended, and the provider counts. Otherwise the request may have cost more."""


@dataclass(frozen=True, kw_only=True)
class ModelCall:
    """The account of one model call."""

    provider: str
    model: str
    seconds: float
    usage: messages.Usage = field(default_factory=messages.Usage)
    attempts: tuple[Attempt, ...] = ()
    retries: int = 0
    """The number of its repeated requests."""
    cost: float | None = None
    """The cost by the provider's price, attempts included; None if it has no price."""
    response_model: str = ""
    """The model that answered, by the provider's name, which may be a version of `model`; "" if it named none."""
    response_id: str = ""
    """The provider's id of the response; "" if it named none."""
    settled: Annotated[tuple[Settlement, ...], SkipJsonSchema()] = field(default=(), compare=False, repr=False)
    """Its requests in budgets, on their way to the journal; () in an entry from the log."""


@dataclass(frozen=True, kw_only=True)
class ServersAway:
    """MCP servers of an execution could not be reached, at its start or for some of its calls."""

    execution: str
    servers: tuple[str, ...]
    calls: tuple[str, ...] = ()
    """The ids of the calls that reached no server because of it; () at the start."""


@dataclass(frozen=True, kw_only=True)
class AlertJoined:
    """Alerts joined the investigation; from here on the execution's requests tell of them."""

    execution: str
    number: int
    """The number of the last of them (`ports.JoinedAlerts`)."""
    alerts: int
    """How many they are."""
    clock: float
    """The seconds for which its run had been running, without suspensions."""
    messages: Annotated[tuple[messages.Message, ...], pydantic.Field(min_length=1)]
    """The message that tells of them."""


@dataclass(frozen=True, kw_only=True)
class ModelRetried:
    """A request to a provider failed and is sent again. The account of the call comes with its end."""

    execution: str
    turn: int
    """The call number, from 0."""
    provider: str
    model: str
    attempt: int
    """The number of the failed request within its call, from 1."""
    error: str
    code: str = ""
    """The provider's code of the error: an HTTP status, or a word; "" if there is none."""
    seconds: float
    """The wait until it is sent again, counted from the time of this entry."""


@dataclass(frozen=True, kw_only=True)
class Answered:
    """A model call gave an answer."""

    execution: str
    turn: int
    """The call number, from 0."""
    messages: Annotated[tuple[messages.Message, ...], pydantic.Field(min_length=1)]
    """The messages that were added for this call, and the answer."""
    call: ModelCall


@dataclass(frozen=True, kw_only=True)
class Unanswered:
    """A model call gave no answer."""

    execution: str
    turn: int
    """The call number, from 0."""
    failure: messages.Failure
    call: ModelCall
    messages: tuple[messages.Message, ...] = field(default_factory=tuple)  # no attribute that hides the module
    """The messages that were added for this call: they stay, and the next call does not add them again."""


@dataclass(frozen=True, kw_only=True)
class FellBack:
    """A provider gave no answer; from here on the execution asks its next fallback."""

    execution: str
    turn: int
    """The number of the call that the next provider gets."""
    provider: str
    """The next provider."""
    failure: messages.Failure
    """The failure of the former provider."""
    call: ModelCall
    """The account of the call there."""


@dataclass(frozen=True, kw_only=True)
class ContextCompacted:
    """From here on requests have some tool results as a line each, or cut; the log keeps them."""

    execution: str
    turn: int
    """The number of the call that needed it."""
    results: tuple[str, ...] = ()
    """The ids of the calls whose results are replaced by a line."""
    cut: tuple[str, ...] = ()
    """The ids of the last answer's calls whose results are cut, because they alone were too large."""
    shown: int = 0
    """The length of each cut result, in characters."""
    tokens: int
    """The estimated tokens of the request before it."""
    limit: int
    """The limit of a request to this provider, in tokens; 0 if unknown."""
    failure: messages.Failure | None = None
    """The provider's refusal of the request as too large; None if it was not sent."""
    call: ModelCall | None = None
    """The account of the refused call."""


@dataclass(frozen=True, kw_only=True)
class SummaryDue:
    """A long result gets a summary before the model of its execution reads it."""

    provider: str
    """The provider of the summary."""
    tokens: int
    """The limit of the summary, in tokens."""
    reads: int
    """The limit of the result in the request for the summary, in characters."""


@dataclass(frozen=True, kw_only=True)
class ToolRun:
    """One tool call with its result."""

    call: messages.ToolCall
    result: messages.Message
    """The result, an excerpt of it, or the result cut to the limit of the provider at that time."""
    seconds: float
    length: int | None = None
    """The length of the whole result, if `result` has less. `Journal.whole` has the whole."""
    excerpt: line_excerpts.Excerpt | None = None
    """The places of the text of `result` in the whole; None if `result` is no excerpt."""
    whole: str | None = field(default=None, compare=False, repr=False)
    """The whole result on its way to the journal; None in an entry from the log."""
    summary: SummaryDue | None = None
    """The summary that it gets; None if the model reads it as it is."""


@dataclass(frozen=True, kw_only=True)
class ToolsAnswered:
    """Results of tool calls: those of read-only tools together, that of a writing tool alone."""

    execution: str
    runs: tuple[ToolRun, ...]


@dataclass(frozen=True, kw_only=True)
class ToolSummarised:
    """A model summarised a long result, and the summary replaces it; or it failed, and the result stays."""

    execution: str
    turn: int
    """The number of the call that reads it."""
    call_id: str
    """The id of the tool call."""
    tool: str
    """`server.tool`."""
    word: str
    """The word in the markers of its request."""
    text: str = ""
    """The summary; "" if there is no usable one."""
    failure: messages.Failure | None = None
    """Why there is none."""
    call: ModelCall
    """The account of the call for the summary."""


@dataclass(frozen=True, kw_only=True)
class ExecutionEnded:
    """An execution ended. If it completed, its last answer is its analysis."""

    execution: str
    outcome: Outcome
    error: str = ""
    """Why there is no analysis."""
    ungrounded: bool = False
    """It has an analysis without a result of a tool, although it had tools."""


@dataclass(frozen=True, kw_only=True)
class StageEnded:
    """A stage ended."""

    run: int = INVESTIGATION
    stage: str
    outcome: StageOutcome
    message: str = ""
    """The errors of the stage, or the reason why it was skipped."""
    lacks: tuple[str, ...] = ()
    """The problems of its agents' tools, such as servers that could not be reached, a sentence each."""


@dataclass(frozen=True, kw_only=True)
class RunEnded:
    """A run ended: no entry of it follows."""

    run: int = INVESTIGATION
    ending: Ending
    reason: str
    """CamelCase, for conditions."""
    message: str = ""
    final_analysis: str = ""
    """The result. It is stored once, in a column of its run, which lists read."""
    summary: str = ""
    """The result in a few lines."""
    gaps: tuple[Gap, ...] = ()
    """The first ten gaps of its agents."""
    grounds: Grounds | None = None
    """None if there is no analysis."""
    former: str = ""
    """The uid of the earlier investigation whose result this is; "" if it is its own."""
    masking: str = ""
    """The digest of the masking of all results and alerts from its last claim on; "" if it changed, or is not known."""


OfRun: TypeAlias = RunStarted | ToolsSelected | RunbookRead | Rechecked | RunEnded
"""The entries about a run."""
OfStage: TypeAlias = StageStarted | StageEnded
"""The entries about a stage."""
OfExecution: TypeAlias = (
    ServersAway
    | AlertJoined
    | ModelRetried
    | Answered
    | Unanswered
    | FellBack
    | ContextCompacted
    | ToolsAnswered
    | ToolSummarised
    | ExecutionEnded
)
"""The entries that may follow the start of an execution."""
Entry: TypeAlias = OfRun | OfStage | ExecutionStarted | OfExecution


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """An entry that this program cannot read."""

    kind: str
    version: int
    problem: str


@dataclass(frozen=True, kw_only=True)
class Logged:
    """An entry in its place in the log."""

    seq: int
    at: datetime
    claim: int
    """The number of the claim that wrote it: a higher one than before is a takeover."""
    run: int
    stage: str
    execution: str
    entry: Entry | Unreadable
    results_deleted_at: datetime | None = None
    """The time when the full texts of its tool results were deleted (`full_results`); None if they are stored."""

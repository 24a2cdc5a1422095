"""The entries of an investigation's log, and how each is stored.

Entries of one moment are committed together, and none is ever changed. A takeover folds them into a record (`record`)
and goes on from there; the timeline (`timeline`) is another fold of the same entries.

Every stored shape has a version, which covers all that is nested in it. Every released version keeps its decoder; a
changed shape gets a new version (a test compares the shapes with recorded ones). An entry that this program cannot read
is an `Unreadable`, not an exception: the run is left to a program that can read it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias, get_args

import pydantic
from pydantic import ConfigDict, TypeAdapter

from tarsy.config import resolve
from tarsy.resources import investigations
from tarsy.transcript import line_excerpts, messages

Outcome = Literal["Completed", "Failed", "TimedOut", "Cancelled"]
"""The outcome of an execution, or of a stage that started."""

StageOutcome = Literal[Outcome, "CompletedWithErrors", "Skipped"]
"""The outcome of a stage (`engine.outcomes`). A skipped stage never starts."""

Ending = Literal["Completed", "CompletedWithErrors", "Failed", "Cancelled", "TimedOut"]
"""The outcome of a run."""

ExecutionKind = Literal["agent", "synthesis", "summary", "chat"]
"""The work of an execution.

`agent`: a part of a stage. `synthesis`: joins the results of a stage's agents. `summary`: the investigation in a few
lines. `chat`: the answer to a question. The last two belong to no stage.
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


@dataclass(frozen=True, kw_only=True)
class ServersAway:
    """MCP servers of an execution could not be reached, at its start or for some of its calls."""

    execution: str
    servers: tuple[str, ...]
    calls: tuple[str, ...] = ()
    """The ids of the calls that reached no server because of it; () at the start."""


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


OfRun: TypeAlias = RunStarted | ToolsSelected | RunbookRead | RunEnded
"""The entries about a run."""
OfStage: TypeAlias = StageStarted | StageEnded
"""The entries about a stage."""
OfExecution: TypeAlias = (
    ServersAway
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
class Stored:
    """An entry as it is stored; its run, stage and execution are separate columns."""

    kind: str
    version: int
    body: str
    """JSON of storable text (`messages.storable`), which Postgres can query."""
    opaque: str | None = None
    """JSON with escapes that Postgres may refuse: providers' state, tools' schemas."""
    final_analysis: str = ""


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


_COLUMNS = ("run", "stage", "execution", "final_analysis")
"""The fields that are stored in columns, not in the body."""
_KINDS: dict[str, type[Any]] = {shape.__name__: shape for shape in get_args(Entry)}
VERSIONS: dict[str, int] = {
    **dict.fromkeys(_KINDS, 1),
    "ExecutionStarted": 5,  # kinds besides agent; strategies; fallbacks, native tools; filters, budget; result tools
    "Answered": 2,  # native tools' results, codes and providers of attempts, cost
    "Unanswered": 2,  # the same
    "ToolsAnswered": 4,  # the same, of messages; the length of a whole result, and its summary; excerpts
    "ExecutionEnded": 2,  # ungrounded
    "StageEnded": 2,  # CompletedWithErrors
    "RunEnded": 3,  # summary, gaps, grounds; ServersAway among the grounds
}
"""The version in which each kind is written."""

_adapters: dict[str, TypeAdapter[Any]] = {
    kind: TypeAdapter(pydantic.with_config(ConfigDict(extra="forbid"))(shape)) for kind, shape in _KINDS.items()
}


def encode(entry: Entry) -> Stored:
    """Return an entry as it is stored, in the newest version; raises ValueError if JSON cannot hold it."""
    kind = type(entry).__name__
    fields = _adapters[kind].dump_python(entry)
    final_analysis = fields.get("final_analysis", "")
    for column in _COLUMNS:
        fields.pop(column, None)
    opaque = _without_opaque(fields)
    return Stored(
        kind=kind,
        version=VERSIONS[kind],
        body=json.dumps(fields, ensure_ascii=False, allow_nan=False),
        opaque=None if opaque is None else json.dumps(opaque, allow_nan=False),
        final_analysis=final_analysis,
    )


def decode(stored: Stored, *, run: int, stage: str, execution: str) -> Entry | Unreadable:
    """Return a stored entry of any version; an `Unreadable` if it cannot be read."""
    decoder = DECODERS.get((stored.kind, stored.version))
    if decoder is None:
        newest = VERSIONS.get(stored.kind)
        why = "its kind is unknown here" if newest is None else f"version {newest} is the newest that is known here"
        return Unreadable(kind=stored.kind, version=stored.version, problem=why)
    columns = {"run": run, "stage": stage, "execution": execution, "final_analysis": stored.final_analysis}
    try:
        body = json.loads(stored.body)
        opaque = None if stored.opaque is None else json.loads(stored.opaque)
        return decoder(body, opaque, columns)
    except pydantic.ValidationError as error:
        first = error.errors(include_input=False)[0]
        problem = f"{'.'.join(map(str, first['loc'])) or 'the whole'}: {first['msg']}"
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        problem = f"{type(error).__name__}: {error}"
    problem = messages.storable(f"it does not have its shape: {problem}")
    return Unreadable(kind=stored.kind, version=stored.version, problem=problem)


Decoder = Callable[[Any, Any, Mapping[str, Any]], Entry]
"""From body, opaque part and columns to the entry."""


def _newest(kind: str) -> Decoder:
    """Return the decoder of the newest version of `kind`."""
    shape, adapter = _KINDS[kind], _adapters[kind]
    own = tuple(column for column in _COLUMNS if column in shape.__dataclass_fields__)

    def decoder(body: Any, opaque: Any, columns: Mapping[str, Any]) -> Entry:
        _with_opaque(body, opaque)
        entry: Entry = adapter.validate_python({**body, **{column: columns[column] for column in own}}, strict=False)
        return entry

    return decoder


_CUT = re.compile(r"\n\[cut: \d+ of (\d+) characters are shown; ask for less\]\Z")
"""The last line of a cut result before `ToolRun.length` was added; the rest was not stored."""


def _tools_answered_before(body: Any, opaque: Any, columns: Mapping[str, Any]) -> Entry:
    """Decode versions 1 and 2."""
    entry = _newest("ToolsAnswered")(body, opaque, columns)
    assert isinstance(entry, ToolsAnswered)  # noqa: S101 - no other is of that kind
    cuts = (_CUT.search(run.result.text, max(0, len(run.result.text) - 100)) for run in entry.runs)
    runs = (replace(run, length=int(cut[1])) if cut else run for run, cut in zip(entry.runs, cuts, strict=True))
    return replace(entry, runs=tuple(runs))


DECODERS: dict[tuple[str, int], Decoder] = {
    (kind, version): _newest(kind) for kind, newest in VERSIONS.items() for version in range(1, newest + 1)
} | {("ToolsAnswered", version): _tools_answered_before for version in (1, 2)}
"""The decoder of each version. A newer version usually only adds fields, so its decoder reads older ones."""


def _without_opaque(fields: dict[str, Any]) -> dict[str, Any] | None:
    """Remove from `fields` what Postgres may refuse, and return it."""
    opaque: dict[str, Any] = {}
    states = [message.pop("provider_state") for message in fields.get("messages", ())]
    if any(state is not None for state in states):
        opaque["provider_states"] = states
    for run in fields.get("runs", ()):
        run["result"].pop("provider_state")  # a tool's result has none
        run.pop("whole")  # it has its own table
    if fields.get("tools"):
        opaque["parameters"] = [tool.pop("parameters") for tool in fields["tools"]]
    return opaque or None


def _with_opaque(body: dict[str, Any], opaque: Mapping[str, Any] | None) -> None:
    """Undo `_without_opaque`."""
    if opaque is None:
        return
    if "provider_states" in opaque:
        for message, state in zip(body["messages"], opaque["provider_states"], strict=True):
            message["provider_state"] = state
    if "parameters" in opaque:
        for tool, parameters in zip(body["tools"], opaque["parameters"], strict=True):
            tool["parameters"] = parameters

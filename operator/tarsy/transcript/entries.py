"""The facts of an investigation, in the only order in which they can happen; and how each is stored.

Facts that become true together are committed together, and none is ever changed. A worker that takes over folds them
(`record`) and goes on where they end; the timeline (`timeline`) is another fold of the same facts.

Every shape that is stored has a version, which covers all that is nested in it. A version that was ever released keeps
its decoder, and a change of a shape takes a new one (a test compares them with what is recorded). What this program
cannot read is an `Unreadable`, never an exception halfway: the run is left to a program that can.
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
from tarsy.transcript import messages

Outcome = Literal["Completed", "Failed", "TimedOut", "Cancelled"]
"""How an execution ends, or a stage that has started."""

StageOutcome = Literal[Outcome, "CompletedWithErrors", "Skipped"]
"""How a stage ends. With errors: its agents did their work, and what was to join their results failed. A skipped one
never starts: the chain was stopped before it."""

Ending = Literal["Completed", "CompletedWithErrors", "Failed", "Cancelled", "TimedOut"]
"""How a run ends."""

ExecutionKind = Literal["agent", "synthesis", "summary", "chat"]
"""The work of an execution.

`agent` in a stage, `synthesis` of a stage's results, `summary` of the investigation in a few lines, or `chat`, the
answer to a question. The last two belong to no stage.
"""

Grounds = Literal["Inspected", "InspectedWithGaps", "NothingInspected", "ServersAway", "UnknownReferences"]
"""The grounds of a run's result: whether its agents looked, and whether it names only calls that there were.

ServersAway: nothing was inspected, and an agent could call none of its MCP servers because they were away."""

INVESTIGATION = 0
"""The run that is the investigation itself; it is there from its admission on."""


@dataclass(frozen=True, kw_only=True)
class RunStarted:
    """Something was asked about the investigation: a later run of it, queued like the first one."""

    run: int
    question: str
    """Masked."""


RunbookOrigin = Literal["url", "default", "builtin"]
"""Where the text of a runbook comes from: its address, the platform file, or TARSy itself."""


@dataclass(frozen=True, kw_only=True)
class RunbookRead:
    """The runbook that agents go by is known, from before the first stage on and for good."""

    run: int = INVESTIGATION
    url: str = ""
    """Where it was looked for; "" where the alert names no place."""
    origin: RunbookOrigin
    text: str
    """Masked, and whole."""
    problem: str = ""
    """Why it is not what `url` has; masked."""


@dataclass(frozen=True, kw_only=True)
class ToolsSelected:
    """The alert says what of its chain's tools its agents have: kept at the admission, before anything has begun."""

    run: int = INVESTIGATION
    mcp: investigations.MCP


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Something that could not be inspected."""

    tool: str
    """`server.tool`, a server, or what an answer calls one."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class StageStarted:
    """The chain came to this stage."""

    run: int = INVESTIGATION
    stage: str
    clock: float
    """Seconds for which its run had been running, without suspensions.

    The age of a stage counts from here, across takeovers.
    """


@dataclass(frozen=True, kw_only=True)
class ExecutionStarted:
    """An agent began to work; all that it runs with is fixed here."""

    run: int = INVESTIGATION
    stage: str
    """"" where it is of no stage."""
    execution: str
    """The opaque id, the same after a takeover (`record.execution_id`)."""
    kind: ExecutionKind = "agent"
    index: int
    """Its place in the stage, from 0."""
    parent: str = ""
    """The execution that it works for, if any."""
    name: str
    """The name among its siblings, such as KubernetesAgent-2."""
    agent: resolve.ResolvedAgent | None
    """None where it never got that far: a name that nothing answers to, or its stage's time was over."""
    tools: tuple[messages.ToolSpec, ...] = ()
    messages: tuple[messages.Message, ...] = field(default_factory=tuple)  # no attribute that hides the module
    """The first messages of the conversation: the system prompt and the task."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One request to a provider that failed and may be repeated."""

    error: str
    usage: messages.Usage = field(default_factory=messages.Usage)
    """The provider's count until then; the last request's count is the call's own."""
    provider: str = ""
    """"" where it was written before attempts named theirs: then it is the call's."""
    code: str = ""
    """The provider's name for the error: an HTTP status, or a word; "" if it has none."""


@dataclass(frozen=True, kw_only=True)
class ModelCall:
    """One model call as it is accounted for."""

    provider: str
    model: str
    seconds: float
    usage: messages.Usage = field(default_factory=messages.Usage)
    attempts: tuple[Attempt, ...] = ()
    retries: int = 0
    """How many of its requests repeated one that had failed: the last attempt of a call that failed was not."""
    cost: float | None = None
    """By the provider's price, attempts included; None where it has none."""


@dataclass(frozen=True, kw_only=True)
class ServersAway:
    """MCP servers of an execution could not be reached: when it began, or for some of its calls."""

    execution: str
    servers: tuple[str, ...]
    calls: tuple[str, ...] = ()
    """The ids of the calls that reached no server because of it; () of the beginning."""


@dataclass(frozen=True, kw_only=True)
class ModelRetried:
    """A request to a provider failed, and is sent again. The call goes on: it is accounted for with its end."""

    execution: str
    turn: int
    """The model call, from 0."""
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
    """A model call brought an answer."""

    execution: str
    turn: int
    """Which of the execution's model calls, from 0."""
    messages: Annotated[tuple[messages.Message, ...], pydantic.Field(min_length=1)]
    """The answer; before it, what was added to the conversation for this call, if anything."""
    call: ModelCall


@dataclass(frozen=True, kw_only=True)
class Unanswered:
    """A model call brought none."""

    execution: str
    turn: int
    """Which of the execution's model calls, from 0."""
    failure: messages.Failure
    call: ModelCall
    messages: tuple[messages.Message, ...] = field(default_factory=tuple)  # no attribute that hides the module
    """The messages that were added for this call, if any.

    They were sent, so they stay, and the next call does not add them again.
    """


@dataclass(frozen=True, kw_only=True)
class FellBack:
    """A provider brought no answer, and from here on the execution asks the next one of its fallbacks."""

    execution: str
    turn: int
    """The model call that the next provider is asked for."""
    provider: str
    """The next one."""
    failure: messages.Failure
    """Why the one before it is given up."""
    call: ModelCall
    """The cost at that provider."""


@dataclass(frozen=True, kw_only=True)
class ContextCompacted:
    """From here on the model is shown some results of tools as a line each, or cut; the log keeps them whole."""

    execution: str
    turn: int
    """The model call that it was done for."""
    results: tuple[str, ...] = ()
    """The ids of the calls whose results are a line from here on."""
    cut: tuple[str, ...] = ()
    """Those of the last turn, which alone was too large, whose results are cut."""
    shown: int = 0
    """Characters of each of these that are still shown."""
    tokens: int
    """The tokens that the request would have had, by our estimate."""
    limit: int
    """The tokens that a request to this provider may have; 0 where that is not known."""
    failure: messages.Failure | None = None
    """How the provider refused the request as too large; None where it was not sent."""
    call: ModelCall | None = None
    """The cost of the refusal."""


@dataclass(frozen=True, kw_only=True)
class SummaryDue:
    """A result is long, and is to be summed up before the model of its execution reads it."""

    provider: str
    """The one that is asked for it."""
    tokens: int
    """The limit of the summary."""
    reads: int
    """Characters of the result that it is shown at most."""


@dataclass(frozen=True, kw_only=True)
class ToolRun:
    """One tool call with its result."""

    call: messages.ToolCall
    result: messages.Message
    """With as much of its text as the provider that was asked then may be shown (`excerpts.middle_cut`)."""
    seconds: float
    length: int | None = None
    """Characters of the whole, where `result` has less. It is kept beside the log (`Journal.whole`)."""
    whole: str | None = field(default=None, compare=False, repr=False)
    """That, on its way there; what is read of the log has it no more."""
    summary: SummaryDue | None = None
    """None where it is read as it stands."""


@dataclass(frozen=True, kw_only=True)
class ToolsAnswered:
    """Results of tool calls; those of read-only tools together, a writing tool's alone."""

    execution: str
    runs: tuple[ToolRun, ...]


@dataclass(frozen=True, kw_only=True)
class ToolSummarised:
    """A model summed up a long result, and its words stand for that from here on; or none came, and it stays."""

    execution: str
    turn: int
    """The model call that is to read it."""
    call_id: str
    """The tool call whose result it is."""
    tool: str
    """`server.tool`."""
    word: str
    """The word in the markers of its request."""
    text: str = ""
    """The summary; "" where there is none that could be used."""
    failure: messages.Failure | None = None
    """Why there is none."""
    call: ModelCall
    """The cost of the summary."""


@dataclass(frozen=True, kw_only=True)
class ExecutionEnded:
    """An agent is done. Its analysis, where it completed, is its last answer."""

    execution: str
    outcome: Outcome
    error: str = ""
    """Why there is no analysis."""
    ungrounded: bool = False
    """It has an analysis, and has looked at nothing, although it had tools."""


@dataclass(frozen=True, kw_only=True)
class StageEnded:
    """A stage is done."""

    run: int = INVESTIGATION
    stage: str
    outcome: StageOutcome
    message: str = ""
    """The errors of the stage, or the reason why it was skipped."""
    lacks: tuple[str, ...] = ()
    """The things that its agents lacked, a sentence each: servers that could not be reached."""


@dataclass(frozen=True, kw_only=True)
class RunEnded:
    """Nothing follows in this run."""

    run: int = INVESTIGATION
    ending: Ending
    reason: str
    """CamelCase, for conditions."""
    message: str = ""
    final_analysis: str = ""
    """Stored beside the log, in a column of its run: lists read it, and it is stored once."""
    summary: str = ""
    """The final analysis in a few lines."""
    gaps: tuple[Gap, ...] = ()
    """The things that its agents could not inspect; the first ten."""
    grounds: Grounds | None = None
    """None where there is no analysis that could stand on anything."""


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
    """An entry as it is stored, but for what says where it belongs: run, stage and execution are columns."""

    kind: str
    version: int
    body: str
    """JSON of storable text (`messages.storable`): Postgres can take it apart."""
    opaque: str | None = None
    """JSON that may hold what Postgres cannot unescape: providers' state, tools' schemas."""
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
    """Which claim of the investigation wrote it: another than the one before it tells of a takeover."""
    run: int
    stage: str
    execution: str
    entry: Entry | Unreadable


_COLUMNS = ("run", "stage", "execution", "final_analysis")
"""The fields that are stored beside the body."""
_KINDS: dict[str, type[Any]] = {shape.__name__: shape for shape in get_args(Entry)}
VERSIONS: dict[str, int] = {
    **dict.fromkeys(_KINDS, 1),
    "ExecutionStarted": 4,  # kinds beside agent; strategies; fallbacks, native tools; filters of tools, budget
    "Answered": 2,  # native tools' results, codes and providers of attempts, cost
    "Unanswered": 2,  # the same
    "ToolsAnswered": 3,  # the same, of messages; what is kept beside the log, and what is to be summed up
    "ExecutionEnded": 2,  # ungrounded
    "StageEnded": 2,  # CompletedWithErrors
    "RunEnded": 3,  # summary, gaps, grounds; ServersAway among the grounds
}
"""The version that each kind is written in."""

_adapters: dict[str, TypeAdapter[Any]] = {
    kind: TypeAdapter(pydantic.with_config(ConfigDict(extra="forbid"))(shape)) for kind, shape in _KINDS.items()
}


def encode(entry: Entry) -> Stored:
    """How `entry` is stored, in its kind's newest version; a ValueError says that JSON cannot hold it."""
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
    """The entry that was stored, whichever version that was in; an `Unreadable` says why not."""
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
    problem = messages.storable(f"it is not what it should be: {problem}")
    return Unreadable(kind=stored.kind, version=stored.version, problem=problem)


Decoder = Callable[[Any, Any, Mapping[str, Any]], Entry]
"""From body, opaque part and columns to the entry."""


def _newest(kind: str) -> Decoder:
    """The decoder of the version that `kind` is written in now."""
    shape, adapter = _KINDS[kind], _adapters[kind]
    own = tuple(column for column in _COLUMNS if column in shape.__dataclass_fields__)

    def decoder(body: Any, opaque: Any, columns: Mapping[str, Any]) -> Entry:
        _with_opaque(body, opaque)
        entry: Entry = adapter.validate_python({**body, **{column: columns[column] for column in own}}, strict=False)
        return entry

    return decoder


_CUT = re.compile(r"\n\[cut: \d+ of (\d+) characters are shown; ask for less\]\Z")
"""The last line of a result that was cut, before `ToolRun.length` said so; what it lacked was not kept."""


def _tools_answered_before(body: Any, opaque: Any, columns: Mapping[str, Any]) -> Entry:
    """The decoder of version 1 and 2."""
    entry = _newest("ToolsAnswered")(body, opaque, columns)
    assert isinstance(entry, ToolsAnswered)  # noqa: S101 - no other is of that kind
    cuts = (_CUT.search(run.result.text, max(0, len(run.result.text) - 100)) for run in entry.runs)
    runs = (replace(run, length=int(cut[1])) if cut else run for run, cut in zip(entry.runs, cuts, strict=True))
    return replace(entry, runs=tuple(runs))


DECODERS: dict[tuple[str, int], Decoder] = {
    (kind, version): _newest(kind) for kind, newest in VERSIONS.items() for version in range(1, newest + 1)
} | {("ToolsAnswered", version): _tools_answered_before for version in (1, 2)}
"""A decoder for each version that was ever written: nearly always a newer one only adds to the one before it."""


def _without_opaque(fields: dict[str, Any]) -> dict[str, Any] | None:
    """Take out of `fields` what Postgres could not unescape, and return it."""
    opaque: dict[str, Any] = {}
    states = [message.pop("provider_state") for message in fields.get("messages", ())]
    if any(state is not None for state in states):
        opaque["provider_states"] = states
    for run in fields.get("runs", ()):
        run["result"].pop("provider_state")  # a tool's result has none
        run.pop("whole")  # it has a table of its own
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

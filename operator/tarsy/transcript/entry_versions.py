"""The stored shapes of entries: each kind in the version in which it is written, and a decoder for each earlier one.

A version covers all that is nested in the shape. Every released version keeps its decoder; a changed shape gets a new
version (a test compares the shapes with recorded ones). An entry that this program cannot read is an `Unreadable`, not
an exception: the run is left to a program that can read it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

import pydantic
from pydantic import ConfigDict, TypeAdapter

from tarsy.transcript import entries, messages


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


_COLUMNS = ("run", "stage", "execution", "final_analysis")
"""The fields that are stored in columns, not in the body."""
_KINDS: dict[str, type[Any]] = {shape.__name__: shape for shape in get_args(entries.Entry)}
VERSIONS: dict[str, int] = {
    **dict.fromkeys(_KINDS, 1),
    "ExecutionStarted": 6,  # kinds besides agent; strategies; fallbacks, native tools; filters, budget; result tools
    "Answered": 3,  # native tools' results, codes and providers of attempts, cost; model and id of the response
    "Unanswered": 3,  # the same
    "FellBack": 2,  # model and id of the response
    "ContextCompacted": 2,  # the same
    "ToolSummarised": 2,  # the same
    "ToolsAnswered": 4,  # the same, of messages; the length of a whole result, and its summary; excerpts
    "ExecutionEnded": 2,  # ungrounded
    "StageEnded": 2,  # CompletedWithErrors
    "Rechecked": 2,  # problem
    "RunEnded": 4,  # summary, gaps, grounds; ServersAway among the grounds; former, masking
}
"""The version in which each kind is written."""

_adapters: dict[str, TypeAdapter[Any]] = {
    kind: TypeAdapter(pydantic.with_config(ConfigDict(extra="forbid"))(shape)) for kind, shape in _KINDS.items()
}


def encode(entry: entries.Entry) -> Stored:
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


def decode(stored: Stored, *, run: int, stage: str, execution: str) -> entries.Entry | entries.Unreadable:
    """Return a stored entry of any version; an `Unreadable` if it cannot be read."""
    decoder = DECODERS.get((stored.kind, stored.version))
    if decoder is None:
        newest = VERSIONS.get(stored.kind)
        why = "its kind is unknown here" if newest is None else f"version {newest} is the newest that is known here"
        return entries.Unreadable(kind=stored.kind, version=stored.version, problem=why)
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
    return entries.Unreadable(kind=stored.kind, version=stored.version, problem=problem)


Decoder = Callable[[Any, Any, Mapping[str, Any]], entries.Entry]
"""From body, opaque part and columns to the entry."""


def _newest(kind: str) -> Decoder:
    """Return the decoder of the newest version of `kind`."""
    shape, adapter = _KINDS[kind], _adapters[kind]
    own = tuple(column for column in _COLUMNS if column in shape.__dataclass_fields__)

    def decoder(body: Any, opaque: Any, columns: Mapping[str, Any]) -> entries.Entry:
        _with_opaque(body, opaque)
        entry: entries.Entry = adapter.validate_python(
            {**body, **{column: columns[column] for column in own}}, strict=False
        )
        return entry

    return decoder


_CUT = re.compile(r"\n\[cut: \d+ of (\d+) characters are shown; ask for less\]\Z")
"""The last line of a cut result before `ToolRun.length` was added; the rest was not stored."""


def _tools_answered_before(body: Any, opaque: Any, columns: Mapping[str, Any]) -> entries.Entry:
    """Decode versions 1 and 2."""
    entry = _newest("ToolsAnswered")(body, opaque, columns)
    assert isinstance(entry, entries.ToolsAnswered)  # noqa: S101 - no other is of that kind
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
    if fields.get("call"):
        fields["call"].pop("settled", None)  # it goes into the ledgers of budgets
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

"""The kinds of entries about a stage: its start and its end."""

from __future__ import annotations

from typing import Any

from tarsy.transcript import entries, nesting, record
from tarsy.transcript.kinds import kind


def _order(levels: nesting.Nesting, entry: entries.StageStarted | entries.StageEnded) -> None:
    """Begin or end the stage. A skipped stage has only an end."""
    level = nesting.stage(entry.run, entry.stage)
    if isinstance(entry, entries.StageStarted) or entry.outcome == "Skipped":
        levels.begin(level, within=nesting.run(entry.run))
    if isinstance(entry, entries.StageEnded):
        levels.end(level)


def _apply(so_far: record.Record, entry: entries.StageStarted | entries.StageEnded) -> None:
    stages = so_far.runs[entry.run].stages
    if isinstance(entry, entries.StageStarted):
        stages[entry.stage] = record.Stage(started=entry)
    elif entry.outcome == "Skipped":
        stages[entry.stage] = record.Stage(started=None, ended=entry)
    else:
        stages[entry.stage].ended = entry


KINDS: dict[type[Any], kind.Kind[Any]] = {
    entries.StageStarted: kind.Kind(
        order=_order,
        effect=_apply,
        messages=kind.nothing,
        model_calls=None,
        tool_calls=kind.nothing,
        timeline=kind.NO_EVENTS,
    ),
    entries.StageEnded: kind.Kind(
        order=_order,
        effect=_apply,
        messages=kind.nothing,
        model_calls=None,
        tool_calls=kind.nothing,
        timeline=kind.NO_EVENTS,
    ),
}

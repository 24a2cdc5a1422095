"""The kinds of entries about a stage: its start and its end."""

from __future__ import annotations

from typing import Any

from tarsy.transcript import entries, nesting, record
from tarsy.transcript.kinds import kind


def _begin(levels: nesting.Nesting, entry: entries.StageStarted | entries.StageEnded) -> None:
    levels.begin(nesting.stage(entry.run, entry.stage), within=nesting.run(entry.run))


def _end(levels: nesting.Nesting, entry: entries.StageEnded) -> None:
    if entry.outcome == "Skipped":
        _begin(levels, entry)
    levels.end(nesting.stage(entry.run, entry.stage))


def _add(so_far: record.Record, entry: entries.StageStarted) -> None:
    so_far.runs[entry.run].stages[entry.stage] = record.Stage(started=entry)


def _add_end(so_far: record.Record, entry: entries.StageEnded) -> None:
    stages = so_far.runs[entry.run].stages
    if entry.outcome == "Skipped":
        stages[entry.stage] = record.Stage(started=None, ended=entry)
    else:
        stages[entry.stage].ended = entry


KINDS: dict[type[Any], kind.Kind[Any]] = {
    entries.StageStarted: kind.Kind(
        order=_begin,
        effect=_add,
        messages=kind.nothing,
        model_calls=None,
        tool_calls=kind.nothing,
        timeline=kind.NO_EVENTS,
    ),
    entries.StageEnded: kind.Kind(
        order=_end,
        effect=_add_end,
        messages=kind.nothing,
        model_calls=None,
        tool_calls=kind.nothing,
        timeline=kind.NO_EVENTS,
    ),
}

"""Each kind of entry has all its parts: a kind that lacks one is named."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest
from tarsy.transcript import entries
from tarsy.transcript.kinds import kind, registry

SHAPES = {shape.__name__: shape for shape in get_args(entries.Entry)}
OURS = {
    "run",
    "stage",
    "execution",
    "clock",
    "origin",
    "kind",
    "index",
    "parent",
    "name",
    "agent",
    "turn",
    "provider",
    "model",
    "attempt",
    "seconds",
    "servers",
    "calls",
    "results",
    "cut",
    "shown",
    "tokens",
    "limit",
    "call_id",
    "tool",
    "word",
    "outcome",
    "ungrounded",
    "ending",
    "reason",
    "grounds",
}
"""The fields that hold numbers, our own words and names of the configuration."""


@pytest.mark.parametrize("name", sorted(entries.VERSIONS))
def test_every_kind_has_all_parts(name: str) -> None:
    shape = SHAPES[name]
    assert shape in registry.KINDS, f"{name} has no kind: add it to a module of transcript.kinds"
    own = registry.KINDS[shape]
    for part in (own.order, own.messages, own.tool_calls, own.timeline.events, own.timeline.closes):
        assert callable(part), f"{name} lacks a part"
    effects = [own.effect.on_record, own.effect.on_execution]
    assert sum(effect is not None for effect in effects) == 1, f"{name} changes the record, or an execution in it"
    of_execution = shape in get_args(entries.OfExecution)
    assert of_execution == (own.effect.on_execution is not None), f"{name} changes another part than it is about"


@pytest.mark.parametrize("name", sorted(entries.VERSIONS))
def test_every_field_is_ours_or_masked(name: str) -> None:
    fields = {field.name for field in dataclasses.fields(SHAPES[name])}
    masked = set(registry.KINDS[SHAPES[name]].masked)
    assert masked <= fields, f"{name} has no {', '.join(sorted(masked - fields))}"
    unsaid = fields - masked - OURS
    assert not unsaid, f"{name}: are {', '.join(sorted(unsaid))} from outside? Then its kind lists them as masked"


def test_there_is_no_kind_without_a_shape() -> None:
    assert registry.KINDS.keys() == set(SHAPES.values())
    assert entries.VERSIONS.keys() == SHAPES.keys()


def test_kinds_are_listed_by_what_they_bring() -> None:
    assert set(registry.WITH_MESSAGES) == {"ExecutionStarted", "Answered", "Unanswered", "ToolsAnswered"}
    assert set(registry.WITH_MODEL_CALLS) == {
        "Answered",
        "Unanswered",
        "FellBack",
        "ContextCompacted",
        "ToolSummarised",
    }
    assert registry.WITH_TOOL_CALLS == ("ToolsAnswered",)


def test_part_without_default_cannot_be_left_out() -> None:
    with pytest.raises(TypeError, match="masked"):
        kind.Kind(  # type: ignore[call-arg]
            order=kind.of_execution,
            effect=kind.Effect(on_execution=kind.none),
            messages=kind.nothing,
            model_calls=None,
            tool_calls=kind.nothing,
            timeline=kind.UNSEEN,
        )

"""Each kind of entry has all its parts: a kind that lacks one is named."""

from __future__ import annotations

from typing import get_args

import pytest
from tarsy.transcript import entries, entry_versions
from tarsy.transcript.kinds import kind, registry

SHAPES = {shape.__name__: shape for shape in get_args(entries.Entry)}


@pytest.mark.parametrize("name", sorted(entry_versions.VERSIONS))
def test_every_kind_has_all_parts(name: str) -> None:
    shape = SHAPES[name]
    assert shape in registry.KINDS, f"{name} has no kind: add it to a module of transcript.kinds"
    own = registry.KINDS[shape]
    for part in (own.order, own.effect, own.messages, own.tool_calls, own.timeline.events, own.timeline.closes):
        assert callable(part), f"{name} lacks a part"


def test_there_is_no_kind_without_a_shape() -> None:
    assert registry.KINDS.keys() == set(SHAPES.values())
    assert entry_versions.VERSIONS.keys() == SHAPES.keys()


def test_part_without_default_cannot_be_left_out() -> None:
    with pytest.raises(TypeError, match="tool_calls"):
        kind.Kind(  # type: ignore[call-arg]
            order=kind.require_execution,
            effect=kind.none,
            messages=kind.nothing,
            model_calls=None,
            timeline=kind.NO_EVENTS,
        )

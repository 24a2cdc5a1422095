"""Each kind of entry has all its parts: a kind that lacks one is named."""

from __future__ import annotations

from typing import get_args

import pytest
from tarsy.transcript import entries, entry_versions
from tarsy.transcript.kinds import registry

SHAPES = {shape.__name__: shape for shape in get_args(entries.Entry)}


@pytest.mark.parametrize("name", sorted(entry_versions.VERSIONS))
def test_every_kind_has_all_parts(name: str) -> None:
    shape = SHAPES[name]
    assert shape in registry.KINDS, f"{name} has no kind: add it to a module of transcript.kinds"
    own = registry.KINDS[shape]
    for part in (own.order, own.effect, own.messages, own.tool_calls, own.timeline.events, own.timeline.closes):
        assert callable(part), f"{name} lacks a part"


def test_every_entry_kind_has_a_shape() -> None:
    assert registry.KINDS.keys() == set(SHAPES.values())
    assert entry_versions.VERSIONS.keys() == SHAPES.keys()

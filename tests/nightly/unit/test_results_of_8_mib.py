"""Excerpts and searches of the longest results: so many steps and bytes for each of theirs, whatever is in them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from support import steps
from tarsy.transcript import line_excerpts

LENGTH = 8 * 2**20

STEPS_A_UNIT = 80
"""Lines of Python for each unit of an excerpt; there are UNITS_MAX of short lines, and some of longer ones."""

BYTES_A_CHARACTER = 12
"""Bytes of memory beside the text itself."""


def excerpt(text: str) -> str:
    chosen = line_excerpts.choose(text, 20_000, alert_words=frozenset({"web-0", "shop"}))
    return line_excerpts.render(text, chosen, header="")[0]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("piece", ["\n", "error web-0\n", "a1" * 40], ids=lambda piece: ascii(piece[:12]))
def test_excerpt_of_8_mib_takes_a_bounded_number_of_steps_and_bytes(piece: str) -> None:
    text = piece * (LENGTH // len(piece))
    units = min(line_excerpts.UNITS_MAX, len(text) // len(piece)) + len(text) // line_excerpts.UNIT_MAX
    assert steps.count(lambda: excerpt(text)) <= STEPS_A_UNIT * units
    assert peak_bytes(lambda: excerpt(text)) <= BYTES_A_CHARACTER * len(text)
    assert len(excerpt(text)) <= 20_001


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the largest number of bytes of memory that `work` takes at a time."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

"""Excerpts and searches of the longest results: so many steps and bytes for each of theirs, whatever is in them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from support import steps
from tarsy.transcript import result_lookup

from bench import hostile_texts

LENGTH = 8 * 2**20

BYTES_A_CHARACTER = 12
"""Bytes of memory beside the text itself."""


def search(text: str) -> str:
    rule = result_lookup.compile_pattern(hostile_texts.RESULT_PATTERN)
    return result_lookup.search(text, rule, context=2, first=1, limit=16_000, clock=lambda: 0.0)


def read(text: str) -> str:
    return result_lookup.read(text, first=1, last=None, character=1, limit=16_000)


@pytest.mark.parametrize("look", [search, read])
@pytest.mark.parametrize("piece", hostile_texts.RESULT_PIECES, ids=lambda piece: ascii(piece[:12]))
def test_steps_of_looking_into_a_result_grow_with_it_and_its_answer_is_bounded(
    piece: str, look: Callable[[str], str]
) -> None:
    single, double = (piece * (length // len(piece) + 1) for length in (8_000, 16_000))
    assert steps.grow_linearly(look, single, double)
    assert len(look(double)) <= 16_000


def test_reading_beginning_of_8_mib_takes_work_proportional_to_the_shown_text() -> None:
    assert steps.count(lambda: read("\n" * LENGTH)) < 8 * 16_000


def test_searching_8_mib_takes_a_bounded_number_of_bytes() -> None:
    text = ("a1" * 4_000 + "\n") * (LENGTH // 8_001)
    assert peak_bytes(lambda: search(text)) <= BYTES_A_CHARACTER * len(text)


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the largest number of bytes of memory that `work` takes at a time."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

"""Whatever is written into a log, masking it takes work in proportion to its length."""

from __future__ import annotations

import hypothesis
from hypothesis import strategies
from support import steps
from tarsy.masking import masker

from bench import hostile_texts

MASKER = masker.Masker(groups=["kubernetes", "security"])
UNHURRIED = masker.Masker(groups=["kubernetes", "security"], clock=lambda: 0.0)
"""A masker that withholds nothing, however long it takes: counting lines is slow."""


def test_masking_work_is_linear_in_length_of_one_repeated_piece() -> None:
    for piece in hostile_texts.MASKING_PIECES:
        single, double = (hostile_texts.EVERY_READER + piece * (size // len(piece)) for size in (2_000, 4_000))
        assert steps.grow_linearly(UNHURRIED.text, single, double), piece


LINES_A_CHARACTER = 100
"""Twice what any text was seen to take; work that grew with the square of the length would take a thousand."""


@hypothesis.settings(max_examples=40)
@hypothesis.given(
    head=strategies.lists(strategies.sampled_from(hostile_texts.MASKING_HEADS), max_size=2).map("".join),
    piece=strategies.lists(strategies.sampled_from(hostile_texts.MASKING_PIECES), min_size=1, max_size=6).map("".join),
)
@hypothesis.example(head='password="', piece="\\")
@hypothesis.example(head='{"kind":"Secret","data":{"', piece="\\")
@hypothesis.example(head="", piece="authorization: hmac [MASKED:token] ")
@hypothesis.example(head="", piece="--token '-")
@hypothesis.example(head="", piece="{")
@hypothesis.example(head="kind: Secret\n", piece="a:\n")
@hypothesis.example(head='{"kind":"Secret","data":{"', piece="\\\\ntoken:{")
def test_hostile_text_takes_a_bounded_number_of_lines_for_each_of_its_characters(head: str, piece: str) -> None:
    """Unclosed pieces after some heads take up to 3.6 times the lines for twice the length, until a budget ends it.

    With `{"kind":"Secret","data":{"` and the piece of the last example it is 3.1 from 4 to 8 KB, 1.2 to 16, 1.0 to 64.
    """
    text = head + piece * (8_000 // len(piece))
    assert steps.count(lambda: UNHURRIED.text(text)) <= LINES_A_CHARACTER * len(text)


def test_text_that_takes_too_long_is_withheld_with_a_note() -> None:
    text = '{"kind":"Secret","data":{"a":"cnry"}}' + "{" * 1_000_000
    masked = MASKER.text(text)
    assert masked == masker.withheld(len(text))
    assert MASKER.text(masked) == masked


def test_short_text_is_masked_regardless_of_the_work_it_takes() -> None:
    for piece in ("{", "a:\n", "token=a ", '{"data":{"a":', "[MASKED:token]"):
        assert "withheld" not in MASKER.text(piece * (2_000 // len(piece)))

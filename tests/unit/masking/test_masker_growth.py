"""Whatever is written into a log, masking it takes work in proportion to its length."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies
from support import steps
from tarsy.masking import masker

from bench import hostile_texts

MASKER = masker.Masker(groups=["kubernetes", "security"])
UNHURRIED = masker.Masker(groups=["kubernetes", "security"], clock=lambda: 0.0)
"""A masker that withholds nothing, however long it takes: counting lines is slow."""


@pytest.mark.slow
def test_lines_grow_with_the_length_of_one_piece_repeated() -> None:
    for piece in hostile_texts.MASKING_PIECES:
        single, double = (hostile_texts.EVERY_READER + piece * (size // len(piece)) for size in (2_000, 4_000))
        assert steps.grow_linearly(UNHURRIED.text, single, double), piece


@pytest.mark.slow
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
def test_lines_grow_with_the_length_of_hostile_text_and_no_faster(head: str, piece: str) -> None:
    """Unclosed pieces after some heads take up to 2.8 times the lines for twice the length, until a budget ends it.

    Such a text of `{"kind":"Secret","data":{"` and `[MASKED:` repeated takes 5 ms for 2 KB, 49 for 32 and 96 for 512.
    """
    single, double = (head + piece * (size // len(piece)) for size in (4_000, 8_000))
    assert steps.grow_linearly(UNHURRIED.text, single, double, growth_max=3.0), (head, piece)


def test_text_that_takes_too_long_is_withheld_with_a_note() -> None:
    text = '{"kind":"Secret","data":{"a":"cnry"}}' + "{" * 1_000_000
    masked = MASKER.text(text)
    assert masked == masker.withheld(len(text))
    assert MASKER.text(masked) == masked


def test_a_text_that_is_not_masked_in_time_is_withheld() -> None:
    ticks = iter(range(1000))
    slow = masker.Masker(groups=["security"], clock=lambda: float(next(ticks)))
    assert slow.text("password=cnry1234") == masker.withheld(17)


def test_a_short_text_is_masked_however_much_work_it_is() -> None:
    for piece in ("{", "a:\n", "token=a ", '{"data":{"a":', "[MASKED:token]"):
        assert "withheld" not in MASKER.text(piece * (2_000 // len(piece)))

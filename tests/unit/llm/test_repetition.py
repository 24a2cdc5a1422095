"""When a stream is one passage over and over, and when it only looks like it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import hypothesis
import pytest
from hypothesis import strategies
from support import steps
from tarsy.llm import answers

PASSAGES = strategies.text(strategies.characters(), min_size=30, max_size=500)
FEW_LETTERS = strategies.text("ab \n", min_size=30, max_size=500)
"""Passages that are nearly repetitions themselves."""


def found_at(text: str, *, cuts: list[int] | None = None) -> int | None:
    """Return after how many characters `text`, cut into pieces there, is found to repeat itself."""
    watch = answers.RepetitionWatch()
    pieces: Iterable[int] = range(0, len(text), 5) if cuts is None else cuts
    places = {0, len(text), *pieces}
    for start, end in itertools.pairwise(sorted(places)):
        if watch.add(text[start:end]):
            return end
    return None


def repeated(passage: str, size: int) -> str:
    return (passage * (size // len(passage) + 1))[:size]


def lines(line: str) -> str:
    return "".join(line.format(number=number) for number in range(200))


LOG = "ERROR cannot reach db-0.shop.svc:5432, connection refused\n"
HONEST = {
    "nothing": "",
    "an answer": "The pod web-0 is out of memory: its limit is 128Mi, and it asks for 512Mi.\n",
    "log lines with a timestamp": lines("2026-10-01T12:00:00.{number:03d}Z " + LOG),
    "log lines with a number that is told once in ten": lines(LOG * 10 + "attempt {number} failed\n"),
    "a few log lines that are the same": "They all say:\n" + LOG * 100 + "So the database is gone.\n",
    "a long passage, some times": "".join(chr(0x4E00 + at) for at in range(501)) * 20,
}
CIRCLES = {
    "log lines that are the same": LOG * 200,
    "a passage that is one character": "." * 6500,
    "a table without an end": "| a | b |\n" + "| --- " * 1500,
    "after an honest beginning": HONEST["log lines with a timestamp"] + LOG * 200,
}


@pytest.mark.parametrize("text", HONEST.values(), ids=HONEST)
def test_an_honest_text_is_left_alone(text: str) -> None:
    assert found_at(text) is None


@pytest.mark.parametrize("text", CIRCLES.values(), ids=CIRCLES)
def test_repeating_text_is_detected(text: str) -> None:
    assert found_at(text) is not None


@hypothesis.given(passage=PASSAGES | FEW_LETTERS, before=strategies.text(max_size=1000))
def test_any_repeated_passage_is_detected_soon_after_it_fills_the_tail(passage: str, before: str) -> None:
    at = found_at(before + repeated(passage, 7000))
    assert at is not None
    assert at <= len(before) + answers.REPEATED_TAIL + 500


@pytest.mark.parametrize("length", [1, 30, 499, 500])
def test_tail_with_one_differing_character_anywhere_is_no_repetition(length: int) -> None:
    tail = repeated("".join(chr(0x4E00 + letter) for letter in range(length)), answers.REPEATED_TAIL)
    assert answers.passage_length(tail) == length
    assert not any(answers.passage_length(f"{tail[:at]}x{tail[at + 1 :]}") for at in range(answers.REPEATED_TAIL))


@hypothesis.given(text=strategies.text("ab", min_size=1, max_size=1100).map(lambda text: repeated(text, 6000)))
def test_cited_passage_is_the_shortest_possible(text: str) -> None:
    lengths = [length for length in range(1, answers.PASSAGE_MAX + 1) if text[length:] == text[:-length]]
    assert answers.passage_length(text) == min(lengths, default=0)


@hypothesis.given(
    passage=FEW_LETTERS,
    before=strategies.integers(0, 3000),
    cuts=strategies.lists(strategies.integers(0, 10_000), max_size=20),
)
def test_result_does_not_depend_on_the_pieces_of_a_stream(passage: str, before: int, cuts: list[int]) -> None:
    text = "".join(map(str, range(before))) + repeated(passage, 6300) + HONEST["an answer"]
    assert (found_at(text, cuts=[cut for cut in cuts if cut < len(text)]) is None) == (found_at(text) is None)


def hostile(size: int) -> str:
    """Each look finds a passage that the tail's beginning repeats, and its end does not."""
    return repeated(repeated("a" * 499 + "b", 5999) + "c", size)


@pytest.mark.parametrize("text", [hostile(1_000_000), "".join(map(str, range(180_000)))], ids=["hostile", "numbers"])
def test_lines_of_a_megabyte_in_small_pieces_grow_with_its_length(text: str) -> None:
    assert found_at(text) is None
    assert steps.grow_linearly(found_at, text[:100_000], text[:200_000])

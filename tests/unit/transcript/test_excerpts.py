"""Cutting in the middle: the beginning and twice as much of the end stay, and what is left out is told."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tarsy.transcript import excerpts

NOTE = re.compile(
    r"^\[cut: (?:(?P<lines>[\d,]+) lines? with )?(?P<characters>[\d,]+) characters(?P<one> of a line)? are"
)


def taken_apart(cut_text: str, text: str, limit: int) -> tuple[str, str, str]:
    """Beginning, note and end of what is shown of a text that is too long."""
    notes = [line for line in cut_text.split("\n") if NOTE.match(line)]
    (note,) = notes
    head, tail = cut_text.split(f"{note}\n")
    characters = int(NOTE.match(note)["characters"].replace(",", ""))  # type: ignore[index]
    if len(head) + characters + len(tail) > len(text):  # a newline before the note
        assert head.endswith("\n")
        head = head[:-1]
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) + len(tail) <= limit
    return head, note, tail


def test_text_within_its_limit_is_left_alone() -> None:
    text = "a\nb\n" * 10
    assert excerpts.middle_cut(text, len(text)) is text
    assert excerpts.middle_cut("", 0) == ""


def test_cut_text_keeps_complete_lines_of_beginning_and_twice_as_many_of_the_end() -> None:
    text = "".join(f"line {number:03}\n" for number in range(1000))
    cut_text = excerpts.middle_cut(text, 900, advice=excerpts.ASK_FOR_LESS)
    head, note, tail = taken_apart(cut_text, text, 900)
    assert (head, tail) == (text[:297], text[-594:]), "whole lines of nine characters, 33 and 66 of them"
    assert note == "[cut: 901 lines with 8,109 characters are left out here; ask for less]"


def test_one_left_out_line_is_named_in_the_singular() -> None:
    text = "a\n" * 10 + "b" * 40 + "\n" + "c\n" * 20
    assert "[cut: 1 line with 41 characters are left out here]\nc\n" in excerpts.middle_cut(text, 60)


@pytest.mark.parametrize(
    "text",
    ["x" * 5000, "x" * 4999 + "\n", "\n" + "x" * 5000, "a\n" + "x" * 5000 + "\nb", "x" * 2000 + "\n" + "y" * 3000],
)
def test_a_very_long_line_is_cut_inside(text: str) -> None:
    head, note, tail = taken_apart(excerpts.middle_cut(text, 900), text, 900)
    assert (150 <= len(head) <= 300, 300 <= len(tail) <= 600) == (True, True)
    assert "characters" in note


@given(
    text=st.lists(st.text(alphabet="ab\n é💥", max_size=60), max_size=60).map("\n".join),
    limit=st.integers(min_value=0, max_value=600),
)
def test_counts_in_cut_note_add_up_for_any_text_and_limit(text: str, limit: int) -> None:
    cut_text = excerpts.middle_cut(text, limit)
    if len(text) <= limit:
        assert cut_text is text
        return
    head, note, tail = taken_apart(cut_text, text, limit)
    counts = NOTE.match(note)
    assert counts
    left_out = text[len(head) : len(text) - len(tail)]
    assert int(counts["characters"].replace(",", "")) == len(left_out) > 0
    assert int((counts["lines"] or "0").replace(",", "")) == (
        len(left_out.splitlines(keepends=True)) if "\n" in left_out else 0
    )
    assert bool(counts["one"]) == ("\n" not in left_out)
    assert len(cut_text) <= limit + excerpts.NOTE_MAX
    assert (len(head) >= limit // 3 / 2 - 1, len(tail) >= limit // 3 - 1) == (True, True), "a good part of each stays"


def test_beginning_ends_with_a_line_unless_the_line_is_long() -> None:
    assert excerpts.beginning("a\nb", 3) == "a\nb"
    assert excerpts.beginning("one\ntwo\nthree", 9) == "one\ntwo\n[cut: 7 of 13 characters are shown]"
    assert excerpts.beginning("a\n" + "b" * 20, 10) == "a\nbbbbbbbb\n[cut: 10 of 22 characters are shown]"


def test_one_line_excerpt_including_its_mark_stays_within_limit() -> None:
    assert excerpts.one_line(" a\n b ", 3) == "a b"
    assert excerpts.one_line("a b c d", 4) == "a b…"
    assert excerpts.one_line("a b c d", 6, mark="...") == "a b..."

"""Searching and reading long results: bounded, linear, with a way on; and clear refusals of what cannot be."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tarsy.transcript import line_excerpts, result_lookup

LOG = "\n".join(f"ok {number}" if number != 500 else "FATAL: out of memory" for number in range(1, 1_001))


def search(text: str, pattern: str, *, context: int = 0, first: int = 1, limit: int = 4_000) -> str:
    rule = result_lookup.compile_pattern(pattern)
    return result_lookup.search(text, rule, context=context, first=first, limit=limit)


def read(text: str, first: int = 1, last: int | None = None, character: int = 1, limit: int = 4_000) -> str:
    return result_lookup.read(text, first=first, last=last, character=character, limit=limit)


def test_matches_stand_with_their_numbers_and_their_context() -> None:
    assert search(LOG, "FATAL|^ok 7$", context=1).split("\n") == [
        "[2 lines match; searched: 1000 lines. N: is a match, N- a line near one]",
        "6- ok 6",
        "7: ok 7",
        "8- ok 8",
        "--",
        "499- ok 499",
        "500: FATAL: out of memory",
        "501- ok 501",
    ]
    assert search(LOG, "no such thing", first=900) == (
        "[0 lines match; searched: lines 900-1000. N: is a match, N- a line near one]"
    )
    assert "\n2: b" in search("a\r\nb\r\n", "b$"), "CR is no part of a line"


@given(
    lines=st.lists(st.sampled_from(["", "ok", "hit", "hit hit", "größer hit"]), min_size=1, max_size=60),
    context=st.integers(0, 3),
    limit=st.integers(260, 900),
)
def test_searching_on_shows_each_matching_line_once_in_order_and_in_bounds(
    lines: list[str], context: int, limit: int
) -> None:
    text, first, numbers = "\n".join(lines), 1, []
    for _ in range(len(lines) + 1):
        answer = search(text, "hit", context=context, first=first, limit=limit) if text else ""
        assert len(answer) <= limit
        rows = [re.match(r"(\d+)([:-]) (.*)", row) for row in answer.split("\n")[1:]]
        for row in filter(None, rows):
            assert lines[int(row[1]) - 1] == row[3]
            assert (row[2] == ":") == ("hit" in row[3])
        numbers += [int(row[1]) for row in rows if row and row[2] == ":"]
        onward = re.search(r'search on with "from": (\d+)', answer)
        if onward is None:
            break
        assert int(onward[1]) > first
        first = int(onward[1])
    assert numbers == [number for number, line in enumerate(lines, 1) if "hit" in line]


def test_matches_in_one_long_line_are_shown_with_surrounding_text() -> None:
    text = "ä" * 70_000 + " FATAL here " + "b" * 70_000 + "FATAL there"
    answer = search(text, "FATAL")
    snippets = re.findall(r"^1: \[characters (\d+)-(\d+)\] (.*)$", answer, re.MULTILINE)
    assert [text[int(begin) - 1 : int(end)] for begin, end, _ in snippets] == [snippet for _, _, snippet in snippets]
    assert ("FATAL here" in answer, "FATAL there" in answer, len(answer) < 1_000) == (True, True, True)
    many = search("FATAL " * 9_000, "FATAL")
    assert "further matches in this line are not shown: read it from character" in many
    assert len(many) < 4_000


def test_search_ends_at_its_time_limit_and_reports_where_it_stopped() -> None:
    ticks = itertools.count()
    rule = result_lookup.compile_pattern("FATAL")
    answer = result_lookup.search(LOG, rule, context=0, first=1, limit=4_000, clock=lambda: next(ticks) / 10)
    assert answer.startswith("[0 lines match; searched: lines 1-50 of 1000.")
    assert answer.endswith('[not all is shown: search on with "from": 51, or use a narrower pattern]')


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("", "'pattern' is empty"),
        ("(?=a)", "RE2 has no look-around"),
        (r"(a)\1", "'pattern' is no RE2 pattern"),
        ("a" * 501, "'pattern' has 501 characters: at most 500 are allowed"),
        ("((a{1,30}){1,30})", "'pattern' is too complex"),
        ("\ud83d(", "'pattern' is no RE2 pattern"),
    ],
)
def test_bad_patterns_are_refused_with_the_reason(pattern: str, problem: str) -> None:
    with pytest.raises(result_lookup.RequestError, match=re.escape(problem)):
        result_lookup.compile_pattern(pattern)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(a*)*(a*)*(a*)*b", "(x+x+)+y"])
def test_nested_quantifiers_are_linear(pattern: str) -> None:
    """`re` would need more steps than there are atoms: that it ends at all is the test."""
    assert search("a" * 50_000 + "\n" + "x" * 50_000, pattern)


@given(
    text=st.lists(st.sampled_from(["", "ab", "größer", "x" * 700, "\r"]), max_size=30).map("\n".join),
    limit=st.integers(260, 1_000),
)
def test_continued_reading_returns_complete_text_in_bounded_pieces(text: str, limit: int) -> None:
    pieces, first, character = [], 1, 1
    for _ in range(len(text) + 1):
        answer = read(text, first=first, character=character, limit=limit)
        assert len(answer) <= limit
        _, _, body = answer.partition("\n")
        onward = re.search(r'\n\[not all is shown: read on with "from": (\d+)(?:, "character": (\d+))?\]\Z', body)
        piece = body[: onward.start()] if onward else body
        pieces.append(piece + ("\n" if onward and not onward[2] else ""))
        if onward is None:
            break
        first, character = int(onward[1]), int(onward[2] or 1)
    assert "".join(pieces) == text.removesuffix("\n")


def test_lines_are_read_by_their_numbers() -> None:
    assert read(LOG, 499, 501) == "[lines 499-501 of 1000]\nok 499\nFATAL: out of memory\nok 501"
    assert read(LOG, 1_000, 9_999) == "[line 1000 of 1000]\nok 1000"
    assert read("abc", character=2) == "[line 1 of 1, from character 2 on]\nbc"
    assert read("") == "[line 1 of 0]\n"


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ({"first": 1_001}, "'from' is 1001: the result has 1000 lines, the first of which is 1"),
        ({"first": 10, "last": 9}, "'to' is 9: it must be at least 'from', which is 10"),
        ({"character": 99}, "'character' is 99: line 1 has 4 characters"),
    ],
)
def test_request_for_nonexistent_position_in_result_is_refused(request_: dict[str, int], problem: str) -> None:
    with pytest.raises(result_lookup.RequestError, match=re.escape(problem)):
        read(LOG, **request_)


def test_line_counts() -> None:
    assert [line_excerpts.line_count(text) for text in ("", "a", "a\n", "\n", "\n\n", "a\nb")] == [0, 1, 1, 1, 2, 2]

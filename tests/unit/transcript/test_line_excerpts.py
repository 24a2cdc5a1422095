"""Excerpts of long results: within their budget, verbatim, with the lines that matter; and the whole again."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import steps
from tarsy.transcript import line_excerpts

HEADER = "[an excerpt]"
NOTE = re.compile(r"\[left out: (?:lines (\d+)-(\d+)|line (\d+)|characters (\d+)-(\d+) of line (\d+))\]\n")
FLOOD = [f"level=info msg=ok path=/healthz status=200 n={number:05}" for number in range(4_200)]

LINES = st.one_of(
    st.sampled_from(
        ["", "ok", "x" * 900, "FATAL: out of memory", "größer 💥", '{"a": 1, "b": [1, 2]}', "\r", "web-0 is up"]
    ),
    st.text(max_size=300),
)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Lines of all kinds, some repeated often, with either line break or none."""
    blocks = draw(st.lists(st.tuples(LINES, st.integers(1, 120)), min_size=1, max_size=12))
    lines = [line for line, times in blocks for _ in range(times)]
    return draw(st.sampled_from(["\n", "\r\n", " "])).join(lines) + draw(st.sampled_from(["", "\n"]))


def excerpt(text: str, limit: int = 4_000, words: str = "") -> tuple[str, line_excerpts.Excerpt]:
    chosen = line_excerpts.choose(text, limit, alert_words=line_excerpts.words(words))
    return line_excerpts.render(text, chosen, header=HEADER)


@given(text=texts(), limit=st.integers(line_excerpts.LEAST, 6_000))
def test_excerpt_is_verbatim_and_bounded_and_restores_complete_text_with_the_rest(text: str, limit: int) -> None:
    rendered, chosen = excerpt(text, limit, "web-0")
    assert len(rendered) <= limit + len(HEADER) + 1
    assert (chosen.lines, chosen.length) == (len(text.split("\n")) - text.endswith("\n") if text else 0, len(text))
    end = 0
    for number, span in enumerate(chosen.spans):
        assert span.begin > end or (number == 0 and span.begin == 0), "spans that touch are one"
        assert span.end > span.begin
        assert rendered[span.at : span.at + span.end - span.begin] == text[span.begin : span.end]
        assert span.first == text.count("\n", 0, span.begin) + 1
        assert span.last == text.count("\n", 0, span.end - 1) + 1
        end = span.end
    assert (chosen.spans[0].begin, chosen.spans[-1].end) == (0, len(text)) if text else not chosen.spans
    rest = line_excerpts.rest(text, chosen)
    assert chosen.shown_length + len(rest) == len(text), "nothing is stored twice"
    assert line_excerpts.whole(rendered, chosen, rest) == text
    assert excerpt(text, limit, "web-0") == (rendered, chosen), "the same text gives the same excerpt"


@given(text=texts())
def test_notes_name_exactly_what_is_left_out(text: str) -> None:
    rendered, chosen = excerpt(text)
    for before, after in zip(chosen.spans, chosen.spans[1:], strict=False):
        between = rendered[before.at + before.end - before.begin : after.at]
        note = NOTE.fullmatch(between.removeprefix("\n"))
        assert note, between
        assert len(between) <= line_excerpts.NOTE_MAX
        first, last, alone, begin, end, line = (int(part or 0) for part in note.groups())
        if line:
            start = len("\n".join(text.split("\n")[: line - 1])) + (line > 1)
            assert (start + begin - 1, start + end) == (before.end, after.begin)
        else:
            numbers = [text.count("\n", 0, offset) + 1 for offset in (before.end, after.begin - 1)]
            assert numbers == [first or alone, last or alone]


def test_relevant_line_is_found_in_flood_of_other_lines() -> None:
    lines = [*FLOOD]
    lines[1_234] = "FATAL: out of memory, killed"
    lines[2_000] = "connected to shop-db-0 after 3 tries"
    lines[3_000] = "the cache is as cold as ice"
    rendered, chosen = excerpt("\n".join(lines), words="shop-db-0 is down")
    assert [line for line in (1_234, 2_000, 3_000) if lines[line] not in rendered] == []
    assert lines[0] in rendered
    assert rendered.endswith(lines[-1])
    assert "[left out: lines " in rendered
    assert chosen.lines == 4_200


def test_rare_error_is_found_in_flood_of_another_error() -> None:
    lines = [f"ERROR request {number} timed out after 30 s" for number in range(5_000)]
    lines[2_501] = "ERROR certificate of shop-db has expired"
    assert lines[2_501] in excerpt("\n".join(lines))[0]


def test_excerpt_shows_errors_from_all_parts_of_text_if_not_all_errors_fit() -> None:
    lines = [f"error in {chr(97 + number % 26) * (number // 26 + 3)}" for number in range(2_600)]
    _, chosen = excerpt("\n".join(lines))
    quarters = {span.first * 4 // len(lines) for span in chosen.spans}
    assert quarters == {0, 1, 2, 3}


def test_single_line_json_is_excerpted_with_its_relevant_members() -> None:
    members = [f'{{"pod": "web-{number}", "status": "Running"}}' for number in range(5_000)]
    members[2_500] = '{"pod": "web-2500", "status": "CrashLoopBackOff"}'
    text = f"[{', '.join(members)}]"
    rendered, chosen = excerpt(text)
    assert '"CrashLoopBackOff"' in rendered
    assert re.search(r"\[left out: characters \d+-\d+ of line 1\]", rendered)
    assert (chosen.lines, chosen.shown_lines) == (1, 1)
    assert rendered.endswith("]")


def test_words_that_stand_everywhere_or_are_short_or_numbers_are_no_reason() -> None:
    assert line_excerpts.words("Pod web-0 in shop: 10.2.3.4 2026-11-26 größer!") == {"web-0", "shop", "größer"}
    lines = [f"shop took order {chr(97 + number % 26)}{'x' * (number % 7)} in time" for number in range(3_000)]
    assert excerpt("\n".join(lines), words="shop order") == excerpt("\n".join(lines))
    assert len(line_excerpts.words(" ".join(f"word{number}" for number in range(9_999)))) == line_excerpts.WORDS_MAX


def lines_of(text: str) -> int:
    """The lines of code that are run for an excerpt."""
    return steps.count(lambda: line_excerpts.choose(text, 4_000, alert_words=frozenset({"web-0", "shop"})))


@pytest.mark.parametrize(
    "line",
    ["\n", "a" * 400, "error web-0\n", "x y\n", '{"a": 1}, ', "a1" * 200 + "\n", "_" * 300 + "\n", "größer\r\n"],
    ids=["empty lines", "one line", "errors", "short lines", "JSON", "hashes", "words", "Unicode"],
)
def test_work_grows_no_faster_than_the_text(line: str) -> None:
    """The expressions, which are linear, are apart from this: none can match a text in two ways."""
    half = line * (6_000 // len(line))
    assert lines_of(half * 4) <= 4.4 * lines_of(half) + 2_000


def test_many_short_lines_cost_no_more_than_so_many_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_excerpts, "UNITS_MAX", 1_000)
    text = "\n" * 20_000
    rendered, chosen = excerpt(text)
    assert lines_of(text) < 100 * line_excerpts.UNITS_MAX
    assert line_excerpts.whole(rendered, chosen, line_excerpts.rest(text, chosen)) == text

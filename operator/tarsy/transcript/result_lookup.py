"""Searching and reading a long tool result: pure functions of its text, bounded in what they return.

Patterns come from a model and texts from outside, so patterns are RE2's, which take linear time. A search stops after
SEARCH_SECONDS and says where to go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tarsy.masking import rules
from tarsy.transcript import line_excerpts

PATTERN_MAX = 500
"""Characters of a pattern."""
PROGRAM_MAX = 1_000
"""RE2 instructions of a pattern: each byte may cost as many steps."""
CONTEXT_MAX = 20
"""Lines of context on either side of a match."""
SEARCH_SECONDS = 5.0
"""The time limit of a search."""
LINE_MAX = 500
"""Characters that a search shows of one line."""
MATCHES_OF_LINE = 10
"""Matches that a search shows of a longer line."""
_AROUND = 150
"""Characters that a search shows on either side of a match in a long line."""
_WINDOW, _OVERLAP = 16_384, 1_024
"""Bytes of a long line that are searched at a time, and those that are searched twice: longer matches may be missed."""
_NOTE = 200
"""Characters of an answer that are kept for its first and last line."""


class RequestError(Exception):
    """A request that cannot be served. The message says why, in words for the model."""


@dataclass(frozen=True, kw_only=True)
class _Line:
    number: int
    text: str
    """Without its line break."""


def compile_pattern(pattern: str) -> rules.Rule:
    """Return the compiled pattern of a search; raises RequestError if it cannot be used."""
    if not pattern:
        raise RequestError("'pattern' is empty: give a regular expression in RE2's syntax")
    if len(pattern) > PATTERN_MAX:
        raise RequestError(f"'pattern' has {len(pattern):,} characters: at most {PATTERN_MAX} are allowed")
    try:
        rule = rules.unicode_rule(pattern.encode("utf-8", "replace"))
    except rules.PatternError as error:
        raise RequestError(
            f"'pattern' is no RE2 pattern: {error}. RE2 has no look-around and no back-references"
        ) from None
    if rules.program_size(rule) > PROGRAM_MAX:
        raise RequestError("'pattern' is too complex: use fewer and smaller repetitions")
    return rule


def search(
    text: str,
    rule: rules.Rule,
    *,
    context: int,
    first: int,
    limit: int,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Return the lines from number `first` on that match, with `context` lines around, in at most `limit` characters.

    The first line of the answer says how many match; a last one says where to go on if not all are shown.
    """
    total = line_excerpts.line_count(text)
    _check_line(first, total)
    stop, is_full, resume = clock() + SEARCH_SECONDS, False, 0
    excerpted: list[str] = []
    left, matching, last_shown = limit - _NOTE, 0, 0
    before: list[_Line] = []
    after = 0
    for line in _lines(text, first):
        if clock() > stop:
            resume = resume or line.number
            break
        places = _places(line.text, rule, is_over=lambda: clock() > stop)
        matching += bool(places)
        if is_full:
            continue
        block = list(_shown_lines(line, places, before)) if places else []
        if not places and after > 0:
            block = [_context_line(line)]
        after = context if places else after - 1
        if block:
            gap = excerpted and line.number - (len(before) if places else 0) > last_shown + 1
            block = ["--", *block] if gap else block
            size = sum(len(row) + 1 for row in block)
            if size > left:
                is_full, resume = True, line.number
                if places and not excerpted:  # one long line alone: as much as fits
                    excerpted.append("\n".join(block)[:left])
                    resume = line.number + 1
                continue
            excerpted += block
            left -= size
            last_shown = line.number
        before = [] if block else [*before, line][-context:] if context else []
    lines = [_headline(matching, total, first, resume, is_full=is_full), *excerpted]
    if 0 < resume <= total:
        lines.append(f'[not all is shown: search on with "from": {resume}, or use a narrower pattern]')
    return "\n".join(lines)


def _headline(matching: int, total: int, first: int, resume: int, *, is_full: bool) -> str:
    searched = f"lines {first}-{total}" if first > 1 else f"{total} lines"
    if resume and not is_full:
        searched = f"lines {first}-{resume - 1} of {total}"
    verb = "line matches" if matching == 1 else "lines match"
    return f"[{matching} {verb}; searched: {searched}. N: is a match, N- a line near one]"


def _shown_lines(line: _Line, places: list[tuple[int, int]], before: list[_Line]) -> Iterator[str]:
    yield from map(_context_line, before)
    if len(line.text) <= LINE_MAX:
        yield f"{line.number}: {line.text}"
        return
    shown_to = 0
    first_places = places[:MATCHES_OF_LINE]
    for begin, end in first_places:
        if end <= shown_to:
            continue
        start, shown_to = max(0, begin - _AROUND), min(len(line.text), max(end, begin + 1) + _AROUND)
        shown_to = min(shown_to, start + LINE_MAX)
        yield f"{line.number}: [characters {start + 1}-{shown_to}] {line.text[start:shown_to]}"
    if len(places) > len(first_places):
        yield f"{line.number}: [further matches in this line are not shown: read it from character {shown_to + 1} on]"


def _context_line(line: _Line) -> str:
    if len(line.text) <= LINE_MAX:
        return f"{line.number}- {line.text}"
    return f"{line.number}- [characters 1-{LINE_MAX} of {len(line.text)}] {line.text[:LINE_MAX]}"


def _places(line: str, rule: rules.Rule, *, is_over: Callable[[], bool]) -> list[tuple[int, int]]:
    """Return the places of the first matches in a line, as offsets of characters; for a short line only whether."""
    encoded = line.encode("utf-8", "replace")
    if len(encoded) <= LINE_MAX:
        match = rule.search(encoded)
        return [] if match is None else [(0, 0)]
    places: list[tuple[int, int]] = []
    counted, characters, searched_to = 0, 0, 0
    for start in range(0, len(encoded), _WINDOW - _OVERLAP):
        for match in rule.finditer(encoded, _letter(encoded, start), _letter(encoded, start + _WINDOW)):
            begin, end = match.span()
            if begin < searched_to:
                continue
            characters += len(encoded[counted:begin].decode("utf-8", "replace"))
            counted, searched_to = begin, max(end, begin + 1)
            places.append((characters, characters + len(encoded[begin:end].decode("utf-8", "replace"))))
            if len(places) > MATCHES_OF_LINE:
                return places
        if start + _WINDOW >= len(encoded) or is_over():
            break
    return places


def _letter(encoded: bytes, offset: int) -> int:
    """Return the offset of the next letter of UTF-8, at most the text's end."""
    while offset < len(encoded) and encoded[offset] & 0xC0 == 0x80:
        offset += 1
    return min(offset, len(encoded))


def read(text: str, *, first: int, last: int | None, character: int, limit: int) -> str:
    """Return the lines from `first` to `last` verbatim under a line that names them, in at most `limit` characters.

    It begins at a `character` of the first line, from 1. If not all fits, a last line says where to go on.
    """
    total = line_excerpts.line_count(text)
    _check_line(first, total)
    if last is not None and last < first:
        raise RequestError(f"'to' is {last}: it must be at least 'from', which is {first}")
    last = min(total, last or total)
    begin = _line_begin(text, 0, first - 1)
    line_end = text.find("\n", begin)
    length = (len(text) if line_end < 0 else line_end) - begin
    if character > max(1, length):
        raise RequestError(f"'character' is {character}: line {first} has {length} characters")
    most = begin + character - 1 + limit - _NOTE
    end = _line_begin(text, begin, last - first + 1, most)
    begin += character - 1
    onward = ""
    if end > most:
        newline = text.rfind("\n", begin, most)
        end = newline + 1 if newline >= 0 else most
        last = first + text.count("\n", begin, end)
        next_start = f'"from": {last}'
        if newline < 0:
            next_start += f', "character": {character + end - begin}'
        last -= newline >= 0
        onward = f"\n[not all is shown: read on with {next_start}]"
    where = f"lines {first}-{last}" if first < last else f"line {first}"
    since = f", from character {character} on" if character > 1 else ""
    return f"[{where} of {total}{since}]\n{text[begin:end].removesuffix(chr(10))}{onward}"


def _line_begin(text: str, begin: int, lines: int, stop: int | None = None) -> int:
    """Return the offset that is so many lines after `begin`, at most the text's end; any one after `stop` will do."""
    for _ in range(lines):
        if stop is not None and begin > stop:
            break
        newline = text.find("\n", begin)
        if newline < 0:
            return len(text)
        begin = newline + 1
    return begin


def _lines(text: str, first: int) -> Iterator[_Line]:
    begin, number = _line_begin(text, 0, first - 1), first
    while begin < len(text):
        newline = text.find("\n", begin)
        end = len(text) if newline < 0 else newline
        yield _Line(number=number, text=text[begin:end].removesuffix("\r"))
        begin, number = end + 1, number + 1


def _check_line(number: int, total: int) -> None:
    if not 1 <= number <= max(1, total):
        raise RequestError(f"'from' is {number}: the result has {total} lines, the first of which is 1")

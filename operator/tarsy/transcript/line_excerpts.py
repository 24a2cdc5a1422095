"""Excerpts of long tool results, chosen without a model, and the two parts that such a result is stored in.

An excerpt has the head and the tail of a result, lines of errors and warnings, lines with words of the alert, and lines
that differ from their neighbours once numbers, times and hashes are blanked. The lines are verbatim and in order; a
note stands where some are left out. The work is linear in the text, and its outcome depends on nothing else.

The log has the excerpt with its spans. The rest, the text between the spans, is stored beside the log. So nothing is
stored twice, a build that chooses other lines still shows these, and the excerpt outlives the rest.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

LEAST = 1_000
"""The smallest limit of an excerpt, in characters."""
NOTE_MAX = 80
"""The limit of a note about lines that are left out, with its line breaks, in characters."""
UNIT_MAX = 400
"""Characters of a unit: a line, or a part of a longer line."""
UNITS_MAX = 100_000
"""In a text with more lines, short lines form a unit together: their number must not cost memory."""
WORDS_MAX = 200
"""The maximum of words of an alert that are looked for."""
_HEAD, _TAIL = 8, 4
"""The head is one eighth of an excerpt, the tail a quarter."""
_NEIGHBOURS = 5
"""The preceding units that a unit is compared with."""
_BLOCK = 8
"""If a class does not fit, so many blocks or more are taken, evenly spread, of so many of its units or fewer."""
_COMMON = 20, 10
"""A word that more than so many units have, and more than one of so many, says nothing."""
_VARIABLE = re.compile(r"\b(?:[^\W\d]*+\d\w*+|[A-Fa-f]++\b)")
_WORD = re.compile(r"\w++(?:[.-]\w++)*+")
_WORD_LEAST = 4
_TROUBLE = (
    "error", "fail", "fatal", "panic", "exception", "traceback", "warn", "critical", "emerg", "severe", "oom", "killed",
    "denied", "forbidden", "unauthorized", "refused", "reject", "timeout", "timed out", "unable", "cannot", "could not",
    "crash", "backoff", "back-off", "evict", "unhealthy", "not ready", "notready", "not found", "no such", "invalid",
    "expired", "exceeded", "unreachable", "unavailable", "segfault", "sigkill", "sigterm", "deadlock", "corrupt",
    "no space", "terminated", "unschedulable", "insufficient", "missing", "mismatch",
)  # fmt: skip
"""Parts of lower-case words that mark a line of an error or a warning."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """Consecutive characters of a result that its excerpt shows."""

    first: int
    """The number of its first line, from 1."""
    last: int
    begin: int
    """The offset of its first character in the result."""
    end: int
    """The offset after its last character there."""
    at: int
    """The offset of its first character in the excerpt."""


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    """The spans of a result that its excerpt shows, in order."""

    lines: int
    """The lines of the whole result."""
    length: int
    """Its characters."""
    spans: tuple[Span, ...]

    @property
    def shown_lines(self) -> int:
        """The lines that are shown, in whole or in part."""
        numbers = [(span.first, span.last) for span in self.spans]
        shared = sum(before[1] == after[0] for before, after in itertools.pairwise(numbers))
        return sum(last - first + 1 for first, last in numbers) - shared

    @property
    def shown_length(self) -> int:
        """The characters that are shown."""
        return sum(span.end - span.begin for span in self.spans)


@dataclass(frozen=True, kw_only=True)
class _Unit:
    begin: int
    end: int
    first: int
    """The number of its first line, from 1."""
    last: int


def line_count(text: str) -> int:
    """Return the number of lines; a text without a last newline has one more than newlines."""
    return text.count("\n") + (not text.endswith("\n") and bool(text))


def words(text: str) -> frozenset[str]:
    """Return the first words of an alert that are worth looking for, in lower case: long ones, and no mere numbers."""
    chosen: dict[str, None] = {}
    for match in _WORD.finditer(text.lower()):
        if len(match[0]) >= _WORD_LEAST and not match[0].replace(".", "").replace("-", "").isdigit():
            chosen.setdefault(match[0])
            if len(chosen) == WORDS_MAX:
                break
    return frozenset(chosen)


def choose(text: str, limit: int, *, alert_words: Collection[str] = ()) -> Excerpt:
    """Return the excerpt of `text`: its spans and the notes between them have at most `limit` characters.

    `limit` is at least LEAST. The spans have no place in a text yet (`at` is 0); see `render`.
    """
    units = list(_units(text, max(40, min(UNIT_MAX, limit // 16))))
    choice = _Choice(units, limit - NOTE_MAX)
    choice.take_ends(limit // _HEAD, limit // _TAIL)
    for numbers in _candidates(text, units, frozenset(alert_words)):
        choice.take(numbers)
    return Excerpt(lines=line_count(text), length=len(text), spans=tuple(_spans(units, choice.chosen)))


def render(text: str, excerpt: Excerpt, *, header: str) -> tuple[str, Excerpt]:
    """Return the excerpt of `text` under a header line, with notes, and its spans with their places in that."""
    parts, spans, length = [f"{header}\n"], [], len(header) + 1
    before: Span | None = None
    for span in excerpt.spans:
        note = _note(text, before, span) if before else ""
        parts += [note, text[span.begin : span.end]]
        length += len(note)
        spans.append(Span(first=span.first, last=span.last, begin=span.begin, end=span.end, at=length))
        length += span.end - span.begin
        before = span
    return "".join(parts), Excerpt(lines=excerpt.lines, length=excerpt.length, spans=tuple(spans))


def rest(text: str, excerpt: Excerpt) -> str:
    """Return the characters of the result `text` that its excerpt does not show, in order."""
    return "".join(text[begin:end] for begin, end in _gaps(excerpt))


def whole(shown: str, excerpt: Excerpt, rest_of_it: str) -> str:
    """Return the result of which `shown` is the excerpt, and `rest_of_it` all other characters."""
    parts, used, before = [], 0, 0
    for span in excerpt.spans:
        gap = span.begin - before
        parts += [rest_of_it[used : used + gap], shown[span.at : span.at + span.end - span.begin]]
        used, before = used + gap, span.end
    return "".join([*parts, rest_of_it[used:]])


def _gaps(excerpt: Excerpt) -> Iterator[tuple[int, int]]:
    before = 0
    for span in excerpt.spans:
        yield before, span.begin
        before = span.end
    yield before, excerpt.length


def _note(text: str, before: Span, after: Span) -> str:
    """Return the line that stands for the characters between two spans."""
    begins_line, ends_line = text[before.end - 1] == "\n", text[after.begin - 1] == "\n"
    first, last = before.last + begins_line, after.first - ends_line
    if first == last and not (begins_line and ends_line):
        line = text.rfind("\n", 0, before.end) + 1
        left_out = f"characters {before.end - line + 1}-{after.begin - line} of line {first}"
    else:
        left_out = f"lines {first}-{last}" if first < last else f"line {first}"
    return f"{'' if begins_line else chr(10)}[left out: {left_out}]\n"


def _units(text: str, most: int) -> Iterator[_Unit]:
    """Yield the lines of `text`: long ones in parts of at most `most` characters, short ones of many together."""
    begin, line, least = 0, 1, min(len(text) // UNITS_MAX, most - 1)
    while begin < len(text):
        newline = text.find("\n", begin + least, begin + most)
        if newline < 0:  # maybe a long line follows short ones
            newline = text.rfind("\n", begin, begin + least)
        if newline >= 0:
            end = newline + 1
        else:
            end = min(len(text), begin + most)
            if end < len(text):  # between members of an object rather than within a word
                end = max(text.rfind(mark, begin + most // 2, end) + 1 for mark in (",", " ")) or end
        breaks = text.count("\n", begin, end)
        ends_line = text[end - 1] == "\n"
        yield _Unit(begin=begin, end=end, first=line, last=line + breaks - ends_line)
        begin, line = end, line + breaks


@dataclass(kw_only=True)
class _Counts:
    """The units with some feature, by how often their shape has been there before: the first, few, many."""

    rounds: tuple[list[int], list[int], list[int]] = field(default_factory=lambda: ([], [], []))

    def add(self, number: int, seen: int) -> None:
        self.rounds[0 if seen == 0 else 1 if seen < _BLOCK else 2].append(number)


def _candidates(text: str, units: Sequence[_Unit], alert_words: frozenset[str]) -> Iterator[Sequence[int]]:
    """Yield the numbers of units that are worth to be shown, the most important class first."""
    trouble, differing = _Counts(), _Counts()
    has_words: list[tuple[int, int, frozenset[str]]] = []
    seen: dict[str, int] = {}
    first_at: dict[str, int] = {}
    last_at: dict[str, int] = {}
    frequency = dict.fromkeys(alert_words, 0)
    for number, unit in enumerate(units):
        content = text[unit.begin : unit.end]
        shape = _VARIABLE.sub("#", content.strip())
        count = seen.get(shape, 0)
        seen[shape] = count + 1
        first_at.setdefault(shape, number)
        lower = content.lower()
        if any(mark in lower for mark in _TROUBLE):
            trouble.add(number, count)
        elif number - last_at.get(shape, -_NEIGHBOURS - 1) > _NEIGHBOURS:
            differing.add(number, count)
        last_at[shape] = number
        if alert_words and (own_words := alert_words.intersection(_WORD.findall(lower))):
            has_words.append((number, count, own_words))
            for word in own_words:
                frequency[word] += 1
    most = max(_COMMON[0], len(units) // _COMMON[1])
    common = {word for word, times in frequency.items() if times > most}
    naming = _Counts()
    for number, count, own_words in has_words:
        if not own_words <= common:
            naming.add(number, count)
    context = [near for number in trouble.rounds[0] for near in (number - 1, number + 1, number + 2)]
    unique = {first_at[shape] for shape, count in seen.items() if count == 1}
    for counts in (trouble, naming, differing):
        yield [number for number in counts.rounds[0] if number in unique]
        yield [number for number in counts.rounds[0] if number not in unique]
    yield [number for number in context if 0 <= number < len(units)]
    for index in (1, 2):
        yield trouble.rounds[index]
        yield naming.rounds[index]
    yield differing.rounds[1]


class _Choice:
    """The units that an excerpt shows, within a number of characters."""

    def __init__(self, units: Sequence[_Unit], left: int) -> None:
        self.chosen = bytearray(len(units))
        self._units = units
        self._left = left

    def take_ends(self, head: int, tail: int) -> None:
        """Take units from both ends, as many as fit, and one at least."""
        for numbers, room in ((range(len(self._units)), head), (range(len(self._units) - 1, -1, -1), tail)):
            used = 0
            for number in numbers:
                length = self._units[number].end - self._units[number].begin
                if used and used + length > room:
                    break
                if not self.chosen[number]:
                    self.chosen[number] = 1
                    self._left -= length
                used += length

    def take(self, numbers: Sequence[int]) -> None:
        """Take these units if they fit, else blocks of them that are evenly spread."""
        total = sum(self._cost(number) for number in numbers if not self.chosen[number])
        step = 1 if total <= self._left else -(-total // max(1, self._left))
        block = max(1, min(_BLOCK, len(numbers) // step // _BLOCK))
        for start in range(0, len(numbers), block * step):
            for number in numbers[start : start + block]:
                if not self.chosen[number] and (cost := self._cost(number)) <= self._left:
                    self.chosen[number] = 1
                    self._left -= cost

    def _cost(self, number: int) -> int:
        """Return the characters that a unit adds: its own, and those of a note unless it stands beside a chosen one."""
        unit = self._units[number]
        beside = self.chosen[max(0, number - 1)] or self.chosen[min(len(self.chosen) - 1, number + 1)]
        return unit.end - unit.begin + (0 if beside else NOTE_MAX)


def _spans(units: Sequence[_Unit], chosen: bytearray) -> Iterator[Span]:
    """Yield the chosen units that touch as one span; a gap that is no longer than its note is shown, too."""
    span: Span | None = None
    for number, unit in enumerate(units):
        if not chosen[number]:
            continue
        if span and unit.begin - span.end <= NOTE_MAX // 2:
            span = Span(first=span.first, last=unit.last, begin=span.begin, end=unit.end, at=0)
            continue
        if span:
            yield span
        span = Span(first=unit.first, last=unit.last, begin=unit.begin, end=unit.end, at=0)
    if span:
        yield span

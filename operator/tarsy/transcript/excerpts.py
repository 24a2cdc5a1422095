"""Cutting a long text in its middle: the beginning and, twice as long, the end stay.

The end of a log is its newest part, and a list's beginning says what its columns are. Cut is between lines, but for a
line that is longer than what is shown; what tells of the cut stands in a line of its own, where the rest was.
"""

from __future__ import annotations

from collections.abc import Callable

NOTE_MAX = 120
"""Characters of the line that tells of a cut, at most."""
_HEAD = 3
"""The beginning is one part of so many."""


def note(lines: int, characters: int) -> str:
    """Return the note about the part that is left out of a tool's result."""
    return f"[cut: {left_out(lines, characters)}; ask for less]"


def left_out(lines: int, characters: int) -> str:
    """How much is left out at a cut."""
    if not lines:
        return f"{characters:,} characters of a line are left out here"
    return f"{lines:,} line{'s' * (lines > 1)} with {characters:,} characters are left out here"


def middle_cut(text: str, limit: int, *, describe: Callable[[int, int], str] = note) -> str:
    """`text`, where it is longer than `limit` characters cut to these at most, beside the line that tells of the cut.

    `describe` gives that line, of `NOTE_MAX` characters at most, for the lines and characters that are left out.
    """
    if len(text) <= limit:
        return text
    head = limit // _HEAD
    tail = len(text) - (limit - head)
    begin = _after_newline(text.rfind("\n", head - head // 2, head), otherwise=head)
    end = _after_newline(text.find("\n", tail - 1, tail + (len(text) - tail) // 2), otherwise=tail)
    lines = text.count("\n", begin, end) + (text[end - 1] != "\n" and "\n" in text[begin:end])
    between = "" if begin == 0 or text[begin - 1] == "\n" else "\n"
    return f"{text[:begin]}{between}{describe(lines, end - begin)}\n{text[end:]}"


def _after_newline(newline: int, *, otherwise: int) -> int:
    """The place behind a newline, where there is one."""
    return otherwise if newline < 0 else newline + 1

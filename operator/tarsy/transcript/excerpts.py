"""Excerpts of long text: a cut in the middle, the beginning, or one line.

A tool's result is cut in the middle, because the end of a log is its newest part, and the beginning of a table has the
column headings. Cuts are between lines, except inside a line that is longer than the excerpt. A separate line says how
much is left out.
"""

from __future__ import annotations

NOTE_MAX = 120
"""The maximum length of the line at a middle cut, in characters."""
ASK_FOR_LESS = "; ask for less"
"""The advice to a model that can call the tool again."""
IN_FULL = "; result.read has it: {call}"
"""The advice to a model that can read the whole result of a call."""
_HEAD = 3
"""The beginning is one third of a middle cut, the end two thirds."""


def middle_cut(text: str, limit: int, *, label: str = "cut", advice: str = "") -> str:
    """Return `text` if it has at most `limit` characters; else its beginning and end, with a line about the cut.

    The line says how much is left out. It has at most `NOTE_MAX` characters, which do not count towards `limit`.
    """
    if len(text) <= limit:
        return text
    head = limit // _HEAD
    tail = len(text) - (limit - head)
    begin = _after_newline(text.rfind("\n", head - head // 2, head), otherwise=head)
    end = _after_newline(text.find("\n", tail - 1, tail + (len(text) - tail) // 2), otherwise=tail)
    lines = text.count("\n", begin, end) + (text[end - 1] != "\n" and "\n" in text[begin:end])
    between = "" if begin == 0 or text[begin - 1] == "\n" else "\n"
    size = f"{end - begin:,} characters"
    left_out = f"{lines:,} line{'s' * (lines > 1)} with {size}" if lines else f"{size} of a line"
    return f"{text[:begin]}{between}[{label}: {left_out} are left out here{advice}]\n{text[end:]}"


def in_full(call: str) -> str:
    """Return the advice to read the whole result of a call, by its reference `execution/call`."""
    return IN_FULL.format(call=call)


def beginning(text: str, limit: int) -> str:
    """Return `text` if it has at most `limit` characters; else its beginning, and a line about the cut."""
    if len(text) <= limit:
        return text
    end = text.rfind("\n", limit // 2, limit)
    excerpt = text[: limit if end < 0 else end]
    return f"{excerpt}\n[cut: {len(excerpt)} of {len(text)} characters are shown]"


def one_line(text: str, limit: int, *, mark: str = "…") -> str:
    """Return `text` on one line with single spaces; if it is longer than `limit`, it is cut and ends with `mark`."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - len(mark)]}{mark}"


def _after_newline(newline: int, *, otherwise: int) -> int:
    """Return the offset after a newline, or `otherwise` if there is none (-1)."""
    return otherwise if newline < 0 else newline + 1

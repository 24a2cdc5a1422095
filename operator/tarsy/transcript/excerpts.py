"""How long text is shortened: cut in its middle, to its beginning, or to one line.

A tool's result is cut in its middle. The end of a log is its newest part, and a list's beginning holds its column
headings. Cuts are between lines, except inside a line that is longer than the excerpt. A line of its own says how much
is left out.
"""

from __future__ import annotations

NOTE_MAX = 120
"""The maximum length of the line at a middle cut, in characters."""
ASK_FOR_LESS = "; ask for less"
"""The advice to a model that can call the tool again."""
_HEAD = 3
"""The beginning has one third of a middle cut, the end two."""


def middle_cut(text: str, limit: int, *, label: str = "cut", advice: str = "") -> str:
    """Return `text`, or if it has more than `limit` characters its beginning and its end around a line about the cut.

    The line counts what is left out, and has `NOTE_MAX` characters at most beside the limit.
    """
    if len(text) <= limit:
        return text
    head = limit // _HEAD
    tail = len(text) - (limit - head)
    begin = _after_newline(text.rfind("\n", head - head // 2, head), otherwise=head)
    end = _after_newline(text.find("\n", tail - 1, tail + (len(text) - tail) // 2), otherwise=tail)
    lines = text.count("\n", begin, end) + (text[end - 1] != "\n" and "\n" in text[begin:end])
    between = "" if begin == 0 or text[begin - 1] == "\n" else "\n"
    return f"{text[:begin]}{between}[{label}: {_left_out(lines, end - begin)}{advice}]\n{text[end:]}"


def beginning(text: str, limit: int) -> str:
    """Return `text`, or if it has more than `limit` characters its beginning and a line about the cut."""
    if len(text) <= limit:
        return text
    end = text.rfind("\n", limit // 2, limit)
    excerpt = text[: limit if end < 0 else end]
    return f"{excerpt}\n[cut: {len(excerpt)} of {len(text)} characters are shown]"


def one_line(text: str, limit: int, *, mark: str = "…") -> str:
    """Return `text` with single spaces as white space, cut to `limit` characters with `mark` as the last of them."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - len(mark)]}{mark}"


def _left_out(lines: int, characters: int) -> str:
    if not lines:
        return f"{characters:,} characters of a line are left out here"
    return f"{lines:,} line{'s' * (lines > 1)} with {characters:,} characters are left out here"


def _after_newline(newline: int, *, otherwise: int) -> int:
    """Return the offset after a newline, or `otherwise` if there is none (-1)."""
    return otherwise if newline < 0 else newline + 1

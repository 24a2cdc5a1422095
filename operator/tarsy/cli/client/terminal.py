"""Text on a terminal: escaped control characters, colours, widths.

Alerts, analyses and tool results come from outside. An escape sequence in them could move the cursor, rewrite lines or
set the clipboard; a bidirectional override shows letters in another order.

Source: ECMA-48 (C0, C1); Unicode TR 9, section 2; no-color.org.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence

_LINE_ENDS = re.compile(r"\r\n?")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
COLOURS = {
    "Completed": "32",
    "CompletedWithErrors": "33",
    "Running": "36",
    "Cancelling": "33",
    "Failed": "31",
    "TimedOut": "31",
    "Cancelled": "33",
}
"""SGR parameters, by phase or outcome. The word is always printed, with or without the colour."""


def clean(text: str) -> str:
    r"""Return `text` with control characters as Python writes them, such as `\x1b`; each CR ends a line."""
    if text.isprintable():
        return text
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), _LINE_ENDS.sub("\n", text))


def clean_json(text: str) -> str:
    """Return JSON with the control characters that JSON allows in strings (DEL, C1, bidirectional) as escapes."""
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def clean_line(text: str) -> str:
    """Return `text` as one clean line; runs of white space become one space."""
    return clean(" ".join(text.split()))


def is_terminal() -> bool:
    """Return whether stdout is a terminal that can move its cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") != "dumb"


def has_colour() -> bool:
    """Return whether output is coloured."""
    return is_terminal() and not os.environ.get("NO_COLOR")


def coloured(word: str, text: str | None = None) -> str:
    """Return `text`, by default the word itself, in the colour of a phase or outcome."""
    text = word if text is None else text
    code = COLOURS.get(word)
    return f"\x1b[{code}m{text}\x1b[0m" if code and has_colour() else text


def width(text: str) -> int:
    """Return the columns that a line takes: two for wide letters, none for combining ones."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def cut(text: str, columns: int) -> str:
    """Return the start of a line that fits into `columns`, with an ellipsis if something is missing."""
    if width(text) <= columns:
        return text
    start = ""
    for letter in text:
        if width(start + letter) > columns - 1:
            break
        start += letter
    return f"{start}…" if columns > 0 else ""


def table(
    rows: Iterable[Sequence[str]], *, header: Sequence[str] | None = None, widths: list[int] | None = None
) -> list[str]:
    """Return aligned lines, three spaces between columns; the last column is not padded.

    Each cell becomes one clean line. `widths` are the least widths of the columns. They are raised to those of this
    table, so that the next page of a list can be aligned with this one.
    """
    cells = [list(header)] if header else []
    cells += [[clean_line(cell) for cell in row] for row in rows]
    if not cells:
        return []
    widths = [] if widths is None else widths
    widths += [0] * (len(cells[0]) - len(widths))
    for row in cells:
        widths[:] = [max(least, width(cell)) for least, cell in zip(widths, row, strict=True)]
    return [
        "".join(
            cell if column == len(row) - 1 else cell + " " * (widths[column] - width(cell) + 3)
            for column, cell in enumerate(row)
        ).rstrip()
        for row in cells
    ]

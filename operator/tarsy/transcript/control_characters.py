"""Text from outside that is printed on a terminal: control characters are shown, and do nothing.

An escape sequence in a tool's result can move the cursor, rewrite lines above it, set the clipboard or the window's
title; a lone CR overwrites its line; a bidirectional override shows letters in another order than they stand.

Source: ECMA-48 (C0, C1), and Unicode TR 9, section 2 (explicit directional formatting).
"""

from __future__ import annotations

import re

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""C0 but for tabs and line feeds, DEL, C1, and what embeds, overrides or isolates a direction."""
_LINE_ENDS = re.compile(r"\r\n?")


def escape(original: str) -> str:
    r"""`original` with control characters as Python writes them, such as `\x1b` and `\u202e`; each CR ends a line.

    Twice is the same as once, and harmless text stays as it is.
    """
    if original.isprintable():
        return original
    return _CONTROLS.sub(_escape, _LINE_ENDS.sub("\n", original))


def _escape(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number <= 0xFF else f"\\u{number:04x}"

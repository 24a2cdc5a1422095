"""Escapes for control characters in text from outside, so that a terminal prints them and does not obey them.

An escape sequence in a tool's result can move the cursor, rewrite lines above it, or set the clipboard or the window's
title. A lone CR overwrites its line. A bidirectional override shows letters in another order than the text has them.

Source: ECMA-48 (C0, C1), and Unicode TR 9, section 2 (explicit directional formatting).
"""

from __future__ import annotations

import re

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""C0 except tabs and line feeds, DEL, C1, and the characters that embed, override or isolate a direction."""
_LINE_ENDS = re.compile(r"\r\n?")


def escape(original: str) -> str:
    r"""Return `original` with Python's escapes for control characters, such as `\x1b` and `\u202e`; CR ends a line.

    To escape twice is the same as once. Text without control characters stays as it is.
    """
    if original.isprintable():
        return original
    return _CONTROLS.sub(lambda match: repr(match[0])[1:-1], _LINE_ENDS.sub("\n", original))

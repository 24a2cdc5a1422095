"""Escaping of outside text in prompts: it stays readable, and can be neither a marker nor a step of ReAct."""

from __future__ import annotations

import re

from tarsy.transcript import react

_LINE_ENDS = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
"""Line ends other than the newline."""
_BLANK = " \t\u00a0\u1680\u2000-\u200f\u202f\u205f-\u2064\u3000\ufeff\u00ad"
"""Spaces and invisible characters, for a character class."""
_STEP = re.compile(
    # Possessive and within a line, so that each line is scanned once.
    rf"^(?=[{_BLANK}#>*_`~+.)(0-9-]*+{react.LABEL}[*_`{_BLANK}]*+[:\uff1a])",
    re.IGNORECASE | re.MULTILINE,
)
"""The beginning of a line with a step's label in any Markdown dress: more lines than `transcript.react` accepts."""


def escape_comments(text: str) -> str:
    """Return `text` with the beginnings and ends of HTML comments as HTML entities.

    Source: the founding documents, which escape the text between their markers in this way.
    """
    return text.replace("<!--", "&lt;!--").replace("-->", "--&gt;")


def quote_steps(text: str) -> str:
    """Return `text` with `> ` before each line that looks like a step of ReAct, such as a made-up observation."""
    return _STEP.sub("> ", _LINE_ENDS.sub("\n", text))

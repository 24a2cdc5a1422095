"""Text of others in prompts: it stays readable, and loses what would make it something else than text."""

from __future__ import annotations

import re

from tarsy.transcript import react

_LINE_ENDS = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
"""The line ends that people or models see, beside the newline itself."""
_BLANK = " \t\u00a0\u1680\u2000-\u200f\u202f\u205f-\u2064\u3000\ufeff\u00ad"
"""The blanks within a line, for a character class: spaces of all kinds, and invisible characters."""
_STEP = re.compile(
    # Each run of characters is possessive, and within its line: a line is looked at once.
    rf"^(?=[{_BLANK}#>*_`~+.)(0-9-]*+{react.LABEL}[*_`{_BLANK}]*+[:\uff1a])",
    re.IGNORECASE | re.MULTILINE,
)
"""The beginning of a line that says a step's label, dressed in whatever way: more than the parser takes for one."""


def escape_comments(text: str) -> str:
    """`text` without comments: what would begin or end one is written as HTML writes it in text.

    Source: the founding documents, which escape what stands between their markers in this way.
    """
    return text.replace("<!--", "&lt;!--").replace("-->", "--&gt;")


def quote_steps(text: str) -> str:
    """Return `text` with quoted lines where it looks like steps of ReAct, so that it cannot make up an observation."""
    return _STEP.sub("> ", _LINE_ENDS.sub("\n", text))

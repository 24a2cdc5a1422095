"""Text of others in prompts: it stays readable, and loses what would make it something else than text."""

from __future__ import annotations

import re

_STEP = re.compile(
    r"^(?=[^\S\n]*[#>*_`-]{0,8}[^\S\n]*(?:thought|action|action input|final answer|observation)[*_`]{0,3}[^\S\n]*[::])",
    re.IGNORECASE | re.MULTILINE,
)


def escaped(text: str) -> str:
    """`text` without comments: what would begin or end one is written as HTML writes it in text.

    Source: the founding documents, which escape what stands between their markers in this way.
    """
    return text.replace("<!--", "&lt;!--").replace("-->", "--&gt;")


def quoted(text: str) -> str:
    """`text` without steps of ReAct: a line that looks like one is quoted, so that nobody makes up an observation."""
    return _STEP.sub("> ", text)

"""Full texts of tool results that were deleted before their transcript.

The log has the part that the model was shown (`entries.ToolRun.length`). The full text is stored beside it, and goes by
a rule of its own, so each reader of the part is told that there is no more, since when and why.

A text that could not be masked in time was withheld before it was stored: it was never deleted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from tarsy.transcript import entries

Rule = Literal["retention.tool_results"]
"""The key of the platform file that deletes full texts."""


_WITHHELD = re.compile(r"\A\[MASKED:withheld\]|^\[withheld: about [^\n]*\Z", re.MULTILINE)
_CUT = re.compile(r"^\[cut: [^\n]* are left out here", re.MULTILINE)
"""The lines of a result that was withheld (`masking.masker`, `tools.calls.results`), and of one that was cut."""


@dataclass(frozen=True, kw_only=True)
class Deleted:
    """A full text that is no longer stored."""

    rule: Rule = "retention.tool_results"
    at: datetime | None
    """The time of its deletion; None if that is not known, as of a copy in a retry whose original is purged."""
    length: int
    """The length that it had, in characters."""

    @property
    def message(self) -> str:
        """The sentence for people and models."""
        when = f" on {self.at.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if self.at else ""
        return f"The full text, {self.length:,} characters, was deleted{when} by {self.rule}."


def deleted(logged: entries.Logged, run: entries.ToolRun) -> Deleted | None:
    """Return the deletion of the full text of a result in an entry; None if it is stored, or the log has all of it."""
    if run.length is None or logged.results_deleted_at is None:
        return None
    if not was_stored(run.result.text, is_excerpt=run.excerpt is not None):
        return None
    return Deleted(at=logged.results_deleted_at, length=run.length)


def was_stored(shown: str, *, is_excerpt: bool) -> bool:
    """Whether more than `shown` was stored of a result that the log has in part; else the rest was withheld."""
    return is_excerpt or _WITHHELD.search(shown) is None or _CUT.search(shown) is not None

"""Full texts of tool results that were deleted before their transcript.

The log has the part that the model was shown (`entries.ToolRun.length`). The full text is stored beside it, and goes by
a rule of its own, so each reader of the part is told that there is no more, since when and why.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from tarsy.transcript import entries

Rule = Literal["retention.tool_results"]
"""The key of the platform file that deletes full texts."""


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
    return Deleted(at=logged.results_deleted_at, length=run.length)

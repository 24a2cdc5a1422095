"""Component states: a state, its time, and details.

Parts of any room report them, and `store.fleet.reporter` passes them on, to the API too. They must hold nothing secret;
they are masked all the same before they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from tarsy.telemetry import details

Kind = details.Kind


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One thing that a process says of itself."""

    kind: Kind
    name: str
    """Which of its kind."""
    state: str
    since: datetime
    """When the state began."""
    detail: details.Detail
    """The shape of this kind."""


class Standing:
    """The state of something, and since when it is in it."""

    def __init__(self, state: str) -> None:
        self.state = state
        self.since = datetime.now(UTC)

    def be(self, state: str) -> bool:
        """Be in `state` from now on; True where that is a change."""
        changed = state != self.state
        if changed:
            self.state, self.since = state, datetime.now(UTC)
        return changed

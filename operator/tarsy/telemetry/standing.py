"""What the parts of a process say of themselves: a state, since when, and what goes with it.

Parts of any room report it, and `store.fleet.reporter` passes it on, to the API too. It must hold nothing secret; it is
masked all the same before it is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

Kind = Literal["process", "configuration", "server", "tools", "provider", "passed", "watch"]


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One thing that a process says of itself."""

    kind: Kind
    name: str
    """Which of its kind."""
    state: str
    since: datetime
    """When the state began."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """What else there is to say, as JSON."""


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

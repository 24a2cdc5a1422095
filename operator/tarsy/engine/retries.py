"""The number of model requests that a run may repeat: one count for all its executions, across takeovers."""

from __future__ import annotations

from dataclasses import dataclass

from tarsy.transcript import ports, record


@dataclass(kw_only=True)
class Retries:
    """The repeats that are left."""

    left: int

    def take(self) -> bool:
        """Whether one more request may be repeated; it is counted then."""
        if self.left <= 0:
            return False
        self.left -= 1
        return True


def of_run(run: record.Run, *, runtime: ports.Runtime) -> Retries:
    """Return the repeats that are left after those in the record of a run."""
    with runtime.in_force() as now:
        return Retries(left=now.platform.limits.retries - run.retries)

"""How many model requests of a run may be repeated: one count for all its executions, whoever ran them before."""

from __future__ import annotations

from dataclasses import dataclass

from tarsy.transcript import ports, record


@dataclass(kw_only=True)
class Retries:
    """What is left to repeat."""

    left: int

    def take(self) -> bool:
        """Whether one more request may be repeated; it is counted then."""
        if self.left <= 0:
            return False
        self.left -= 1
        return True


def of_run(run: record.Run, *, runtime: ports.Runtime) -> Retries:
    """What is left behind the repeats that a run's record knows."""
    with runtime.in_force() as now:
        return Retries(left=now.platform.limits.retries - run.retries)

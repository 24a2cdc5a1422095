"""The reports of workers on the LLM providers of their platform files.

Only workers have the keys and packages of providers. So whether a provider can be used is read from these reports
alone, even in a process that has all roles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Workers:
    """The reports of all workers with a recent heartbeat."""

    count: int = 0
    """The number of workers, including those that have not reported on any provider."""
    reports: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By provider, one string for each worker that reports on it: why it cannot use the provider, or "" if it can."""

    @property
    def unusable(self) -> Mapping[str, str]:
        """The providers that all workers, at least one, report as unusable, with the reasons."""
        return {
            name: "; ".join(dict.fromkeys(problems))
            for name, problems in self.reports.items()
            if self.count and len(problems) == self.count and all(problems)
        }

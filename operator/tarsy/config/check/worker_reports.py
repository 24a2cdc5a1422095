"""The workers that are there, and what each of them says of the LLM providers of its platform file.

Keys and packages belong to the processes that call models. A process without the role worker has neither, so it judges
providers by this report alone, and so does one that plays all roles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Workers:
    """The reports of all workers that were seen lately."""

    count: int = 0
    """How many there are, those that have not reported any provider included."""
    reports: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By provider, one string for each worker that reports it: why the worker cannot use it, or "" if it can."""

    @property
    def unusable(self) -> Mapping[str, str]:
        """The providers that all workers, at least one, report as unusable, with the reasons."""
        return {
            name: "; ".join(dict.fromkeys(problems))
            for name, problems in self.reports.items()
            if self.count and len(problems) == self.count and all(problems)
        }

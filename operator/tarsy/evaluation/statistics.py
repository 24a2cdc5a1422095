"""Shares with intervals by scenario, and the comparison of two evaluations.

Runs of one scenario are alike: a model that knows a cause knows it again. So the unit is the scenario, with the share
of its runs that are right, and repeats make no interval narrower than the number of scenarios allows.

The interval of a share is Wilson's, with the number of scenarios: the shares of scenarios vary at most as yes and no
do, so it is never too narrow. Source: Wilson (1927), "Probable inference, the law of succession, and statistical
inference". A difference is a bootstrap over pairs of scenarios, with a fixed seed, so that the same results have the
same interval. Source: Efron and Tibshirani, "An Introduction to the Bootstrap", chapter 13.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SAMPLES = 2000
SEED = 31
LEVEL = 0.95
_Z = 1.959964
"""The quantile of the normal distribution for LEVEL."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """A share, and its interval; all from 0 to 1."""

    value: float
    low: float
    high: float


def share(by_scenario: Sequence[float]) -> Share:
    """Return the mean of the scenarios' shares with its interval; of no scenario it is 0, and anything is possible."""
    if not by_scenario:
        return Share(value=0.0, low=0.0, high=1.0)
    value, count = _mean(by_scenario), len(by_scenario)
    middle = (value + _Z**2 / (2 * count)) / (1 + _Z**2 / count)
    spread = _Z * math.sqrt(value * (1 - value) / count + _Z**2 / (4 * count**2)) / (1 + _Z**2 / count)
    return Share(value=value, low=max(0.0, middle - spread), high=min(1.0, middle + spread))


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A second evaluation less a first one, over the scenarios of both."""

    value: float
    low: float
    high: float
    scenarios: int

    @property
    def verdict(self) -> str:
        """better, worse, or noise: the interval has 0 in it."""
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "noise"


def difference(before: Mapping[str, float], after: Mapping[str, float]) -> Difference:
    """Compare the shares of scenarios, pair by pair; scenarios that only one of them has are left out."""
    pairs = [after[name] - before[name] for name in sorted(before.keys() & after.keys())]
    if not pairs:
        return Difference(value=0.0, low=-1.0, high=1.0, scenarios=0)
    low, high = _interval(pairs)
    if len(pairs) < _FEWEST:  # so few pairs are resampled to the same few means
        low, high = min(low, 0.0), max(high, 0.0)
    return Difference(value=_mean(pairs), low=low, high=high, scenarios=len(pairs))


_FEWEST = 6
"""The pairs below which even a sign test cannot tell a difference at this level: 2 * 0.5 ** 5 is over 0.05."""


def _interval(values: Sequence[float]) -> tuple[float, float]:
    generator = random.Random(SEED)  # noqa: S311 - no secret
    means = sorted(_mean(generator.choices(values, k=len(values))) for _ in range(SAMPLES))
    tail = (1 - LEVEL) / 2
    return means[int(tail * SAMPLES)], means[min(SAMPLES - 1, math.ceil((1 - tail) * SAMPLES) - 1)]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)

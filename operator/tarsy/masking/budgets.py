"""The budget of work for one text: a hostile text that needs more is refused.

A pattern takes linear time, but each match is examined in Python, and a text may consist of matches. So steps are
counted (half a microsecond each), and a text is refused alike on a fast machine and on a busy one. The clock is the
second limit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")


_CLOCK_STEPS = 20_000
"""Steps, about 10 ms, between two checks of the clock."""


class BudgetExceededError(Exception):
    """The text needs more work than its budget."""


class Budget:
    """The steps and the time that are left for one text."""

    def __init__(self, steps: int, *, clock: Callable[[], float], seconds: float) -> None:
        """`steps` is the limit of all passes, `seconds` the limit of time from now."""
        self._reserve = steps
        self._left = self._next_check = 0
        self._clock = clock
        self._end = clock() + seconds

    def begin(self, steps: int) -> None:
        """Begin a pass over the text, which may use `steps` of those that are left."""
        self._reserve += self._left
        self._left = min(steps, self._reserve)
        self._reserve -= self._left
        self._check()

    def metered(self, matches: Iterable[_T], *, cost: int = 1) -> Iterator[_T]:
        """Yield `matches`, using `cost` steps for each; raises BudgetExceededError once none are left."""
        for match in matches:
            self._left -= cost
            if self._left < self._next_check:
                self._check()
            yield match

    def spend(self, cost: int) -> None:
        """Use `cost` steps; raises a BudgetExceededError if too few are left."""
        self._left -= cost
        if self._left < self._next_check:
            self._check()

    def _check(self) -> None:
        if self._left < 0:
            raise BudgetExceededError
        self.check_time()
        self._next_check = max(0, self._left - _CLOCK_STEPS)

    def check_time(self) -> None:
        """Raise a BudgetExceededError once the time is over."""
        if self._clock() > self._end:
            raise BudgetExceededError


def unlimited() -> Budget:
    """Return a budget without limits, for short texts of our own."""
    budget = Budget(sys.maxsize, clock=lambda: 0.0, seconds=1.0)
    budget.begin(sys.maxsize)
    return budget

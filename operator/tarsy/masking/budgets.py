"""How much work a text is worth: what a hostile one asks for beyond that is refused, not done.

A pattern takes linear time, but each place that it finds is looked at in Python, and a text may be nothing but such
places. So steps are counted (half a microsecond each), and the text is refused alike on a fast machine and on a busy
one. The clock is the second line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")


_BETWEEN_LOOKS = 20_000
"""Steps, about 10 ms, between two looks at the clock."""


class BudgetExceededError(Exception):
    """The text asks for more work than it is worth."""


class Budget:
    """The work that is left for one text."""

    def __init__(self, steps: int, *, clock: Callable[[], float], seconds: float) -> None:
        """Allow so many `steps` in all, and so many `seconds` from now."""
        self._later = steps
        self._left = self._next_look = 0
        self._clock = clock
        self._end = clock() + seconds

    def begin(self, steps: int) -> None:
        """Begin a pass over the text, which may take so many of the steps that there are yet."""
        self._later += self._left
        self._left = min(steps, self._later)
        self._later -= self._left
        self._check()

    def each(self, places: Iterable[_T], *, cost: int = 1) -> Iterator[_T]:
        """`places`, each paid for with `cost` steps; a BudgetExceededError once none are left."""
        for position in places:
            self._left -= cost
            if self._left < self._next_look:
                self._check()
            yield position

    def pay(self, cost: int) -> None:
        """Pay for what is about to be done; a BudgetExceededError where too little is left."""
        self._left -= cost
        if self._left < self._next_look:
            self._check()

    def _check(self) -> None:
        if self._left < 0:
            raise BudgetExceededError
        self.in_time()
        self._next_look = max(0, self._left - _BETWEEN_LOOKS)

    def in_time(self) -> None:
        """Go on; a BudgetExceededError once the time is over."""
        if self._clock() > self._end:
            raise BudgetExceededError


def unlimited() -> Budget:
    """For a text of our own: whatever it takes."""
    budget = Budget(sys.maxsize, clock=lambda: 0.0, seconds=1.0)
    budget.begin(sys.maxsize)
    return budget

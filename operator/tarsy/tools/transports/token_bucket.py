"""A token bucket: a limit on a rate that allows bursts."""

from __future__ import annotations

from collections.abc import Callable


class TokenBucket:
    """A bucket that starts with `size` tokens and gains `rate` a second up to that size; callers reduce `tokens`."""

    def __init__(self, size: float, rate: float, *, clock: Callable[[], float]) -> None:
        self.tokens = size
        self._size = size
        self._rate = rate
        self._clock = clock
        self._refilled = clock()

    def refill(self) -> float:
        """Add the tokens for the time since the last refill; return the tokens."""
        now = self._clock()
        self.tokens = min(self._size, self.tokens + (now - self._refilled) * self._rate)
        self._refilled = now
        return self.tokens

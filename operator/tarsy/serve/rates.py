"""How many requests a caller may make: a bucket for each, which fills again as time passes.

Of one process; callers of several have as much of each.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable

MOST = 20_000
"""Callers that are remembered, the latest; a forgotten one begins anew."""
PREFIX = 64
"""The bits of an IPv6 address that identify a network, whose owner has all addresses in it."""


class Rates:
    """The buckets of callers, by any names."""

    def __init__(self, *, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells seconds that only rise."""
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """The rest of each bucket, with its time; full buckets are not stored."""

    def take(self, caller: str) -> float:
        """Take one request of the caller's: 0, or after how many seconds there will be one."""
        left, now = self._now(caller)
        missing = max(0.0, 1.0 - left)
        self._left.pop(caller, None)
        self._left[caller] = (left if missing else left - 1.0, now)
        if len(self._left) > MOST:
            self._left.popitem(last=False)
        return missing / self._per_second

    def give_back(self, caller: str) -> None:
        """Undo a `take` that was granted."""
        left, now = self._now(caller)
        self._left[caller] = (min(self._burst, left + 1.0), now)

    def _now(self, caller: str) -> tuple[float, float]:
        """Return the rest of the caller's bucket, and the time."""
        now = self._clock()
        left, then = self._left.get(caller, (float(self._burst), now))
        return min(self._burst, left + (now - then) * self._per_second), now


def place(address: str) -> str:
    """Return the network of an address, which tells unknown callers apart."""
    try:
        return str(ipaddress.IPv6Network((address.partition("%")[0], PREFIX), strict=False))
    except ValueError:  # of version 4, or none
        return address

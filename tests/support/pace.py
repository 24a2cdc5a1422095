"""How fast this machine is just now: what makes a limit in seconds hold on a busy one."""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Callable

_IDLE_SECONDS = 0.0113
"""What the work of `slowness` takes on an idle core of 2024."""

SLACK = 4
"""So much longer than was measured work may take before it is said to be slow: what is wrong takes a hundred times."""
TRIES = 5
"""How often work is timed before it is said to be slow: another process on the core costs one try, not a test."""


def slowness() -> float:
    """How much longer a fixed piece of work takes here and now."""
    start = time.thread_time()
    sum(found.end() for found in re.finditer(rb"\w++", b"ab, cd: (ef) {x} " * 10_000))
    return (time.thread_time() - start) / _IDLE_SECONDS


def seconds(work: Callable[[], object]) -> float:
    """What `work` takes of this thread's processor time, without collecting what other tests have left."""
    gc.disable()
    try:
        start = time.thread_time()
        work()
        return time.thread_time() - start
    finally:
        gc.enable()


def within(limit: float, work: Callable[[], object]) -> bool:
    """Whether `work`, which can be done again, takes little more than `limit` seconds of an idle core, once in five."""
    most = limit * SLACK
    return any((taken := seconds(work)) < most or taken < most * slowness() for _ in range(TRIES))


def grows_linearly(work: Callable[[], object], longer: Callable[[], object], *, limit: float, times: float) -> bool:
    """Whether `longer` takes little more than `times` as long as `work` (and 50 ms), and than `limit` seconds as above.

    `times` is to be less than half of what a square would be.
    """
    most = limit * SLACK
    for _ in range(TRIES):
        taken = seconds(longer)
        grows = taken < 0.05 or taken < 2 * times * seconds(work) + 0.05
        if grows and (taken < most or taken < most * slowness()):
            return True
    return False

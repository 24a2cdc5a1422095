"""The speed of this machine at the moment, by which limits in seconds are stretched on a busy one."""

from __future__ import annotations

import re
import time

_IDLE_SECONDS = 0.0113
"""The processor time of the work of `slowness` on an idle core of 2024."""


def slowness() -> float:
    """Return the processor time of a fixed piece of work, as a multiple of that on an idle core."""
    start = time.thread_time()
    sum(match.end() for match in re.finditer(rb"\w++", b"ab, cd: (ef) {x} " * 10_000))
    return (time.thread_time() - start) / _IDLE_SECONDS

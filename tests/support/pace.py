"""How fast this machine is just now: what makes a limit in seconds hold on a busy one."""

from __future__ import annotations

import re
import time

_IDLE_SECONDS = 0.0113
"""What the work below takes on an idle core of 2024."""


def slowness() -> float:
    """How much longer a fixed piece of work takes here and now."""
    start = time.thread_time()
    sum(found.end() for found in re.finditer(rb"\w++", b"ab, cd: (ef) {x} " * 10_000))
    return (time.thread_time() - start) / _IDLE_SECONDS

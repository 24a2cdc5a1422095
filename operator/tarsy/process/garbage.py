"""The garbage collector of a process that keeps most of what it builds."""

from __future__ import annotations

import gc

COLLECTED_AFTER = 20_000
"""Containers made and not freed since the last look for cycles. Python's own 700 are reached once an iteration."""


def keep_for_good() -> None:
    """Take what was imported and built for good out of the garbage collector's sight."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTED_AFTER, *gc.get_threshold()[1:])

"""Counts of executed lines: the amount of work, which is the same on every machine, however busy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

GROWTH_MAX = 2.2
"""Lines for an input of twice the size, by those for the input itself, up to which growth counts as linear."""
FIXED = 500
"""Lines that may come on top, such as those of a threshold that only the larger input exceeds."""


def count(work: Callable[[], object], *, packages: tuple[str, ...] = ("tarsy",)) -> int:
    """Return how many lines of Python `work` executes in this thread in modules of `packages`, loops included.

    Work in C (`re`, RE2, `str`) counts as the line that calls it: `make bench` measures how its time grows.
    """
    lines = 0

    def trace_lines(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
        return trace_lines

    def trace_calls(frame: FrameType, _event: str, _argument: Any) -> Any:
        return trace_lines if frame.f_globals.get("__name__", "").partition(".")[0] in packages else None

    before = sys.gettrace()
    sys.settrace(trace_calls)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


def grow_linearly(work: Callable[[T], object], single: T, double: T) -> bool:
    """Whether `work` takes about twice as many lines for `double` as for `single`, or fewer."""
    return count(lambda: work(double)) <= GROWTH_MAX * count(lambda: work(single)) + FIXED

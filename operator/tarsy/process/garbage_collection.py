"""Garbage collection: it skips objects that live as long as the process, and pauses during imports."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLD = 20_000
"""New containers between two collections. Python's default of 700 is reached once in each iteration."""


def freeze() -> None:
    """Exempt all present objects, which live as long as the process, from garbage collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(THRESHOLD, *gc.get_threshold()[1:])


@contextmanager
def paused() -> Iterator[None]:
    """Pause the process's garbage collection during an import, which takes a second and blocks other work."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

"""The time of an execution that makes several model calls at once: it stands still while none of them is at work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager


class ConcurrentWaits:
    """The calls of one execution that are under way together."""

    def __init__(self, still: Callable[[], AbstractContextManager[object]]) -> None:
        """`still` is entered for as long as the time stands still."""
        self._still = still
        self._entered = ExitStack()
        self._under_way = self._waiting = 0
        self._stands = False

    @contextmanager
    def call(self) -> Iterator[None]:
        """One of the calls, from its beginning to its end."""
        self._under_way += 1
        self._check()
        try:
            yield
        finally:
            self._under_way -= 1
            self._check()

    @contextmanager
    def pause_time(self) -> Iterator[None]:
        """Entered by one of them while it waits for the calls of others to end."""
        self._waiting += 1
        self._check()
        try:
            yield
        finally:
            self._waiting -= 1
            self._check()

    def _check(self) -> None:
        stands = 0 < self._waiting == self._under_way
        if stands and not self._stands:
            self._entered.enter_context(self._still())
        elif self._stands and not stands:
            self._entered.close()
        self._stands = stands

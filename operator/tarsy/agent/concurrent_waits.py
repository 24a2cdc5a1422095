"""Model calls of one execution that run side by side: its time is paused while all of them wait for a slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager


class ConcurrentWaits:
    """The calls that are under way, and those of them that wait."""

    def __init__(self, pause: Callable[[], AbstractContextManager[object]]) -> None:
        """`pause` is entered while the time of the execution is paused."""
        self._pause = pause
        self._entered = ExitStack()
        self._under_way = self._waiting = 0
        self._is_paused = False

    @contextmanager
    def call(self) -> Iterator[None]:
        """Entered by a call from its beginning to its end."""
        self._under_way += 1
        self._update()
        try:
            yield
        finally:
            self._under_way -= 1
            self._update()

    @contextmanager
    def pause_time(self) -> Iterator[None]:
        """Entered by a call while it waits; see `ports.Scope.pause_time`."""
        self._waiting += 1
        self._update()
        try:
            yield
        finally:
            self._waiting -= 1
            self._update()

    def _update(self) -> None:
        all_wait = 0 < self._waiting == self._under_way
        if all_wait and not self._is_paused:
            self._entered.enter_context(self._pause())
        elif self._is_paused and not all_wait:
            self._entered.close()
        self._is_paused = all_wait

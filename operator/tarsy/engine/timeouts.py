"""The time limit of an agent, which is paused while the agent waits for a slot of its provider."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from tarsy.agent import loop


class PausableTimeout:
    """A time limit in seconds for one coroutine."""

    def __init__(self, seconds: float | None) -> None:
        """`seconds` None is no limit."""
        self.paused_seconds = 0.0
        """Seconds for which it was paused."""
        self._seconds = seconds
        self._limit = asyncio.Timeout(None)

    async def run(self, work: Callable[[PausableTimeout], Coroutine[Any, Any, None]]) -> bool:
        """Run `work`, which gets this limit; return False if the time was over before it was done.

        A cancellation from outside is never taken for the end of the time, even if both come at once.
        """
        self._limit = asyncio.timeout(self._seconds)
        try:
            async with self._limit:
                await loop.side_by_side([work(self)])  # its own task: a second cancel spares its clean-up
        except TimeoutError:  # by the limit: what `work` raises comes in a group
            return False
        return True

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Let no time pass inside the block."""
        if (end := self._limit.when()) is None or self._limit.expired():
            yield
            return
        now = asyncio.get_running_loop().time
        began = now()
        self._limit.reschedule(None)
        try:
            yield
        finally:
            seconds = now() - began
            self.paused_seconds += seconds
            self._limit.reschedule(end + seconds)

"""The time of one agent, which stands still while it waits for what others keep busy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from tarsy.agent import loop


class PausableTimeout:
    """Some seconds for the work of one agent."""

    def __init__(self, seconds: float | None) -> None:
        """`seconds` of work; None is no limit."""
        self.waited = 0.0
        """Seconds in which it stood still."""
        self._seconds = seconds
        self._limit = asyncio.Timeout(None)

    async def run(self, work: Callable[[PausableTimeout], Coroutine[Any, Any, None]]) -> bool:
        """Do the work, which is given this timer; False where the time was over before it was done.

        A cancellation from outside is never taken for the end of the time, even where both come at once.
        """
        self._limit = asyncio.timeout(self._seconds)
        try:
            async with self._limit:
                await loop.side_by_side([work(self)])  # a task of its own: a second cancel spares its cleaning up
        except TimeoutError:  # the limit's: what the work raises comes in a group
            return False
        return True

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Let no time pass for as long as the block takes."""
        if (end := self._limit.when()) is None or self._limit.expired():
            yield
            return
        now = asyncio.get_running_loop().time
        began = now()
        self._limit.reschedule(None)
        try:
            yield
        finally:
            waited = now() - began
            self.waited += waited
            self._limit.reschedule(end + waited)

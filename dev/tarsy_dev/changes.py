"""Waiting for a condition without sleeping.

The servers of this package tell a `Changes` whenever something that can be observed has changed; the condition of each
waiter is checked again then, and only then. Polling would be simpler and either slow or busy; an `asyncio.Event` per
condition would have to exist before the test knows what it is going to wait for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tarsy_dev import patience

T = TypeVar("T")


class Changes:
    """Wakes those that wait, in the event loop of the server that owns it."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def happened(self) -> None:
        """Something changed: every condition that is waited for is looked at again."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def until(self, condition: Callable[[], T | None], *, timeout: float, state: Callable[[], str]) -> T:
        """Wait until `condition()` is true (or anything truthy) and return what it returned.

        After `timeout` seconds: TooLong, with `state()` in its message.
        """
        try:
            async with patience.limit("a condition", seconds=timeout):
                while not (value := condition()):
                    await self._next()
                return value
        except patience.TooLong as error:
            raise patience.TooLong(f"{error}; the state then: {state()}") from None

    async def _next(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)

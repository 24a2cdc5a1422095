"""A queue of keys: a key is in it at most once, is never handled twice at once, and is retried with growing delays.

It works like client-go's workqueue: a key that is added while it is handled is handled again afterwards. So the last
change is never missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from tarsy import errors

K = TypeVar("K", bound=Hashable)

FIRST_DELAY = 0.2  # seconds; doubled with each failure of the key
LONGEST_DELAY = 30.0  # seconds

log = logging.getLogger(__name__)


class LaterError(Exception):
    """The key cannot be handled yet; it is handled again after `seconds`. This is not a failure."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"again in {seconds:g} s")
        self.seconds = seconds


class WorkQueue(Generic[K]):
    """Keys to be handled, on one event loop."""

    def __init__(self, handle: Callable[[K], Awaitable[None]], *, workers: int) -> None:
        """`handle` is called for each key, at most `workers` times at once. After an error the key is retried.

        A TemporaryError is logged as a warning; any other error is a defect and is logged with its traceback.
        """
        self._handle = handle
        self._workers = workers
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._waiting: set[K] = set()
        self._handling: set[K] = set()
        self._again: set[K] = set()
        self._failures: dict[K, int] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}

    def add(self, key: K) -> None:
        """Handle `key` soon, even if it waits for a retry."""
        if timer := self._timers.pop(key, None):
            timer.cancel()
        if key in self._handling:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def ensure(self, key: K) -> None:
        """Handle `key`, unless it is being handled or waits for a retry."""
        if key not in self._timers and key not in self._handling:
            self.add(key)

    async def run(self) -> None:
        """Handle keys until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            key = await self._ready.get()
            self._waiting.discard(key)
            self._handling.add(key)
            delay = await self._try(key)
            self._handling.discard(key)
            if key in self._again:
                self._again.discard(key)
                self.add(key)
            elif delay is not None:
                self._timers[key] = loop.call_later(delay, self.add, key)

    async def _try(self, key: K) -> float | None:
        """Handle `key` once; return the seconds until the retry, or None if there is none."""
        try:
            await self._handle(key)
        except LaterError as later:
            return later.seconds
        except Exception as error:  # an error of one key must not stop the others
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            delay: float = min(FIRST_DELAY * 2.0 ** min(failures - 1, 30), LONGEST_DELAY)
            expected = isinstance(error, errors.TemporaryError)
            log.log(
                logging.WARNING if expected else logging.ERROR,
                "%s: %s; again in %.1f s",
                key,
                str(error) or type(error).__name__,
                delay,
                exc_info=not expected,
                extra={"action": "requeued"},
            )
            return delay
        self._failures.pop(key, None)
        return None

"""Health of MCP servers: whether a server answers calls or checks, and the wait for one that cannot be reached."""

from __future__ import annotations

import asyncio
import functools
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeAlias, TypeVar

import mcp

from tarsy.config.model import server_transports
from tarsy.tools.transports import remote, stdio

T = TypeVar("T")

AWAY_SECONDS = 5.0
"""The seconds that one execution waits, over all its calls, for a server that cannot be reached."""
UNANSWERED = 2
"""Calls in a row without an answer in time, after which a server is checked even while it is in use."""
SILENCES = 2
"""Silent checks in a row, after which a server that has answered before counts as gone; it may be busy until then."""
HUNG_SILENCES = 4
"""Silent checks in a row, after which a child process is ended."""

Check: TypeAlias = Callable[[], Awaitable[bool | None]]
"""Returns whether a server answers; None means that it is silent."""


@asynccontextmanager
async def checker(transport: server_transports.Transport, client: mcp.Client) -> AsyncIterator[Check]:
    """A check of the server behind `transport`, to which `client` is connected."""
    if isinstance(transport, server_transports.RemoteTransport):
        async with remote.checker(transport) as check:
            yield check
    else:
        yield functools.partial(stdio.is_answering, client)


async def check_unless(broken: asyncio.Event, check: Check) -> bool | None:
    """The result of a check; None if the connection breaks first, which cancels the check."""
    checking = asyncio.ensure_future(check())
    breaking = asyncio.ensure_future(broken.wait())
    try:
        await asyncio.wait((checking, breaking), return_when=asyncio.FIRST_COMPLETED)
        return checking.result() if checking.done() else None
    finally:
        checking.cancel()
        breaking.cancel()
        await asyncio.gather(checking, breaking, return_exceptions=True)


class Calls:
    """The calls to one server over one connection."""

    def __init__(self) -> None:
        self.in_flight = 0
        self._unanswered = 0
        """Calls in a row without an answer in time."""
        self._waiting: set[asyncio.Timeout] = set()

    @property
    def would_notice(self) -> bool:
        """Whether current calls would notice that the server is gone, so that no check is needed."""
        return self.in_flight > 0 and self._unanswered < UNANSWERED

    async def acquire(self, slots: asyncio.Semaphore, seconds: float) -> None:
        """Take one of `slots`. Raises TimeoutError if none is free in time, or after `cancel_waits`."""
        async with asyncio.timeout(seconds) as deadline:
            self._waiting.add(deadline)
            try:
                await slots.acquire()
            finally:
                self._waiting.remove(deadline)

    def cancel_waits(self) -> None:
        """End all waits for a slot."""
        for deadline in self._waiting:
            if not deadline.expired():
                deadline.reschedule(0.0)

    @contextmanager
    def track(self) -> Iterator[None]:
        """Count a call. A TimeoutError in this block means that the call got no answer in time."""
        self.in_flight += 1
        try:
            yield
            self.record_answer()
        except TimeoutError:
            self._unanswered += 1
            raise
        finally:
            self.in_flight -= 1

    def record_answer(self) -> None:
        """Record that the server has answered a call or a check."""
        self._unanswered = 0


class AwayWait:
    """The time that one execution still waits for each server that cannot be reached."""

    def __init__(self) -> None:
        self._left: defaultdict[str, float] = defaultdict(lambda: AWAY_SECONDS)

    async def wait(self, server: str, connected: Callable[[], Awaitable[T]]) -> T | None:
        """The result of `connected`, or None if the time for this server is used up; parallel waits count once."""
        clock = asyncio.get_running_loop().time
        left, began = self._left[server], clock()
        try:
            async with asyncio.timeout(left):
                return await connected()
        except TimeoutError:
            return None
        finally:
            self._left[server] = max(0.0, min(self._left[server], left - (clock() - began)))

"""Whether an MCP server is still there: what its calls tell of it, and what a look does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TypeAlias

import mcp

from tarsy.config.model import platforms
from tarsy.tools.transports import remote, stdio

UNANSWERED = 2
"""Calls in a row that got no answer in time, from which on a server is looked at though it is called."""
SILENCES = 2
"""Looks in a row at which a server that has answered before is silent, until it counts as gone: it may be busy."""
HUNG_SILENCES = 4
"""Looks in a row at which a program of ours is silent, until it is ended."""

Look: TypeAlias = Callable[[], Awaitable[bool | None]]
"""Whether a server is there; None is silence."""


def at(transport: platforms.Transport, client: mcp.Client) -> AbstractAsyncContextManager[Look]:
    """The look at the server that is reached so, which `client` is connected to."""
    if isinstance(transport, platforms.RemoteTransport):
        return remote.looking(transport)
    return stdio.looking(client)


async def unless(broken: asyncio.Event, look: Look) -> bool | None:
    """Return the result of a look; None if the connection breaks meanwhile, which ends it."""
    looking = asyncio.ensure_future(look())
    breaking = asyncio.ensure_future(broken.wait())
    try:
        await asyncio.wait((looking, breaking), return_when=asyncio.FIRST_COMPLETED)
        return looking.result() if looking.done() else None
    finally:
        looking.cancel()
        breaking.cancel()
        await asyncio.gather(looking, breaking, return_exceptions=True)


class Calls:
    """The calls to one server over one connection."""

    def __init__(self) -> None:
        self.under_way = 0
        """Those that were sent and have no answer yet."""
        self._unanswered = 0
        """Those in a row that got none in time."""
        self._waiting: set[asyncio.Timeout] = set()

    @property
    def tell(self) -> bool:
        """Whether callers notice by themselves that the server is gone, and might be cut off for nothing."""
        return self.under_way > 0 and self._unanswered < UNANSWERED

    async def turn(self, slots: asyncio.Semaphore, seconds: float) -> None:
        """Take one of `slots`; raises TimeoutError if none is free in time, or once calls are turned away."""
        async with asyncio.timeout(seconds) as deadline:
            self._waiting.add(deadline)
            try:
                await slots.acquire()
            finally:
                self._waiting.remove(deadline)

    def turn_away(self) -> None:
        """End the wait of all callers."""
        for deadline in self._waiting:
            if not deadline.expired():
                deadline.reschedule(0.0)

    @contextmanager
    def one(self) -> Iterator[None]:
        """A call, while it is entered; a TimeoutError in it says that it got no answer in time."""
        self.under_way += 1
        try:
            yield
            self.answered()
        except TimeoutError:
            self._unanswered += 1
            raise
        finally:
            self.under_way -= 1

    def answered(self) -> None:
        """Say that the server has answered something."""
        self._unanswered = 0

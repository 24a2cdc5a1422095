"""Waiting for what nothing tells: a plain attribute, a process that ends, a row, an object of the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tarsy_dev import patience


async def until(ready: Callable[[], bool]) -> None:
    """Return once `ready` is true; TooLong if it never is."""
    async with patience.limit():
        while not ready():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.01)


async def seen(look: Callable[[], Awaitable[bool]]) -> None:
    """The same where a look is a request.

    Looks without a pause would take the processor from the parts that bring about what is waited for.
    """
    async with patience.limit():
        while not await look():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.01)

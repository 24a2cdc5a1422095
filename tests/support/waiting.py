"""Waiting for what nothing tells: a plain attribute, a process that ends, a row, an object of the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


async def until(ready: Callable[[], bool], *, seconds: float = 120) -> None:
    """Return once `ready` says so; a TimeoutError after so many seconds."""
    async with asyncio.timeout(seconds):
        while not ready():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.01)


async def seen(look: Callable[[], Awaitable[bool]], *, seconds: float = 60) -> None:
    """The same where a look is a request.

    Looks without a pause would take the processor from the parts that bring about what is waited for.
    """
    async with asyncio.timeout(seconds):
        while not await look():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.01)

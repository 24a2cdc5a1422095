"""Waiting for what nothing tells: a plain attribute, a process that ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(ready: Callable[[], bool], *, seconds: float = 60) -> None:
    """Return once `ready` says so; a TimeoutError after so many seconds."""
    async with asyncio.timeout(seconds):
        while not ready():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.01)

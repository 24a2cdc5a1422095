"""Supervision of the parts of a process: if a part ends by itself, the process ends.

An operator that has lost a part unnoticed is worse than one that restarts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

Part = Callable[[], Coroutine[Any, Any, None]]


class PartEndedError(Exception):
    """A part of the process has ended by itself."""


async def supervise(*, ground: Iterable[Part], roles: Iterable[Part]) -> None:
    """Run all parts until cancelled; `roles` stop before the `ground` that they need.

    A part that ends by itself ends all parts, with its error, or with a PartEndedError if it had none.
    """
    async with asyncio.TaskGroup() as below:
        for part in ground:
            below.create_task(endless(part))
        async with asyncio.TaskGroup() as above:
            for part in roles:
                above.create_task(endless(part))


async def endless(part: Part) -> None:
    """Run a part. Raises PartEndedError if it returns."""
    await part()
    raise PartEndedError(f"{getattr(part, '__qualname__', part)} ended by itself")


async def stand_for(task: asyncio.Future[None]) -> None:
    """Wait for `task`; a cancelled caller cancels it."""
    await task

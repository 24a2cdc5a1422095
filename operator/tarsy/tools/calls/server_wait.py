"""How long one execution waits for servers that are away: so long once, and not with each of its calls."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

AWAY_SECONDS = 5.0
"""For each server, in all; who waits for several, or with several calls, waits for them at once."""


class Patience:
    """The wait for servers that is left to an execution."""

    def __init__(self) -> None:
        self._left: defaultdict[str, float] = defaultdict(lambda: AWAY_SECONDS)

    async def wait(self, name: str, there: Callable[[], Awaitable[T]]) -> T | None:
        """Return the result of `there`, or None if the server of that name has been waited for long enough."""
        clock = asyncio.get_running_loop().time
        left, began = self._left[name], clock()
        try:
            async with asyncio.timeout(left):
                return await there()
        except TimeoutError:
            return None
        finally:
            self._left[name] = max(0.0, min(self._left[name], left - (clock() - began)))

"""Slots: a semaphore whose limit can change while slots are in use."""

from __future__ import annotations

import asyncio
from typing import Literal


class Slots(asyncio.Semaphore):
    """A limited number of slots, taken in order of arrival."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit
        self._surplus = 0
        """Slots in excess of a limit that was lowered."""

    async def acquire(self) -> Literal[True]:
        """Wait for a slot and take it."""
        await super().acquire()
        while self._surplus:  # a surplus slot is withdrawn, not taken
            self._surplus -= 1
            await super().acquire()
        return True

    def release(self) -> None:
        """Free a slot."""
        if self._surplus:
            self._surplus -= 1
        else:
            super().release()

    def set_limit(self, limit: int) -> None:
        """Change the limit. Slots in use beyond it stay in use until they are released."""
        self._surplus += self.limit - limit
        self.limit = limit
        while self._surplus < 0:
            self._surplus += 1
            super().release()

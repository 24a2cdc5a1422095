"""Slots: a limit of simultaneous users in order of arrival, which may change while slots are in use."""

from __future__ import annotations

import asyncio
from typing import Literal


class Slots(asyncio.Semaphore):
    """A limited number of slots."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.most = most
        self._surplus = 0
        """How many there are more than there may be."""

    async def acquire(self) -> Literal[True]:
        """Take one, once there is one."""
        await super().acquire()
        while self._surplus:  # this one is none any more
            self._surplus -= 1
            await super().acquire()
        return True

    def release(self) -> None:
        """Give one back."""
        if self._surplus:
            self._surplus -= 1
        else:
            super().release()

    def allow(self, most: int) -> None:
        """Have so many from now on; what is in use beyond that stays so until it is given back."""
        self._surplus += self.most - most
        self.most = most
        while self._surplus < 0:
            self._surplus += 1
            super().release()

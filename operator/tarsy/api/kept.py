"""Answers that are kept for a while, because they are asked for with every request.

Each is asked for once by all who want it at that moment. A yes and a no are kept apart, so that whoever is refused over
and over crowds out nobody who is let in. An error is no answer: it is told to those who wait for it, and not kept.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Generic, TypeVar

MOST = 2048
"""Answers of each sort that are kept, the latest."""
AT_ONCE = 32
"""Questions under way; more wait, so that there are connections left for what else is asked of the same server."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Answer(Generic[T]):
    """What came of a question."""

    found: T | None
    """None is a no."""
    seconds: float
    """How long it holds, from when it was asked."""


class Kept(Generic[T]):
    """Answers to one sort of question, by what tells one question from others."""

    def __init__(self, *, within: float, clock: Callable[[], float] = time.monotonic) -> None:
        """A question is given up `within` seconds, its wait for its turn included; `clock` tells seconds that rise."""
        self._within = within
        self._clock = clock
        self._yes: OrderedDict[bytes, tuple[Answer[T], float]] = OrderedDict()
        self._no: OrderedDict[bytes, tuple[Answer[T], float]] = OrderedDict()
        self._under_way: dict[bytes, asyncio.Task[Answer[T]]] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)

    def known(self, key: bytes) -> T | None:
        """The yes that still holds."""
        answer = self._fresh(self._yes, key)
        return answer.found if answer else None

    async def get(self, key: bytes, ask: Callable[[], Awaitable[Answer[T]]]) -> T | None:
        """The answer that still holds, else that to `ask`, whose errors go on; a TimeoutError where it takes long."""
        answer = self._fresh(self._yes, key) or self._fresh(self._no, key)
        if answer is None:
            if key not in self._under_way:  # in a context of its own: whoever asks first may give up
                self._under_way[key] = asyncio.create_task(self._ask(key, ask), context=Context())
                self._under_way[key].add_done_callback(_heard)
            answer = await asyncio.shield(self._under_way[key])
        return answer.found

    async def _ask(self, key: bytes, ask: Callable[[], Awaitable[Answer[T]]]) -> Answer[T]:
        try:
            async with asyncio.timeout(self._within), self._turns:
                asked = self._clock()
                answer = await ask()
        finally:
            del self._under_way[key]
        kept = self._no if answer.found is None else self._yes
        kept.pop(key, None)
        kept[key] = answer, asked + answer.seconds
        if len(kept) > MOST:
            kept.popitem(last=False)
        return answer

    def _fresh(self, kept: OrderedDict[bytes, tuple[Answer[T], float]], key: bytes) -> Answer[T] | None:
        answer, until = kept.get(key, (None, 0.0))
        if answer is None or self._clock() >= until:
            kept.pop(key, None)
            return None
        kept.move_to_end(key)
        return answer


def _heard(task: asyncio.Task[Answer[T]]) -> None:
    """Its error has been told, or all who waited for it have gone."""
    if not task.cancelled():
        task.exception()

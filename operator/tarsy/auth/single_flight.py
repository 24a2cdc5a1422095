"""A single-flight cache of answers that every request needs.

All simultaneous callers share one lookup. A positive answer that is used in the last third of its time is renewed
meanwhile, so that known callers do not wait in a queue with unknown ones. Positive and negative answers are stored
apart, so that a caller who is refused over and over displaces no accepted one. An error is no answer: waiting callers
get it, and it is not stored.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

MOST = 2048
"""Answers of each sort that are kept, the latest."""
AT_ONCE = 32
"""Questions under way; more wait, so that there are connections left for what else is asked of the same server."""
OF_ONE = 4
"""The lookups for one caller at a time: several other callers are needed before any has to wait."""
RENEWED_AT_ONCE = 8
"""Questions under way about what is known; they have turns of their own."""
RENEWED = 2 / 3
"""The share of its time after which a positive answer is renewed when it is used."""

T = TypeVar("T")
Ask = Callable[[], Awaitable["Answer[T]"]]


@dataclass(frozen=True, kw_only=True)
class Answer(Generic[T]):
    """The outcome of a lookup."""

    found: T | None
    """None is a no."""
    seconds: float
    """How long it holds, from when it was asked."""


@dataclass(kw_only=True)
class _Holding(Generic[T]):
    found: T | None
    until: float
    renewed: float
    """From then on its use has it asked for again."""


class Kept(Generic[T]):
    """Answers to one sort of question, by what tells one question from others."""

    def __init__(self, *, within: float, clock: Callable[[], float] = time.monotonic) -> None:
        """A question is given up `within` seconds, its wait for its turn included; `clock` tells seconds that rise."""
        self._within = within
        self._clock = clock
        self._yes: OrderedDict[bytes, _Holding[T]] = OrderedDict()
        self._no: OrderedDict[bytes, _Holding[T]] = OrderedDict()
        self._under_way: dict[bytes, asyncio.Task[T | None]] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._of_one: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._renewals = asyncio.Semaphore(RENEWED_AT_ONCE)

    def held(self, key: bytes, ask: Ask[T]) -> T | None:
        """Return the positive answer that still holds; `ask` renews an old one, in the background."""
        held = self._fresh(self._yes, key)
        if held is None:
            return None
        now = self._clock()
        if now >= held.renewed and key not in self._under_way:
            held.renewed = (now + held.until) / 2  # where it brings nothing
            self._begin(key, ask, waiting=self._renewals)
        return held.found

    async def get(self, key: bytes, ask: Ask[T], *, by: str) -> T | None:
        """The answer that still holds, else that to `ask`, whose errors go on; a TimeoutError where it takes long.

        `by` is who asks, as far as that is known: they have so many turns, whatever they ask.
        """
        if (held := self.held(key, ask)) is not None:
            return held
        if self._fresh(self._no, key):
            return None
        if key not in self._under_way:
            self._begin(key, ask, waiting=self._turn(by))
        return await asyncio.shield(self._under_way[key])

    def _begin(self, key: bytes, ask: Ask[T], *, waiting: AbstractAsyncContextManager[None]) -> None:
        asking = self._ask(key, ask, waiting=waiting)
        task = asyncio.create_task(asking, context=Context())  # of its own: the first caller may give up
        self._under_way[key] = task
        task.add_done_callback(_heard)

    async def _ask(self, key: bytes, ask: Ask[T], *, waiting: AbstractAsyncContextManager[None]) -> T | None:
        try:
            async with asyncio.timeout(self._within), waiting:
                asked = self._clock()
                answer = await ask()
        finally:
            del self._under_way[key]
        holding = self._no if answer.found is None else self._yes
        for either in (self._no, self._yes):
            either.pop(key, None)
        holding[key] = _Holding(
            found=answer.found, until=asked + answer.seconds, renewed=asked + answer.seconds * RENEWED
        )
        if len(holding) > MOST:
            holding.popitem(last=False)
        return answer.found

    @asynccontextmanager
    async def _turn(self, by: str) -> AsyncIterator[None]:
        theirs = self._of_one.setdefault(by, asyncio.Semaphore(OF_ONE))  # there as long as a caller holds it
        async with theirs, self._turns:
            yield

    def _fresh(self, holding: OrderedDict[bytes, _Holding[T]], key: bytes) -> _Holding[T] | None:
        answer = holding.get(key)
        if answer is None or self._clock() >= answer.until:
            holding.pop(key, None)
            return None
        holding.move_to_end(key)
        return answer


def _heard(task: asyncio.Task[T | None]) -> None:
    """Its error has been told, or all who waited for it have gone."""
    if not task.cancelled():
        task.exception()

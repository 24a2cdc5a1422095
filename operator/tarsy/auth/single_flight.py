"""A single-flight cache of answers that every request needs.

All simultaneous callers share one lookup. A positive answer that is used in the last third of its time is looked up
again meanwhile, so that known callers do not wait in a queue with unknown ones. Positive and negative answers are
stored apart, so that repeated refusals displace no positive answer. An error is not an answer: waiting callers get it,
and it is not stored.
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

ANSWERS_MAX = 2048
"""The number of positive answers that are stored, the latest ones; as many negative answers are stored."""
LOOKUPS_MAX = 32
"""Concurrent lookups; further ones wait, so that other requests to the same server find a connection."""
LOOKUPS_PER_CALLER = 4
"""Concurrent lookups for one caller, so that no single caller makes the others wait."""
RENEWALS_MAX = 8
"""Concurrent lookups that renew stored answers; they do not wait with the others."""
RENEWED_AFTER = 2 / 3
"""The share of its time after which a positive answer is looked up again when it is used."""

T = TypeVar("T")
Lookup = Callable[[], Awaitable["Answer[T]"]]


@dataclass(frozen=True, kw_only=True)
class Answer(Generic[T]):
    """The outcome of a lookup."""

    value: T | None
    """None is a negative answer."""
    seconds: float
    """How long the answer is valid, from the start of the lookup."""


@dataclass(kw_only=True)
class _Stored(Generic[T]):
    value: T | None
    until: float
    renewed: float
    """The time after which a use of the answer starts another lookup."""


class Cache(Generic[T]):
    """Answers to one kind of lookup, by a key."""

    def __init__(
        self, *, within: float, per_caller: int = LOOKUPS_PER_CALLER, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """A lookup fails after `within` seconds, its wait included; `clock` is monotonic, in seconds.

        `per_caller` lookups for one caller are under way at once.
        """
        self._within = within
        self._per_caller = per_caller
        self._clock = clock
        self._positive: OrderedDict[bytes, _Stored[T]] = OrderedDict()
        self._negative: OrderedDict[bytes, _Stored[T]] = OrderedDict()
        self._under_way: dict[bytes, asyncio.Task[T | None]] = {}
        self._slots = asyncio.Semaphore(LOOKUPS_MAX)
        self._caller_slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._renewal_slots = asyncio.Semaphore(RENEWALS_MAX)

    def cached(self, key: bytes, look_up: Lookup[T]) -> T | None:
        """Return the positive answer that is stored; `look_up` renews an old one in the background."""
        stored = self._valid(self._positive, key)
        if stored is None:
            return None
        now = self._clock()
        if now >= stored.renewed and key not in self._under_way:
            stored.renewed = (now + stored.until) / 2  # the next try, if this one fails
            self._start(key, look_up, slot=self._renewal_slots)
        return stored.value

    async def get(self, key: bytes, look_up: Lookup[T], *, caller: str) -> T | None:
        """Return the stored answer, else that of `look_up`. Raises its errors, and TimeoutError.

        `caller` is an identity or address, whose lookups are limited.
        """
        if (value := self.cached(key, look_up)) is not None:
            return value
        if self._valid(self._negative, key):
            return None
        if key not in self._under_way:
            self._start(key, look_up, slot=self._slot(caller))
        return await asyncio.shield(self._under_way[key])

    def _start(self, key: bytes, look_up: Lookup[T], *, slot: AbstractAsyncContextManager[None]) -> None:
        lookup = self._look_up(key, look_up, slot=slot)
        task = asyncio.create_task(lookup, context=Context())  # a task of its own: the first caller may be cancelled
        self._under_way[key] = task
        # The error is retrieved here, because every waiter may have been cancelled.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _look_up(self, key: bytes, look_up: Lookup[T], *, slot: AbstractAsyncContextManager[None]) -> T | None:
        try:
            async with asyncio.timeout(self._within), slot:
                began = self._clock()
                answer = await look_up()
        finally:
            del self._under_way[key]
        self._negative.pop(key, None)
        self._positive.pop(key, None)
        answers = self._negative if answer.value is None else self._positive
        answers[key] = _Stored(
            value=answer.value, until=began + answer.seconds, renewed=began + answer.seconds * RENEWED_AFTER
        )
        if len(answers) > ANSWERS_MAX:
            answers.popitem(last=False)
        return answer.value

    @asynccontextmanager
    async def _slot(self, caller: str) -> AsyncIterator[None]:
        caller_slots = self._caller_slots.setdefault(caller, asyncio.Semaphore(self._per_caller))
        async with caller_slots, self._slots:
            yield

    def _valid(self, answers: OrderedDict[bytes, _Stored[T]], key: bytes) -> _Stored[T] | None:
        answer = answers.get(key)
        if answer is None or self._clock() >= answer.until:
            answers.pop(key, None)
            return None
        answers.move_to_end(key)
        return answer

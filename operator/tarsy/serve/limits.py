"""Limits for requests: the rate of each caller, the requests that are served at once, and the bytes held for them."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

from tarsy.serve import problems

CALLERS_MAX = 20_000
"""The number of callers whose rates are stored, the latest ones; any other starts with a full bucket."""
PREFIX = 64
"""The bits of an IPv6 address that identify a network: its owner can use all addresses in it."""


def at_end_of_request(do: Callable[[], object]) -> None:
    """Call `do` when the current request has been answered, or its client has gone."""
    task = asyncio.current_task()
    assert task  # noqa: S101 - each request has a task of its own
    task.add_done_callback(lambda _: do())


class HeldBytes:
    """The bytes that all requests under way hold."""

    def __init__(self) -> None:
        self.held = 0

    def hold(self, size: int, *, limit: int, refusal: str) -> None:
        """Hold so many bytes until the current request ends. Raises a Problem (503) with `refusal` beyond `limit`."""
        if self.held + max(size, 1) > limit:
            raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, refusal, headers={"Retry-After": "1"})
        self.held += size

        def release() -> None:
            self.held -= size

        at_end_of_request(release)


class Gate:
    """Lets requests through while there are slots for them; the others wait, in order of arrival."""

    def __init__(self, slots: int) -> None:
        self._slots = asyncio.Semaphore(slots)
        self._first = asyncio.Lock()
        """Held by the first that waits: of two that need many slots, each could wait for those that the other has."""

    @asynccontextmanager
    async def slot(self, *, seconds: float, refusal: str, slots: int = 1) -> AsyncIterator[None]:
        """Hold `slots` of them. Raises a Problem (503) with `refusal` if they are not free within `seconds`."""
        held = 0
        try:
            try:
                async with asyncio.timeout(seconds), self._first:
                    while held < slots:
                        await self._slots.acquire()
                        held += 1
            except TimeoutError:
                headers = {"Retry-After": str(math.ceil(seconds))}
                raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, refusal, headers=headers) from None
            yield
        finally:
            for _ in range(held):
                self._slots.release()


class Rates:
    """The rates of callers in this process: a bucket of requests for each, which refills over time."""

    def __init__(self, *, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is monotonic, in seconds."""
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """The requests left for each caller, and the time at which they were counted."""

    def take(self, caller: str) -> float:
        """Take one request from the caller's bucket. Return 0, or if it is empty the seconds until the next request."""
        left, now = self._bucket(caller)
        missing = max(0.0, 1.0 - left)
        self._buckets.pop(caller, None)
        self._buckets[caller] = (left if missing else left - 1.0, now)
        if len(self._buckets) > CALLERS_MAX:
            self._buckets.popitem(last=False)
        return missing / self._per_second

    def give_back(self, caller: str) -> None:
        """Undo a successful `take`."""
        left, now = self._bucket(caller)
        self._buckets[caller] = (min(self._burst, left + 1.0), now)

    def _bucket(self, caller: str) -> tuple[float, float]:
        """Return the requests left for a caller, and the time."""
        now = self._clock()
        left, then = self._buckets.get(caller, (float(self._burst), now))
        return min(self._burst, left + (now - then) * self._per_second), now


def network(address: str) -> str:
    """Return the network of an address, by which unknown callers are counted."""
    try:
        return str(ipaddress.IPv6Network((address.partition("%")[0], PREFIX), strict=False))
    except ValueError:  # of version 4, or no address
        return address

"""How fast providers are asked, by real rows: exact over processes, which are here databases of their own."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy
from hypothesis import given
from hypothesis import strategies as st
from support import queue
from support.database import behind_proxy
from tarsy.config.model import providers
from tarsy.store.base import databases
from tarsy.store.fleet import rate_limits
from tarsy.transcript import ports
from tarsy_dev import patience

WINDOW = 0.6
"""Seconds; what a minute is in production, where that is too long to wait for."""


def provider(*, requests: int | None = None, tokens: int | None = None) -> providers.Common:
    return providers.GoogleProvider(type="google", model="m", requests_per_minute=requests, tokens_per_minute=tokens)


def limited(
    database: databases.Database,
    *,
    name: str = "google",
    requests: int | None = None,
    tokens: int | None = None,
    window: float = rate_limits.WINDOW,
) -> rate_limits.RateLimits:
    settings = {name: provider(requests=requests, tokens=tokens), "free": provider()}
    return rate_limits.RateLimits(database, settings, window=window)


@pytest.fixture
async def second(migrated_url: str) -> AsyncIterator[databases.Database]:
    """The database as another process has it."""
    database = databases.Database(migrated_url)
    yield database
    await database.close()


# The pure part: against grants by their exact times, in a window that slides.


def naive(granted: Sequence[tuple[float, int]], *, at: float, tokens: int, limits: rate_limits.Limits) -> bool:
    """Whether a request may be granted at that moment, after those grants: their times and tokens."""
    within = [spent for when, spent in granted if at - when <= rate_limits.SECONDS]
    fits = limits.tokens is None or sum(within) + min(tokens, limits.tokens) <= limits.tokens
    return fits and (limits.requests is None or len(within) < limits.requests)


def counted(granted: Sequence[tuple[float, int]]) -> list[rate_limits.Grant]:
    return [rate_limits.Grant(second=math.floor(when), requests=1, tokens=spent) for when, spent in granted]


limits = st.builds(rate_limits.Limits, requests=st.none() | st.integers(1, 4), tokens=st.none() | st.integers(1, 100))
arrivals = st.lists(st.tuples(st.floats(0, 40) | st.floats(59, 61), st.integers(0, 150)), max_size=25)


@given(limits=limits, arrivals=arrivals, start=st.floats(0, 1000))
def test_request_that_waits_its_time_is_granted_and_no_window_exceeds_the_limit(
    limits: rate_limits.Limits, arrivals: list[tuple[float, int]], start: float
) -> None:
    now, granted = start, list[tuple[float, int]]()
    for after, tokens in arrivals:
        now += after
        waited = rate_limits.until_admitted(limits, counted(granted), now=now, tokens=tokens)
        again = now + waited
        assert limits.admit(counted(granted), second=round(again) if waited else math.floor(now), tokens=tokens)
        assert naive(granted, at=again, tokens=tokens, limits=limits), "more than may be"
        if waited > 1:
            assert not naive(granted, at=again - 1.001, tokens=tokens, limits=limits), "it could have been earlier"
        now = again
        granted.append((now, tokens))


# The statement, on one database and on two.


async def hammered(
    *takers: rate_limits.RateLimits, name: str = "google", tokens: int = 0, times: int
) -> tuple[list[ports.Reservation], float]:
    """Return so many reservations granted to eight takers of each process, and how many seconds that took."""
    granted: list[ports.Reservation] = []

    async def keep_taking(taker: rate_limits.RateLimits) -> None:
        while len(granted) < times:
            granted.append(await taker.take(name, tokens))

    began = time.monotonic()
    async with patience.limit(), asyncio.TaskGroup() as group:
        for taker in takers:
            for _ in range(8):
                group.create_task(keep_taking(taker))
    return granted, time.monotonic() - began


def most_within_a_window(granted: Sequence[ports.Reservation]) -> int:
    """The most requests whose seconds may lie in one window."""
    seconds = sorted(reservation.second for reservation in granted)
    return max(bisect_right(seconds, second + rate_limits.SECONDS) - index for index, second in enumerate(seconds))


async def test_rate_limit_window_is_never_exceeded_across_processes(
    database: databases.Database, second: databases.Database
) -> None:
    by_requests = [limited(process, requests=10, window=WINDOW) for process in (database, second)]
    by_tokens = [limited(process, name="other", tokens=1000, window=WINDOW) for process in (database, second)]
    (requests, seconds), (tokens, longer) = await asyncio.gather(
        hammered(*by_requests, times=21), hammered(*by_tokens, name="other", tokens=150, times=13)
    )
    assert most_within_a_window(requests) <= 10
    assert len(requests) <= 10 * math.ceil(seconds / WINDOW)
    assert most_within_a_window(tokens) <= 1000 // 150
    assert len(tokens) <= 6 * math.ceil(longer / WINDOW)


class Told(logging.Handler):
    """Log handler that keeps what the throttle logs, to be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.put_nowait(vars(record))


@pytest.fixture
async def told() -> AsyncIterator[Told]:
    handler, level = Told(), rate_limits.log.level
    rate_limits.log.addHandler(handler)
    rate_limits.log.setLevel(logging.INFO)
    yield handler
    rate_limits.log.removeHandler(handler)
    rate_limits.log.setLevel(level)


async def refused(taker: rate_limits.RateLimits, handler: Told, tokens: int = 0) -> float:
    """Take, what has to wait; how many seconds it was told to. It is cancelled then."""
    waiting = asyncio.create_task(taker.take("google", tokens))
    async with patience.limit():
        line = await handler.lines.get()
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (line["action"], line["provider"]) == ("throttled", "google")
    return float(line["seconds"])


async def standing(database: databases.Database) -> tuple[int, int]:
    """The requests and the tokens that stand in the row."""
    summed = "SELECT sum(r), sum(t) FROM throttles, unnest(requests, tokens) AS granted (r, t)"
    ((requests, tokens),) = await queue.rows(database, summed)
    return int(requests), int(tokens)


async def age(database: databases.Database, seconds: int) -> None:
    """Let so many seconds pass for the row."""
    aged = "UPDATE throttles SET seconds = ARRAY(SELECT one - :by FROM unnest(seconds) AS one)"
    await queue.execute(database, aged, by=seconds)


async def test_refused_request_gets_its_wait_time_and_a_cancelled_request_leaves_no_trace(
    database: databases.Database, told: Told
) -> None:
    taker = limited(database, requests=3)
    for _ in range(3):
        await taker.take("google", 5)
    assert 45 < await refused(taker, told) <= 61
    await age(database, 40)
    assert 5 < await refused(taker, told, tokens=1000) <= 21
    assert await standing(database) == (3, 15)
    await age(database, 21)
    await taker.take("google", 7)
    assert await standing(database) == (1, 7), "what has left the window is not kept"


async def test_waiting_request_is_counted_when_it_is_granted(database: databases.Database) -> None:
    taker = limited(database, requests=5, window=WINDOW)
    await taker.take("google", 0)
    waits = (
        "SELECT count(*) FROM pg_stat_activity, pg_sleep(0.02) "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    clock = sqlalchemy.text("SELECT extract(epoch FROM clock_timestamp()) / CAST(:second AS double precision)")
    async with patience.limit():
        async with database.begin() as holder:
            await holder.execute(sqlalchemy.text("SELECT 1 FROM throttles FOR UPDATE"))
            waiting = asyncio.create_task(taker.take("google", 0))
            while await queue.rows(database, waits) != [(1,)]:
                pass
            released = await holder.scalar(clock, {"second": WINDOW / rate_limits.SECONDS})
        assert (await waiting).second >= math.floor(released)


async def test_requests_within_a_process_are_served_in_order(database: databases.Database) -> None:
    taker = limited(database, tokens=10, window=0.1)
    order: list[int] = []

    async def one(number: int, tokens: int) -> None:
        await taker.take("google", tokens)
        order.append(number)

    async with patience.limit(), asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(number, tokens)) for number, tokens in enumerate([10, 10, 1, 9, 1, 1])]
        await asyncio.sleep(0)
        tasks[4].cancel()
    assert order == [0, 1, 2, 3, 5]


async def test_request_with_more_tokens_than_the_limit_is_granted_when_the_window_is_empty(
    database: databases.Database, told: Told
) -> None:
    taker = limited(database, tokens=100)
    await taker.take("google", 1)
    assert await refused(taker, told, tokens=5000) > 45
    await age(database, 62)
    await taker.take("google", 5000)
    assert await refused(taker, told, tokens=0) > 45, "it counts for what it is"


async def test_tokens_that_were_not_spent_are_there_again_and_those_that_were_are_counted_from_then_on(
    database: databases.Database, told: Told
) -> None:
    taker = limited(database, tokens=100)
    first = await taker.take("google", 60)
    second = await taker.take("google", 40)
    taker.correct(first, 10)
    taker.correct(second, 0)
    third = await taker.take("google", 90)
    assert await refused(taker, told, tokens=1) > 45, "a correction counts once"
    assert await standing(database) == (3, 100)
    await age(database, 30)
    taker.correct(replace(third, second=third.second - 30, at=third.at - 30), 95)
    assert 15 < await refused(taker, told, tokens=10) <= 32
    assert await standing(database) == (3, 105)
    await age(database, 32)
    assert 12 < await refused(taker, told, tokens=96) <= 32, "what was more is of when it was known"
    await taker.take("google", 95)


async def test_corrections_subtract_no_more_than_counted_in_the_window(
    database: databases.Database, told: Told
) -> None:
    taker = limited(database, tokens=100)
    early = await taker.take("google", 100)
    await age(database, 62)
    late = await taker.take("google", 90)
    taker.correct(replace(early, second=early.second - 62), 0)
    assert await refused(taker, told, tokens=20) > 45
    for _ in range(3):
        taker.correct(late, 0)
    await taker.take("google", 100)
    assert await standing(database) == (2, 100)
    taker.correct(late, 10**30)
    assert await refused(taker, told) > 45, "and no number is too large for its column"


async def test_request_for_a_grant_waits_during_an_outage_and_can_be_cancelled(
    database: databases.Database, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limits, "RETRY_SECONDS", 0.0)
    async with behind_proxy(database.url) as (away, between):
        taker = limited(away, requests=2, tokens=100)
        taken = await taker.take("google", 50)
        between.refuse()
        between.cut()
        taker.correct(taken, 0)
        cancelled, waiting = (asyncio.create_task(taker.take("google", 60)) for _ in range(2))
        async with patience.limit():
            assert [(await told.lines.get())["action"] for _ in range(3)] == ["throttle_waits"] * 3
            cancelled.cancel()
            await asyncio.gather(cancelled, return_exceptions=True)
            assert not waiting.done()
            await age(database, 61)
            between.accept()
            assert (await waiting).tokens == 60
        assert await standing(database) == (1, 60)

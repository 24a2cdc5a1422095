"""Many subscribers that catch up at once over a real database: memory held, and runs that wait for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from uuid import UUID

import pytest
from support import queue, stories, watching
from tarsy.live import backlogs, hubs, investigation_feed, live_events
from tarsy.store.base import databases
from tarsy.store.reads import log_entries
from tarsy_dev import patience

CHUNK = 200 * 1024
LOGGED = 7
"""Entries of its log."""


@pytest.fixture
async def identity(database: databases.Database) -> UUID:
    """An investigation with five answers, each more than a page."""
    admitted = await queue.admit(database)
    journal = await queue.opened(database, await queue.claimed(database))
    await journal.commit(stories.stage_started(), stories.started())
    for call_number in range(5):
        await journal.commit(stories.answers("x" * CHUNK, call_number=call_number))
    return admitted


@contextlib.asynccontextmanager
async def serving(url: str) -> AsyncIterator[hubs.Hub]:
    own = databases.Database(url, pool_size=2)
    hub = hubs.Hub(own)
    running = asyncio.create_task(hub.run())
    try:
        yield hub
    finally:
        running.cancel()
        await asyncio.wait([running])
        await own.close()


@contextlib.asynccontextmanager
async def subscribing(
    hub: hubs.Hub, identity: UUID, boxes: list[backlogs.Backlog], *, places: int = 1
) -> AsyncIterator[set[backlogs.Backlog]]:
    """One subscription for each of these (they may be the same), from so many places on; those that have caught up."""
    channel = live_events.Channel(str(identity))
    through: set[backlogs.Backlog] = set()

    async def subscribe(box: backlogs.Backlog, after: int) -> None:
        async with hub.subscribe(identity, backlogs.Subscriber(box, channel), after=after):
            through.add(box)
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(subscribe(box, number % places)) for number, box in enumerate(boxes)]
    try:
        yield through
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


class Pages:
    """How many pages are read, and at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read = self._now = self.at_once = 0
        real = log_entries.log_page
        monkeypatch.setattr(log_entries, "log_page", self._counted(real))

    def _counted(self, real: Callable[..., object]) -> Callable[..., object]:
        async def log_page(*arguments: object, **named: object) -> object:
            self._now += 1
            self.at_once = max(self.at_once, self._now)
            try:
                return await real(*arguments, **named)  # type: ignore[misc]
            finally:
                self._now -= 1
                self.read += 1

        return log_page


async def quiet(pages: Pages) -> None:
    """Wait until something was read, and then nothing for a while."""
    before = 0
    while not before or before != pages.read:
        before = pages.read
        await asyncio.sleep(0.3)


async def drain(backlog: backlogs.Backlog) -> None:
    while await backlog.next():
        pass


async def test_connection_that_does_not_read_holds_one_page_for_all_its_subscriptions(
    database: databases.Database, identity: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = Pages(monkeypatch)
    async with serving(database.url) as hub:
        own = watching.box(hub.memory)
        async with subscribing(hub, identity, [own] * 20) as through:
            await quiet(pages)
            assert pages.read <= 4, "two of the reader's own, and one or two that the connection has"
            assert not through
            assert own._size < 2 * CHUNK
            reading = asyncio.create_task(drain(own))
            async with patience.limit():
                while len(hub._feeds[identity].subscribers) < 20:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            reading.cancel()


async def test_concurrent_page_reads_are_limited_and_runs_do_not_wait_for_them(
    database: databases.Database, identity: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All connections for transactions of those who run are in use, and who watches catches up all the same."""
    pages = Pages(monkeypatch)
    async with serving(database.url) as hub, contextlib.AsyncExitStack() as stack:
        for _ in range(databases.TRANSACTIONS):
            await stack.enter_async_context(database.begin())
        boxes = [watching.box(hub.memory) for _ in range(30)]
        reading = [asyncio.create_task(drain(backlog)) for backlog in boxes]
        async with subscribing(hub, identity, boxes, places=LOGGED) as through, patience.limit():
            while len(through) < len(boxes):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        for task in reading:
            task.cancel()
    assert pages.at_once <= 2 * investigation_feed.Source.READS

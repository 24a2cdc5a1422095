"""A timeline that is read in pages while its log grows is the one that is read at the end, and no page is dear."""

from __future__ import annotations

import random
from collections import defaultdict
from uuid import UUID

import pytest
from support import queue, stories
from tarsy.api.investigations import reads
from tarsy.store.base import databases
from tarsy.store.queue import journal
from tarsy.store.reads import log_entries
from tarsy.transcript import messages, timeline
from tarsy.views import timelines


class Reader:
    """Client that polls a timeline and keeps the newest form of each event."""

    def __init__(self, database: databases.Database, identity: UUID, *, limit: int) -> None:
        self._database = database
        self._identity = identity
        self._limit = limit
        self.after = 0
        self.events: dict[str, timelines.Event] = {}
        self.more = False

    async def read(self) -> None:
        """Read one page."""
        page = await reads.read_timeline(self._database, self._identity, after=self.after, limit=self._limit)
        assert page.last >= self.after
        assert all(self.after < event.seq <= page.last for event in page.events)
        assert [event.seq for event in page.events] == sorted(event.seq for event in page.events)
        by_entry = defaultdict[int, int](int)
        for event in page.events:
            by_entry[event.seq] += 1
        assert len(page.events) <= self._limit or len(by_entry) == 1, "over its limit only to keep an entry whole"
        for event in page.events:
            before = self.events.get(event.id)
            assert before is None or (before.seq < event.seq and before.created_at == event.created_at)
            self.events[event.id] = event
        assert page.more or not self.more or page.last > self.after, "it was told that there is more"
        self.after, self.more = page.last, page.more

    async def catch_up(self) -> None:
        """Read until there is no more."""
        while True:
            await self.read()
            if not self.more:
                return

    @property
    def in_order(self) -> list[timelines.Event]:
        return sorted(self.events.values(), key=lambda event: (event.seq, event.id))


async def at_the_end(database: databases.Database, identity: UUID) -> list[timelines.Event]:
    """The whole timeline, folded at once."""
    events = timeline.fold(await queue.log(database, identity))
    return sorted(map(timelines.Event.model_validate, events), key=lambda event: (event.seq, event.id))


async def take_over(database: databases.Database) -> journal.PgJournal:
    await queue.let_leases_pass(database)
    return await queue.opened(database, await queue.claimed(database))


@pytest.mark.parametrize(("limit", "seed"), [(1, 1), (100, 2), (2, 2), (5, 1)])
async def test_timeline_read_while_it_grows_equals_the_final_timeline(
    database: databases.Database, limit: int, seed: int
) -> None:
    identity = await queue.admit(database)
    writing = await take_over(database)
    impatient, slow = (Reader(database, identity, limit=limit) for _ in range(2))
    for number, commit in enumerate(stories.commits(seed=seed)):
        if number % 11 == 10:
            writing = await take_over(database)
        await writing.commit(*commit)
        await impatient.catch_up()
        if number % 3 == 0:
            await slow.read()
    await slow.catch_up()
    final_timeline = await at_the_end(database, identity)
    assert impatient.in_order == final_timeline
    assert slow.in_order == final_timeline
    assert not [event for event in final_timeline if event.status == "streaming"]
    assert {event.type for event in final_timeline} == {
        "llm_thinking",
        "llm_response",
        "llm_tool_call",
        "mcp_tool_call",
        "tool_result",
        "final_analysis",
        "error",
        "resumed",
    }
    assert {event.status for event in final_timeline} == {"completed", "failed", "timed_out"}
    assert (impatient.after, impatient.more) == (len(await queue.log(database, identity)), False)


async def test_each_timeline_page_contains_each_event_once_in_its_final_form(database: databases.Database) -> None:
    """Each event is sent once, in its newest form, from any position that a reader continues from."""
    identity = await queue.admit(database)
    writing = await take_over(database)
    for number, commit in enumerate(stories.commits(seed=3)):
        if number % 11 == 10:
            writing = await take_over(database)
        await writing.commit(*commit)
    final_events = {event.id: event for event in await at_the_end(database, identity)}
    for after in range(len(await queue.log(database, identity))):
        page = await reads.read_timeline(database, identity, after=after, limit=3)
        assert page.events == [final_events[event.id] for event in page.events]


async def test_a_page_is_cut_where_its_entries_are_large(
    database: databases.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = await queue.admit(database)
    writing = await take_over(database)
    await writing.commit(stories.stage_started(), stories.started())
    dice = random.Random(1)  # noqa: S311 - what does not compress

    def large(size: int) -> str:
        return dice.randbytes(size // 2).hex()

    sizes = [2_000, 2_000, 50_000, 2_000]
    for step, size in enumerate(sizes):
        await writing.commit(
            stories.unanswered(call_number=step, failure=messages.Failure(kind="rejected", text=large(size)))
        )
    monkeypatch.setattr(log_entries, "PAGE_BYTES", 10_000)

    async def own_entries(after: int) -> list[int]:
        page = await log_entries.log_page(database, identity, after=after, limit=100)
        assert page is not None
        assert page.more == (page.last < 2 + len(sizes))
        return [logged.seq for logged in page.log if after < logged.seq <= page.last]

    assert await own_entries(0) == [1, 2, 3, 4]
    assert await own_entries(4) == [5], "one is always read, however large"
    assert await own_entries(5) == [6]
    reader = Reader(database, identity, limit=100)
    await reader.catch_up()
    assert reader.in_order == await at_the_end(database, identity)

"""The feed of one investigation: one reader of its log for all its subscribers in this process.

The reader sends the entries after the last one that was sent. Texts that are being written are sent meanwhile. A
subscriber that joins catches up from the log in pages, and then receives what the reader sends, without a gap.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from uuid import UUID

from tarsy.live import backlogs, events_from_log, live_events, streamed_texts
from tarsy.store.base import databases
from tarsy.store.live import payloads
from tarsy.store.reads import changes, log_entries, stage_rows, summaries

CATCH_UP_MAX = 200
"""The maximal number of live events in a catch-up."""
RETRY_SECONDS = 1.0
"""The wait of the reader while the database is away."""
_PAGE = 100
"""The maximal number of entries in a page of the reader."""
_PAGE_BYTES = 1024 * 1024
_CATCH_UP_BYTES = 128 * 1024
"""The maximal bytes of a page of a catch-up; its first entry is not counted."""
_RECENT = 20
"""Entries at the end of the log that are read before the feed starts, to learn which texts have ended."""
_DELETED = "the investigation was deleted"

log = logging.getLogger(__name__)


class GoneError(Exception):
    """The investigation no longer exists, or its log was replaced."""


class Source:
    """The common source of all feeds of a process: the database, the memory of backlogs, limits on concurrent reads."""

    READS = 2
    """Pages that are read at once for the readers; catch-ups have as many reads of their own."""

    def __init__(self, database: databases.Database) -> None:
        self.database = database
        self.memory = backlogs.Memory()
        self.translation: live_events.Translation | None = None
        self.reads = asyncio.Semaphore(self.READS)
        self.catch_up_reads = asyncio.Semaphore(self.READS)

    async def head(self, investigation: UUID) -> changes.Position:
        """Return the position of the log's end. Raises GoneError if there is no log."""
        head = (await changes.positions(self.database, [investigation])).get(investigation)
        if head is None:
            raise GoneError(f"investigation {investigation} no longer exists")
        return head


@dataclass(frozen=True, kw_only=True)
class _Page:
    """The live events of some successive entries."""

    entries: Sequence[events_from_log.EntryEvents]
    last: int
    """The number of the last entry."""


class _Reading:
    """A page that is read once for all catch-ups that wait for it.

    It keeps its slot until their backlogs have counted the page. Otherwise the next page would be read before the
    memory of this one is counted.
    """

    def __init__(self, read: Callable[[], Awaitable[_Page]], slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self._has_slot = False
        self._waiting = 0

        async def read_in_slot() -> _Page:
            await slots.acquire()
            self._has_slot = True
            return await read()

        self.task = asyncio.create_task(read_in_slot())
        self.task.add_done_callback(self._finish)

    @asynccontextmanager
    async def page(self) -> AsyncIterator[_Page]:
        """Yield the page to a catch-up, whose backlog has to count the page's events before the block ends."""
        self._waiting += 1
        try:
            yield await asyncio.shield(self.task)
        finally:
            self._waiting -= 1
            self._release_slot()

    def _finish(self, task: asyncio.Task[_Page]) -> None:
        if not task.cancelled():
            task.exception()  # retrieved here, because every waiter may have been cancelled
        self._release_slot()

    def _release_slot(self) -> None:
        if self._has_slot and self.task.done() and not self._waiting:
            self._has_slot = False
            self._slots.release()


class InvestigationFeed:
    """The subscribers of one investigation, and the state that they have received."""

    def __init__(self, investigation: UUID, source: Source) -> None:
        self.investigation = investigation
        self.users = 0
        """The number of subscriptions, including those that still catch up."""
        self.subscribers: set[backlogs.Subscriber] = set()
        self.last = 0
        """The number of the last entry that was sent."""
        self.revision = -1
        """The revision of the status that was sent."""
        self.is_behind = False
        """Whether there may be a newer revision."""
        self.changed = asyncio.Event()
        """Set when the log may have new entries."""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when `last` and the status are known."""
        self.task: asyncio.Task[None] | None = None
        self.texts = streamed_texts.StreamedTexts(investigation)
        self._source = source
        self._status: live_events.LiveEvent | None = None
        self._course: stage_rows.StageProgress | None = None
        """The stages, for the updates of a translation."""
        self._pages: dict[tuple[int, int], _Reading] = {}
        """Pages that are being read for catch-ups, by the entries before and at their end."""
        self._held_back: list[payloads.Piece] | None = None
        """Pieces of text that arrive while a page of the log is read: the page is sent first."""
        self._end: str | None = None

    def send(self, events: Iterable[live_events.LiveEvent]) -> None:
        """Send events to all subscribers."""
        sent = list(events)
        for subscriber in self.subscribers:
            subscriber.put(sent)

    def end(self, reason: str) -> None:
        """End all subscriptions; those that still catch up end when they have caught up."""
        self._end = reason
        for subscriber in self.subscribers:
            subscriber.end(reason)

    def add_text(self, piece: payloads.Piece) -> None:
        """Send a piece of a text that is being written."""
        if self._held_back is not None:
            self._held_back.append(piece)
            return
        self.send(self.texts.add(piece))
        if piece.event in self.texts.finished:
            self.changed.set()

    @contextmanager
    def texts_held_back(self) -> Iterator[None]:
        """Send pieces of text that arrive inside the block after its end, so that entries of the log come first."""
        held_back: list[payloads.Piece] = []
        self._held_back = held_back
        try:
            yield
        finally:
            self._held_back = None
            for piece in held_back:
                self.add_text(piece)

    async def join(self, subscriber: backlogs.Subscriber, after: int) -> None:
        """Send a subscriber the events after entry `after`, CATCH_UP_MAX at most, and add it without a gap.

        Raises GoneError, StoreDownError, and FullError if there is no memory to catch up.
        """
        await asyncio.shield(self.ready)
        async with subscriber.backlog.catching_up:
            await subscriber.backlog.wait_until_low()
            status = self._status
            if status:
                subscriber.put([status])
            after = await self._catch_up(subscriber, after)
            if after < self.last:
                overflow = {"last_event_id": after, "limit": CATCH_UP_MAX}
                subscriber.put([live_events.LiveEvent("catchup.overflow", overflow, investigation=self.investigation)])
            if self._status and self._status is not status:
                subscriber.put([self._status])
            subscriber.put(self.texts.begun())
            self.subscribers.add(subscriber)
            if self._end is not None:
                subscriber.end(self._end)

    async def _catch_up(self, subscriber: backlogs.Subscriber, after: int) -> int:
        """Send pages, each once the backlog is low; return the number of the last entry that was sent.

        The backlog is low again at the end, so that the next event does not come on top of one that fills it.
        """
        left, is_full = CATCH_UP_MAX, False
        while not is_full:
            await subscriber.backlog.wait_until_low()
            if after >= self.last:
                return after
            async with self._reading(after).page() as page:
                events, after, is_full = _first_events(page, after=after, limit=left)
                left -= len(events)
                encoded = subscriber.encode(events)
                subscriber.backlog.hold(encoded)
            del page, events  # the backlog counts the encoded events, nothing counts these
            await subscriber.backlog.put_as_read(encoded)
        await subscriber.backlog.wait_until_low()
        return after

    def _reading(self, after: int) -> _Reading:
        """Return the reading of the page after entry `after`, one for all catch-ups that wait for it."""
        upto = self.last

        async def read() -> _Page:
            await self._source.memory.wait_while_full()
            page = await self._log_page(after=after, upto=upto, limit=CATCH_UP_MAX, size=_CATCH_UP_BYTES)
            return _Page(entries=await self._events(page, after=after), last=page.last)

        key = (after, upto)
        reading = self._pages.get(key)
        if reading is None:
            reading = self._pages[key] = _Reading(read, self._source.catch_up_reads)
            reading.task.add_done_callback(lambda _: self._pages.pop(key))
        return reading

    async def _log_page(
        self, *, after: int, limit: int, upto: int | None = None, size: int | None = None
    ) -> log_entries.LogPage:
        page = await log_entries.log_page(
            self._source.database, self.investigation, after=after, upto=upto, limit=limit, size=size
        )
        if page is None:
            raise GoneError(_DELETED)
        return page

    async def _events(self, page: log_entries.LogPage, *, after: int) -> list[events_from_log.EntryEvents]:
        summary = None
        if events_from_log.needs_summary(page, after=after):
            summary = await summaries.load(self._source.database, self.investigation)
        return await asyncio.to_thread(
            events_from_log.from_page,
            page,
            investigation=self.investigation,
            after=after,
            summary=summary,
            translation=self._source.translation,
            course=self._course,
            streamed=self.texts.ids if after == self.last else frozenset(),
        )

    async def run(self) -> None:
        """Send new entries of the log until cancelled. Raises GoneError if the investigation no longer exists."""
        while True:
            try:
                has_more = True
                while has_more:
                    async with self._source.reads:
                        if not self.ready.done():
                            await self._begin()
                        has_more = await self._send_page()
            except databases.StoreDownError as error:
                log.warning("live: %s", error, extra={"action": "live_waits"})
                await asyncio.sleep(RETRY_SECONDS)
                continue
            await self.changed.wait()

    async def _begin(self) -> None:
        """Read the present state of the investigation; catch-ups send the entries up to now."""
        head = await self._source.head(self.investigation)
        after = max(0, head.log_seq - _RECENT)
        page = await self._log_page(after=after, limit=_RECENT, upto=head.log_seq)
        for entry in events_from_log.from_page(page, investigation=self.investigation, after=after, summary=None):
            self.send(self.texts.settle(entry))
        courses = await stage_rows.stage_progress(self._source.database, [self.investigation])
        self._course = courses.get(self.investigation)
        await self._new_status()
        self.last = head.log_seq
        self.ready.set_result(None)

    async def _send_page(self) -> bool:
        """Send the next page of the log; return whether there is more."""
        self.changed.clear()
        finished = set(self.texts.finished)
        with self.texts_held_back():
            page = await self._log_page(after=self.last, limit=_PAGE, size=_PAGE_BYTES)
            is_behind, self.is_behind = self.is_behind or page.last > self.last, False
            if is_behind and page.last == self.last:
                head = await self._source.head(self.investigation)
                if head.log_seq < self.last:
                    raise GoneError("the database was restored from a backup: read the timeline again")
            entries = await self._events(page, after=self.last)
            status = await self._new_status() if is_behind else None
            events: list[live_events.LiveEvent] = []
            for entry in entries:
                events += [*self.texts.settle(entry), *entry.events]
            if not page.more:
                events += self.texts.discard(finished)
            if status:  # the end of the investigation comes last
                kinds = [event.kind for event in events]
                end = "investigation.completed"
                events.insert(kinds.index(end) if end in kinds else len(events), status)
            self.send(events)
            self.last = page.last
        return page.more

    async def _log_position(self) -> int:
        return (await self._source.head(self.investigation)).log_seq

    async def _new_status(self) -> live_events.LiveEvent | None:
        """Return the event of the investigation's status, or None if the status has not changed."""
        summary = await summaries.load(self._source.database, self.investigation)
        if summary is None:
            raise GoneError(_DELETED)
        self.revision = summary.revision
        body = events_from_log.status_body(summary)
        if self._status and {**self._status.body, "revision": 0} == {**body, "revision": 0}:
            return None
        self._status = live_events.LiveEvent("investigation.status", body, investigation=self.investigation)
        return self._status


def _first_events(page: _Page, *, after: int, limit: int) -> tuple[list[live_events.LiveEvent], int, bool]:
    """Return the first events of a page, the number of their last entry, and whether `limit` cut the page.

    The first entry of a catch-up is sent whole, however many events it has.
    """
    events: list[live_events.LiveEvent] = []
    for entry in page.entries:
        if len(events) + len(entry.events) > limit and (events or limit < CATCH_UP_MAX):
            return events, after, True
        events += entry.events
        after = entry.seq
    return events, page.last, False

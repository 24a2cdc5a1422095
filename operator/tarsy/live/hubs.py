"""The hub of a process: a feed for each investigation that has subscribers, and one for all lists.

Hints say when to read, and a poll each second makes up for lost hints. Each read of the log continues after the last
entry that was sent, so an outage of the database leaves no gap. Runs never wait for subscribers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from tarsy.live import backlogs, investigation_feed, list_feed, live_events
from tarsy.store.base import databases
from tarsy.store.live import payloads, text_streams
from tarsy.store.reads import changes

POLL_SECONDS = 1.0

log = logging.getLogger(__name__)


class Hub:
    """All feeds of this process."""

    def __init__(self, database: databases.Database) -> None:
        """`database` has connections of its own, so that runs never wait for a connection."""
        self._source = investigation_feed.Source(database)
        self._feeds: dict[UUID, investigation_feed.InvestigationFeed] = {}
        self._texts = text_streams.TextReceiver(database, on_piece=self._add_text, on_commit=self._mark_changed)
        self._waiting: dict[UUID, set[asyncio.Future[None]]] = {}
        """Those who wait for the end of an investigation."""
        self._poll_now = asyncio.Event()
        self.lists = list_feed.ListFeed(database, self.memory)
        self.closing = asyncio.Event()
        """Set when the process stops: all subscriptions end."""

    @property
    def memory(self) -> backlogs.Memory:
        """The memory of all backlogs."""
        return self._source.memory

    @property
    def translation(self) -> live_events.Translation | None:
        """The translation whose channels are served as well, or None."""
        return self._source.translation

    def add_translation(self, translation: live_events.Translation) -> None:
        """Serve the channels of a translation as well."""
        self._source.translation = self.lists.translation = translation

    def hint(self, payload: str) -> bool:
        """Handle a notification on `text_streams.TEXTS`."""
        return self._texts.hint(payload)

    def poll(self) -> None:
        """Poll the lists at once, because a status has changed."""
        if self.lists.has_subscribers:
            self._poll_now.set()

    async def run(self) -> None:
        """Feed the subscribers until cancelled; then all subscriptions end."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._texts.run())
                group.create_task(self._poll())
        finally:
            self.closing.set()
            for feed in self._feeds.values():
                if feed.task:
                    feed.task.cancel()
            for investigation in list(self._waiting):
                self._end_waits(investigation)

    async def wait_until_ended(self, investigation: UUID) -> None:
        """Wait until the newest run of an investigation has ended, it cannot be read any more, or the hub stops."""
        if self.closing.is_set():
            return
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(investigation, set()).add(ended)
        try:
            await ended
        finally:
            waiting = self._waiting.get(investigation, set())
            waiting.discard(ended)
            if not waiting:
                self._waiting.pop(investigation, None)

    async def check_cursor(self, investigation: UUID, *, after: int) -> None:
        """Raise FutureError if the log does not reach entry `after`, and GoneError if there is no log."""
        head = await self._source.head(investigation)
        if after > head.log_seq:
            raise live_events.FutureError(f"entry {after} is in the future: the last one is {head.log_seq}")

    @asynccontextmanager
    async def subscribe(
        self, investigation: UUID, subscriber: backlogs.Subscriber, *, after: int
    ) -> AsyncIterator[None]:
        """Send the events after entry `after`, and later events inside the block.

        Raises the errors of `check_cursor` and of `InvestigationFeed.join`.
        """
        await self.check_cursor(investigation, after=after)
        feed = self._feeds.get(investigation) or self._start(investigation)
        feed.users += 1
        try:
            await feed.join(subscriber, after)
            yield
        finally:
            feed.subscribers.discard(subscriber)
            feed.users -= 1
            if feed.users == 0 and self._forget(feed) and feed.task:
                feed.task.cancel()

    def _start(self, investigation: UUID) -> investigation_feed.InvestigationFeed:
        feed = self._feeds[investigation] = investigation_feed.InvestigationFeed(investigation, self._source)
        self._texts.watch(investigation)
        feed.task = asyncio.create_task(feed.run())
        feed.task.add_done_callback(lambda task: self._end(feed, task))
        return feed

    def _forget(self, feed: investigation_feed.InvestigationFeed) -> bool:
        """Forget a feed; return whether it was still known."""
        if self._feeds.get(feed.investigation) is not feed:
            return False
        del self._feeds[feed.investigation]
        self._texts.forget(feed.investigation)
        return True

    def _end(self, feed: investigation_feed.InvestigationFeed, task: asyncio.Task[None]) -> None:
        """End the subscriptions of a feed whose task has ended: the investigation was deleted, or there is a defect."""
        self._forget(feed)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, investigation_feed.GoneError):
            log.error("live feed of an investigation failed", exc_info=error, extra={"action": "live_failed"})
        is_gone = isinstance(error, investigation_feed.GoneError)
        reason = str(error) if is_gone else "a defect of TARSy; its log has the traceback"
        feed.end(reason)
        if not feed.ready.done():
            feed.ready.set_exception(investigation_feed.GoneError(reason))
            feed.ready.exception()  # retrieved here, because every waiter may have been cancelled

    def _add_text(self, piece: payloads.Piece) -> None:
        if feed := self._feeds.get(piece.investigation):
            feed.add_text(piece)

    def _mark_changed(self, investigation: UUID | None) -> None:
        """Make the feed of an investigation read its log; None means all feeds."""
        feeds = self._feeds.values() if investigation is None else filter(None, [self._feeds.get(investigation)])
        for feed in feeds:
            feed.changed.set()

    def _end_waits(self, investigation: UUID) -> None:
        for ended in self._waiting.pop(investigation, set()):
            if not ended.done():
                ended.set_result(None)

    async def _poll(self) -> None:
        """Poll log positions and lists each second, because hints can be lost and some changes send none."""
        while True:
            self._poll_now.clear()
            try:
                await self._poll_heads()
                await self.lists.poll()
            except databases.StoreDownError as error:
                log.warning("live: %s", error, extra={"action": "live_waits"})
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._poll_now.wait()
            except TimeoutError:
                continue

    async def _poll_heads(self) -> None:
        if not self._feeds and not self._waiting:
            return
        waiting = list(self._waiting)
        heads = await changes.positions(self._source.database, {*self._feeds, *waiting})
        for investigation in waiting:
            head = heads.get(investigation)
            if head is None or head.state == "ended":
                self._end_waits(investigation)
        for investigation, feed in self._feeds.items():
            head = heads.get(investigation)
            if head is None or head.log_seq != feed.last or head.revision != feed.revision:
                feed.is_behind = True
                feed.changed.set()

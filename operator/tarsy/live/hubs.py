"""The hub of subscriptions in this process: one reader for each investigation, and one for the lists.

Hints say when to look, and a poll a second makes up for lost ones; events are read from the log behind the last entry.
So an outage of the database leaves no gap, and runs never wait for subscribers.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from tarsy.live import changing, outbox, telling, watching, wire
from tarsy.store.base import databases
from tarsy.store.live import deltas
from tarsy.store.reads import changes, history, stage_rows

POLL_SECONDS = 1.0
CATCH_UP_MAX = 200
"""Messages that a catch-up brings at most."""
_AT_ONCE = 100
"""Entries that are read at once for those who listen."""
_PAGE_BYTES = 1024 * 1024
_CATCH_UP_BYTES = 128 * 1024
"""The bytes of a page for a subscriber that catches up, beyond its first entry."""
_READS = 2
"""Pages that are being read for those who listen, and as many for those who catch up."""
_RECENT = 20
"""The entries at the end of a log that are read for a new subscriber."""

log = logging.getLogger(__name__)


class FutureError(Exception):
    """A cursor that nothing has reached yet; the message says which, and how far it is."""


class GoneError(Exception):
    """There is no such investigation any more."""


class Hub:
    """All that is watched through this process."""

    def __init__(self, database: databases.Database) -> None:
        """Read events from `database`: one of its own, so that runs never wait for a connection."""
        self._database = database
        self._reading = asyncio.Semaphore(_READS)
        self._catching_up = asyncio.Semaphore(_READS)
        self._turns: weakref.WeakKeyDictionary[outbox.Outbox, asyncio.Lock] = weakref.WeakKeyDictionary()
        """A lock for each connection: one of its subscriptions catches up at a time."""
        self._audience = deltas.Audience(database, heard=self._heard, moved=self._moved)
        self._watches: dict[UUID, watching.Watch] = {}
        self._looks = asyncio.Event()
        """Set where the next poll is not to be waited for."""
        self.held = outbox.Held()
        """By all connections."""
        self.lists = changing.Lists(database, self.held)
        self.translation: wire.Translation | None = None
        self.closing = asyncio.Event()
        """Set when this process stops: all subscriptions end."""

    def add_translation(self, translation: wire.Translation) -> None:
        """Serve the channels of a translation, too."""
        self.translation = self.lists.translation = translation

    def hint(self, payload: str) -> bool:
        """Take what is said on `live.SAID`."""
        return self._audience.hint(payload)

    def poll(self) -> None:
        """Look at the lists at once: a status has changed."""
        if self.lists.are_watched:
            self._looks.set()

    async def run(self) -> None:
        """Tell those who watch, until cancelled; then all subscriptions end."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._audience.run())
                group.create_task(self._poll())
        finally:
            self.closing.set()
            for watch in self._watches.values():
                if watch.task:
                    watch.task.cancel()

    async def check(self, investigation: UUID, *, after: int) -> None:
        """Raise a FutureError where the log has no entry `after` yet, a GoneError where there is no log."""
        head = (await changes.heads(self._database, [investigation])).get(investigation)
        if head is None:
            raise GoneError(f"there is no investigation {investigation} any more")
        if after > head.log_seq:
            raise FutureError(f"entry {after} is in the future: the last one is {head.log_seq}")

    @asynccontextmanager
    async def listens(self, investigation: UUID, listener: outbox.Listener, *, after: int) -> AsyncIterator[None]:
        """Tell a listener what came behind entry `after`, 200 messages at most, and in the block what comes then.

        Errors as with `check`; a FullError where those who watch hold too much for a catch-up.
        """
        await self.check(investigation, after=after)
        watch = self._watch(investigation)
        try:
            await asyncio.shield(watch.ready)
            await self._join(watch, listener, after)
            yield
        finally:
            watch.listeners.discard(listener)
            self._forget(watch)

    async def _join(self, watch: watching.Watch, listener: outbox.Listener, after: int) -> None:
        """Catch up, and from then on, without a gap, listen."""
        async with self._turns.setdefault(listener.outbox, asyncio.Lock()):
            await listener.outbox.room()
            status = watch.status
            if status:
                listener.put([status])
            after = await self._catch_up(watch, listener, after)
            if after < watch.last:
                overflow = {"last_event_id": after, "limit": CATCH_UP_MAX}
                listener.put([wire.Message("catchup.overflow", overflow, of=watch.investigation)])
            if watch.status and watch.status is not status:
                listener.put([watch.status])
            listener.put(watch.begun())
            watch.join(listener)

    async def _catch_up(self, watch: watching.Watch, listener: outbox.Listener, after: int) -> int:
        """Tell what came behind entry `after`, each page when there is room for it; the entry that this reaches.

        There is room for more then: what is told next, at once, does not come on top of a message that fills all.
        """
        left, is_full = CATCH_UP_MAX, False
        while not is_full:
            await listener.outbox.room()
            if after >= watch.last:
                return after
            page = await self._page(watch, after)
            caught_up, after, is_full = _cut(page, after=after, most=left)
            left -= len(caught_up)
            rendered = listener.rendered(caught_up)
            del page, caught_up  # what waits is counted as it is sent
            await listener.outbox.put_in_turn(rendered)
        await listener.outbox.room()
        return after

    async def _page(self, watch: watching.Watch, after: int) -> watching.Page:
        """Return up to a page of events behind entry `after`: read once for all that wait for the same."""
        reading = watch.pages.get((after, watch.last))
        if reading is None:
            key = (after, watch.last)
            reading = watch.pages[key] = asyncio.create_task(self._read(watch, after=after, upto=watch.last))
            reading.add_done_callback(lambda _: watch.pages.pop(key))
            # Its errors are retrieved here: the waiting callers may be gone.
            reading.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(reading)

    async def _read(self, watch: watching.Watch, *, after: int, upto: int) -> watching.Page:
        async with self._catching_up:
            await self.held.room()
            page = await history.log_page(
                self._database, watch.investigation, after=after, upto=upto, limit=CATCH_UP_MAX, size=_CATCH_UP_BYTES
            )
            if page is None:
                raise GoneError(_PURGED)
            return watching.Page(told=await self._messages(watch, page, after=after), last=page.last)

    async def _messages(self, watch: watching.Watch, page: history.LogPage, *, after: int) -> list[telling.Told]:
        summary = None
        if telling.frames(page, after=after):
            summary = await history.summary(self._database, watch.investigation)
        heard = watch.heard if after == watch.last else frozenset[str]()
        return await asyncio.to_thread(
            telling.of_page,
            page,
            investigation=watch.investigation,
            after=after,
            summary=summary,
            translation=self.translation,
            course=watch.course,
            heard=heard,
        )

    def _watch(self, investigation: UUID) -> watching.Watch:
        watch = self._watches.get(investigation)
        if watch is None:
            watch = self._watches[investigation] = watching.Watch(investigation)
            self._audience.watch(investigation)
            watch.task = asyncio.create_task(self._follow(watch))
            watch.task.add_done_callback(lambda task: self._ended(watch, task))
        watch.users += 1
        return watch

    def _forget(self, watch: watching.Watch) -> None:
        """Remove a subscriber; without any the investigation is forgotten."""
        watch.users -= 1
        if watch.users == 0 and self._watches.get(watch.investigation) is watch:
            del self._watches[watch.investigation]
            self._audience.forget(watch.investigation)
            if watch.task:
                watch.task.cancel()

    def _ended(self, watch: watching.Watch, task: asyncio.Task[None]) -> None:
        """Nothing more is told of it: it was purged, or there is a defect, which the log tells."""
        if self._watches.get(watch.investigation) is watch:
            del self._watches[watch.investigation]
            self._audience.forget(watch.investigation)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, GoneError):
            log.error("an investigation is no longer told of", exc_info=error, extra={"action": "live_failed"})
        reason = str(error) if isinstance(error, GoneError) else "a defect of TARSy; its log has the traceback"
        watch.end(reason)
        if not watch.ready.done():
            watch.ready.set_exception(GoneError(reason))
            watch.ready.exception()  # its caller may be gone

    async def _follow(self, watch: watching.Watch) -> None:
        """Tell of one investigation, until cancelled; a GoneError where it is gone."""
        while True:
            try:
                more = True
                while more:
                    async with self._reading:
                        if not watch.ready.done():
                            await self._begin(watch)
                        more = await self._go_on(watch)
            except databases.StoreDownError as error:
                log.warning("live: %s", error, extra={"action": "live_waits"})
                await asyncio.sleep(POLL_SECONDS)
                continue
            await watch.moved.wait()

    async def _begin(self, watch: watching.Watch) -> None:
        """Find out how far it is; what is in its log already is for who catches up."""
        head = (await changes.heads(self._database, [watch.investigation])).get(watch.investigation)
        if head is None:
            raise GoneError(_PURGED)
        after = max(0, head.log_seq - _RECENT)
        page = await history.log_page(
            self._database, watch.investigation, after=after, limit=_RECENT, upto=head.log_seq
        )
        if page is None:
            raise GoneError(_PURGED)
        for event in telling.of_page(page, investigation=watch.investigation, after=after, summary=None):
            watch.tell(watch.settle(event))
        watch.course = (await stage_rows.courses(self._database, [watch.investigation])).get(watch.investigation)
        await self._stand(watch)
        watch.last = head.log_seq
        watch.ready.set_result(None)

    async def _go_on(self, watch: watching.Watch) -> bool:
        """Tell what has come; whether there is more."""
        watch.moved.clear()
        over = set(watch.over)
        with watch.listening_later():
            page = await history.log_page(
                self._database, watch.investigation, after=watch.last, limit=_AT_ONCE, size=_PAGE_BYTES
            )
            if page is None:
                raise GoneError(_PURGED)
            is_behind, watch.is_behind = watch.is_behind or page.last > watch.last, False
            if is_behind and page.last == watch.last:
                await self._ensure_not_restored(watch)
            page_events = await self._messages(watch, page, after=watch.last)
            status = await self._stand(watch) if is_behind else []
            messages: list[wire.Message] = []
            for event in page_events:
                messages += [*watch.settle(event), *event.messages]
            if not page.more:
                messages += watch.give_up(over)
            watch.tell(_before_the_end(status, messages))
            watch.last = page.last
        return page.more

    async def _ensure_not_restored(self, watch: watching.Watch) -> None:
        """Raise a GoneError where its log ends before what was told: nothing would be, until it is as long again."""
        head = (await changes.heads(self._database, [watch.investigation])).get(watch.investigation)
        if head is not None and head.log_seq < watch.last:
            raise GoneError("the database was restored from a backup: read the timeline again")

    async def _stand(self, watch: watching.Watch) -> list[wire.Message]:
        """Where it stands now, if that is something else than was told."""
        summary = await history.summary(self._database, watch.investigation)
        if summary is None:
            raise GoneError(_PURGED)
        watch.revision = summary.revision
        body = telling.of_status(summary)
        if watch.status and {**watch.status.body, "revision": 0} == {**body, "revision": 0}:
            return []
        watch.status = wire.Message("investigation.status", body, of=watch.investigation)
        return [watch.status]

    def _heard(self, piece: deltas.Piece) -> None:
        if watch := self._watches.get(piece.investigation):
            watch.hear(piece)

    def _moved(self, investigation: UUID | None) -> None:
        if investigation is None:
            for watch in self._watches.values():
                watch.moved.set()
        elif investigation in self._watches:
            self._watches[investigation].moved.set()

    async def _poll(self) -> None:
        """Poll once a second, for lost hints and changes without any."""
        while True:
            self._looks.clear()
            try:
                await self._poll_once()
                await self.lists.poll()
            except databases.StoreDownError as error:
                log.warning("live: %s", error, extra={"action": "live_waits"})
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._looks.wait()
            except TimeoutError:
                continue

    async def _poll_once(self) -> None:
        if not self._watches:
            return
        heads = await changes.heads(self._database, list(self._watches))
        for investigation, watch in self._watches.items():
            head = heads.get(investigation)
            if head is None or head.log_seq != watch.last or head.revision != watch.revision:
                watch.is_behind = True
                watch.moved.set()


_PURGED = "the investigation is gone: it was purged"


def _cut(page: watching.Page, *, after: int, most: int) -> tuple[list[wire.Message], int, bool]:
    """Up to `most` messages of a page behind entry `after`, the entry that they reach, and whether it has more.

    The first entry of a catch-up is told whole, however many its messages are.
    """
    messages: list[wire.Message] = []
    for event in page.told:
        if len(messages) + len(event.messages) > most and (messages or most < CATCH_UP_MAX):
            return messages, after, True
        messages += event.messages
        after = event.seq
    return messages, page.last, False


def _before_the_end(status: list[wire.Message], messages: list[wire.Message]) -> list[wire.Message]:
    """The two together: that it has ended is told last."""
    end = next(
        (index for index, message in enumerate(messages) if message.kind == "investigation.completed"), len(messages)
    )
    return [*messages[:end], *status, *messages[end:]]

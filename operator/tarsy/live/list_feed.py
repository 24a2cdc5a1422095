"""The feed of lists: one reader for all namespaces, which asks the store for the investigations that have changed.

An event has the present state of an investigation. A state may be sent twice; the latest one is always sent.
"""

from __future__ import annotations

import asyncio
from collections import ChainMap, OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeAlias
from uuid import UUID

from tarsy.live import backlogs, events_from_log, live_events
from tarsy.store.base import databases
from tarsy.store.reads import changes, stage_rows, summaries

CATCH_UP_MAX = 200
"""Investigations that are read at once; a catch-up has as many, or a few more."""
_CATCH_UP_PAGE = 20
"""Investigations that are read at once for a catch-up; each may have an analysis of many kilobytes."""
_SENT_MAX = 10_000
"""Investigations whose sent state is remembered; the state of others may be sent again."""


Namespaces: TypeAlias = Mapping[str, str]
"""The namespaces of a list, each with its uid: a later namespace may have the same name."""


class _Sent(NamedTuple):
    """The state of an investigation that all subscribers have received."""

    revision: int
    ended: bool
    updates: int
    """The number of updates that a translation made."""


_NOTHING = _Sent(-1, ended=False, updates=0)
_Courses = Mapping[UUID, stage_rows.StageProgress]


class ListFeed:
    """The lists that have subscribers in this process."""

    def __init__(
        self,
        database: databases.Database,
        memory: backlogs.Memory,
        translation: live_events.Translation | None = None,
    ) -> None:
        self.translation = translation
        self._database = database
        self._memory = memory
        self._subscribers: dict[backlogs.Subscriber, Namespaces] = {}
        self._changed = 0
        """The change after which the store is read next."""
        self._sent: OrderedDict[UUID, _Sent] = OrderedDict()
        self._lock = asyncio.Lock()

    @property
    def has_subscribers(self) -> bool:
        """Whether any subscription is open, so that polling is of use."""
        return bool(self._subscribers)

    async def check_cursor(self, namespaces: Namespaces, *, after: int | None) -> None:
        """Raise FutureError if `after` is ahead of the database."""
        if after is not None:
            await self._changes(after, namespaces, limit=1)

    @asynccontextmanager
    async def subscribe(
        self, namespaces: Namespaces, subscriber: backlogs.Subscriber, *, after: int | None
    ) -> AsyncIterator[None]:
        """Send the changes after `after`, about CATCH_UP_MAX at most, and later changes inside the block.

        None is the present. Raises FutureError as `check_cursor` does, and FullError if there is no memory to catch up.
        """
        try:
            await self._catch_up(namespaces, subscriber, after)
            yield
        finally:
            self._subscribers.pop(subscriber, None)
            if not self._subscribers:
                self._sent.clear()

    async def _catch_up(self, namespaces: Namespaces, subscriber: backlogs.Subscriber, after: int | None) -> None:
        """Send past changes in pages, each once the backlog is low, and add the subscriber without a gap."""
        left = CATCH_UP_MAX
        while True:
            await subscriber.backlog.wait_until_low()
            await self._memory.wait_while_full()
            async with self._lock:
                if not self._subscribers:
                    self._changed = await changes.now(self._database)
                changed = None
                if after is not None:
                    changed = await self._changes(after, namespaces, limit=_CATCH_UP_PAGE)
                    left -= len(changed.summaries) + len(changed.deletions)
                courses = await self._courses(changed.summaries if changed else (), [subscriber])
                events = []
                for summary in changed.summaries if changed else ():
                    events += self._events(summary, courses, before=None)
                events += map(_deleted, changed.deletions if changed else ())
                if changed and events:
                    events[-1] = events[-1].with_id(changed.horizon)
                if changed is None or not changed.more or left <= 0:
                    if changed and changed.more:
                        overflow = {"last_event_id": changed.horizon, "limit": CATCH_UP_MAX}
                        events.append(live_events.LiveEvent("catchup.overflow", overflow, investigation=None))
                    subscriber.put(events)
                    self._end_replaced(namespaces)
                    self._subscribers[subscriber] = namespaces
                    return
            after = changed.horizon
            encoded = subscriber.encode(events)
            subscriber.backlog.hold(encoded)
            del changed, events  # the backlog counts the encoded events, nothing counts these
            await subscriber.backlog.put_as_read(encoded)

    def _end_replaced(self, namespaces: Namespaces) -> None:
        """End the subscriptions to earlier namespaces of these names."""
        for subscriber, subscribed in list(self._subscribers.items()):
            for name, uid in subscribed.items():
                if namespaces.get(name, uid) != uid:
                    del self._subscribers[subscriber]
                    subscriber.end(f"namespace {name} was deleted and created again: subscribe again")
                    break

    async def poll(self) -> None:
        """Send the changes since the last poll. Raises StoreDownError if the database is unavailable."""
        async with self._lock:
            while self._subscribers:
                namespaces = dict(ChainMap(*map(dict, self._subscribers.values())))
                try:
                    changed = await self._changes(self._changed, namespaces, limit=CATCH_UP_MAX)
                except live_events.FutureError:
                    for subscriber in self._subscribers:
                        subscriber.end("the database was restored from a backup: read the list again")
                    return
                courses = await self._courses(changed.summaries, self._subscribers)
                self._changed = changed.horizon
                self._send(changed, courses)
                if not changed.more:
                    return

    def _send(self, changed: changes.Changes, courses: _Courses | None) -> None:
        fresh = [
            (summary.namespace, self._events(summary, courses, before=self._sent.get(summary.id, _NOTHING)))
            for summary in changed.summaries
            if self._sent.get(summary.id, _NOTHING).revision < summary.revision
        ]
        fresh += [
            (deletion.namespace, [_deleted(deletion)])
            for deletion in changed.deletions
            if self._sent.get(deletion.id, _NOTHING).revision < deletion.revision
        ]
        by_scope: dict[frozenset[str], list[live_events.LiveEvent]] = {}
        for subscriber, namespaces in self._subscribers.items():
            scope = frozenset(namespaces)
            if scope not in by_scope:
                events = [event for namespace, events in fresh if namespace in scope for event in events]
                by_scope[scope] = [*events[:-1], *(event.with_id(changed.horizon) for event in events[-1:])]
            subscriber.put(by_scope[scope])
        for summary in changed.summaries:
            count = self.translation.updates_since(-1, summary, None)[1] if self.translation else 0
            self._sent[summary.id] = _Sent(summary.revision, ended=summary.ended_at is not None, updates=count)
            self._sent.move_to_end(summary.id)
        for deletion in changed.deletions:
            self._sent[deletion.id] = _NOTHING._replace(revision=deletion.revision)
            self._sent.move_to_end(deletion.id)
        while len(self._sent) > _SENT_MAX:
            self._sent.popitem(last=False)

    async def _changes(self, changed: int, namespaces: Namespaces, *, limit: int) -> changes.Changes:
        changed_since = await changes.since(self._database, changed=changed, namespaces=namespaces, limit=limit)
        if changed_since is None:
            raise live_events.FutureError(f"{changed} is in the future of this database: read the list again")
        return changed_since

    async def _courses(
        self, summaries: Iterable[summaries.Summary], subscribers: Iterable[backlogs.Subscriber]
    ) -> _Courses | None:
        """Return the stages of these investigations, or None if no subscriber receives a translation's updates."""
        if not any(subscriber.channel.translation for subscriber in subscribers):
            return None
        return await stage_rows.stage_progress(self._database, [summary.id for summary in summaries])

    def _events(
        self, summary: summaries.Summary, courses: _Courses | None, *, before: _Sent | None
    ) -> list[live_events.LiveEvent]:
        """Return the events of an investigation.

        `before` is the state that all subscribers have received; None is for a catch-up, which gets the present state.
        """
        events: list[live_events.LiveEvent] = []
        if self.translation and courses is not None:
            since = -1 if before is None else before.updates
            updates, _ = self.translation.updates_since(since, summary, courses.get(summary.id))
            events += events_from_log.update_events(updates, self.translation, investigation=summary.id)
        bodies = _bodies(summary, end_was_sent=before is not None and before.ended)
        return events + [live_events.LiveEvent(kind, body, investigation=summary.id) for kind, body in bodies]


def _deleted(deletion: changes.Deletion) -> live_events.LiveEvent:
    body = {"namespace": deletion.namespace, "name": deletion.name, "revision": deletion.revision}
    return live_events.LiveEvent("investigation.deleted", body, investigation=deletion.id)


def _bodies(summary: summaries.Summary, *, end_was_sent: bool) -> Iterator[live_events.Body]:
    identity = {
        "namespace": summary.namespace,
        "name": summary.name,
        "alert_type": summary.alert_type,
        "chain_name": summary.chain_name,
    }
    yield "investigation.status", identity | events_from_log.status_body(summary)
    if summary.ended_at is not None and not end_was_sent:
        yield "investigation.completed", identity | events_from_log.end_body(summary)

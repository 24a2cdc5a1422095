"""The lists that are watched: one reader for all of them, which asks for what has changed since it asked last.

What is told of a change is where the investigation stands now. One may be told twice, none is left out.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from tarsy.live import outbox, telling, wire
from tarsy.store.base import databases
from tarsy.store.reads import changes, history, stage_rows

AT_ONCE = 200
"""Investigations that are read at once, and that a catch-up brings at most, or a few more."""
_PAGE = 20
"""Investigations that are read at once for one who catches up: each may have an analysis of many kilobytes."""
_REMEMBERED = 10_000
"""Investigations of which it is known what was told; of others something may be told again."""


class FutureError(Exception):
    """A cursor that is in the future of this database; the message says which."""


@dataclass(frozen=True, kw_only=True)
class Namespace:
    """A namespace as it is now."""

    name: str
    uid: str


class _Told(NamedTuple):
    """The state of an investigation that the subscribers to a list know."""

    revision: int
    ended: bool
    updates: int
    """How many updates of the translation."""


_NOTHING = _Told(-1, ended=False, updates=0)


@dataclass(frozen=True, kw_only=True)
class _Updates:
    """The updates of a translation, if there is a subscriber to its channel."""

    translation: wire.Translation
    courses: Mapping[UUID, stage_rows.Course]

    def messages(self, summary: history.Summary, since: int) -> Iterator[wire.Message]:
        """Yield those of an investigation behind the first `since` ones; -1: the latest alone."""
        updates, _ = self.translation.updates_since(since, summary, self.courses.get(summary.id))
        return telling.update_messages(updates, self.translation, of=summary.id)


class Lists:
    """All lists that are watched through this process."""

    def __init__(
        self, database: databases.Database, held: outbox.Held, translation: wire.Translation | None = None
    ) -> None:
        """`held` is what all connections have: where it is too much, nothing is read for a catch-up."""
        self.translation = translation
        self._database = database
        self._held = held
        self._listeners: dict[outbox.Listener, Namespace] = {}
        self._changed = 0
        """The number to ask the store from the next time."""
        self._told: OrderedDict[UUID, _Told] = OrderedDict()
        self._turns = asyncio.Lock()

    @property
    def are_watched(self) -> bool:
        """Whether anybody listens."""
        return bool(self._listeners)

    async def check(self, namespace: Namespace, *, after: int | None) -> None:
        """Raise a FutureError where the database has not come to `after`."""
        if after is not None:
            await self._since(after, {namespace.name: namespace.uid}, limit=1)

    @asynccontextmanager
    async def listens(
        self, namespace: Namespace, listener: outbox.Listener, *, after: int | None
    ) -> AsyncIterator[None]:
        """Tell a listener what changed from `after` on, 200 investigations at most, and in the block what changes then.

        None is from now on. Errors as with `check`; a FullError where those who watch hold too much for a catch-up.
        """
        try:
            await self._join(namespace, listener, after)
            yield
        finally:
            self._listeners.pop(listener, None)
            if not self._listeners:
                self._told.clear()

    async def _join(self, namespace: Namespace, listener: outbox.Listener, after: int | None) -> None:
        """Catch up, each page when there is room for it, and from then on, without a gap, listen."""
        left = AT_ONCE
        while True:
            await listener.outbox.room()
            await self._held.room()
            async with self._turns:
                if not self._listeners:
                    self._changed = await changes.now(self._database)
                changed = None
                if after is not None:
                    changed = await self._since(after, {namespace.name: namespace.uid}, limit=_PAGE)
                    left -= len(changed.summaries)
                updates = await self._updates(changed.summaries if changed else (), [listener])
                if changed is None or not changed.more or left <= 0:
                    listener.put(_caught_up(changed, updates))
                    self._replace(namespace)
                    self._listeners[listener] = namespace
                    return
            after = changed.horizon
            rendered = listener.rendered(_messages(changed.summaries, changed.horizon, updates))
            del changed  # what waits is counted as it is sent
            await listener.outbox.put_in_turn(rendered)

    def _replace(self, namespace: Namespace) -> None:
        """End those who listen to a namespace that had this one's name: what is told of a name is of one namespace."""
        for listener, listening in list(self._listeners.items()):
            if listening.name == namespace.name and listening.uid != namespace.uid:
                del self._listeners[listener]
                listener.end(f"the namespace {listening.name} is another one by now: subscribe again")

    async def poll(self) -> None:
        """Tell what has changed; a StoreDownError where that cannot be found out now."""
        async with self._turns:
            while self._listeners:
                watched = {watching.name: watching.uid for watching in self._listeners.values()}
                try:
                    changed = await self._since(self._changed, watched, limit=AT_ONCE)
                except FutureError:
                    for listener in self._listeners:
                        listener.end("the database was restored from a backup: read the list again")
                    return
                updates = await self._updates(changed.summaries, self._listeners)
                self._changed = changed.horizon
                self._tell(changed, updates)
                if not changed.more:
                    return

    async def _updates(
        self, summaries: Iterable[history.Summary], listeners: Iterable[outbox.Listener]
    ) -> _Updates | None:
        """Return the updates of these investigations, or None if none of the listeners is sent any."""
        if self.translation is None or not any(listener.channel.translation for listener in listeners):
            return None
        courses = await stage_rows.courses(self._database, [summary.id for summary in summaries])
        return _Updates(translation=self.translation, courses=courses)

    def _tell(self, changed: changes.Changes, updates: _Updates | None) -> None:
        by_namespace: dict[str, list[history.Summary]] = defaultdict(list)
        for summary in changed.summaries:
            if self._told.get(summary.id, _NOTHING).revision < summary.revision:
                by_namespace[summary.namespace].append(summary)
        messages_by_namespace = {
            name: _messages(new, changed.horizon, updates, already_told=self._told)
            for name, new in by_namespace.items()
        }
        for listener, namespace in self._listeners.items():
            if namespace.name in messages_by_namespace:
                listener.put(messages_by_namespace[namespace.name])
        for summary in changed.summaries:
            count = self.translation.updates_since(-1, summary, None)[1] if self.translation else 0
            self._told[summary.id] = _Told(summary.revision, ended=summary.ended_at is not None, updates=count)
            self._told.move_to_end(summary.id)
        while len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)

    async def _since(self, changed: int, namespaces: dict[str, str], *, limit: int) -> changes.Changes:
        changed_since = await changes.since(self._database, changed=changed, namespaces=namespaces, limit=limit)
        if changed_since is None:
            raise FutureError(f"{changed} is in the future of this database: read the list again")
        return changed_since


def _messages(
    summaries: Sequence[history.Summary],
    horizon: int,
    updates: _Updates | None,
    *,
    already_told: Mapping[UUID, _Told] | None = None,
) -> list[wire.Message]:
    """The messages about these investigations; the last one carries where to go on.

    `already_told` is what all listeners have been told. None is for a listener that catches up: it is told how each
    investigation stands now.
    """
    messages: list[wire.Message] = []
    for index, summary in enumerate(summaries, 1):
        before = None if already_told is None else already_told.get(summary.id, _NOTHING)
        if updates is not None:
            messages += updates.messages(summary, -1 if before is None else before.updates)
        bodies = [*_bodies(summary, is_known_to_have_ended=before is not None and before.ended)]
        for number, (kind, body) in enumerate(bodies, 1):
            is_last = (index, number) == (len(summaries), len(bodies))
            messages.append(wire.Message(kind, body, of=summary.id, id=horizon if is_last else None))
    return messages


def _bodies(summary: history.Summary, *, is_known_to_have_ended: bool) -> Iterator[tuple[str, dict[str, object]]]:
    named = {
        "namespace": summary.namespace,
        "name": summary.name,
        "alert_type": summary.alert_type,
        "chain_name": summary.chain_name,
    }
    yield "investigation.status", named | telling.of_status(summary)
    if summary.ended_at is not None and not is_known_to_have_ended:
        yield "investigation.completed", named | telling.of_end(summary)


def _caught_up(changed: changes.Changes | None, updates: _Updates | None) -> list[wire.Message]:
    """Return the last message of a catch-up, if there was one."""
    if changed is None:
        return []
    messages = _messages(changed.summaries, changed.horizon, updates)
    if changed.more:
        overflow = {"last_event_id": changed.horizon, "limit": AT_ONCE}
        messages.append(wire.Message("catchup.overflow", overflow, of=None))
    return messages

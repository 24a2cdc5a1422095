"""The lists that are watched: one reader for all of them, which asks for what has changed since it asked last.

What is told of a change is where the investigation stands now. One may be told twice, none is left out.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

from tarsy.api.live import outbox, telling, wire
from tarsy.store import changes, history
from tarsy.store import database as databases

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


class Lists:
    """All lists that are watched through this process."""

    def __init__(self, database: databases.Database, held: outbox.Held) -> None:
        """`held` is what all connections have: where it is too much, nothing is read for a catch-up."""
        self._database = database
        self._held = held
        self._listeners: dict[outbox.Listener, Namespace] = {}
        self._changed = 0
        """What to ask for the next time."""
        self._told: OrderedDict[UUID, tuple[int, bool]] = OrderedDict()
        """Of each investigation the revision that was told, and whether it had ended."""
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
                found = None
                if after is not None:
                    found = await self._since(after, {namespace.name: namespace.uid}, limit=_PAGE)
                    left -= len(found.summaries)
                if found is None or not found.more or left <= 0:
                    listener.put(_caught_up(found))
                    self._replace(namespace)
                    self._listeners[listener] = namespace
                    return
            after = found.horizon
            rendered = listener.rendered(_messages(found.summaries, found.horizon))
            del found  # what waits is counted as it is sent
            await listener.outbox.put_in_turn(rendered)

    def _replace(self, namespace: Namespace) -> None:
        """End those who listen to a namespace that had this one's name: what is told of a name is of one namespace."""
        for listener, known in list(self._listeners.items()):
            if known.name == namespace.name and known.uid != namespace.uid:
                del self._listeners[listener]
                listener.end(f"the namespace {known.name} is another one by now: subscribe again")

    async def look(self) -> None:
        """Tell what has changed; a StoreDownError where that cannot be found out now."""
        async with self._turns:
            while self._listeners:
                watched = {one.name: one.uid for one in self._listeners.values()}
                try:
                    found = await self._since(self._changed, watched, limit=AT_ONCE)
                except FutureError:
                    for listener in self._listeners:
                        listener.end("the database was restored from a backup: read the list again")
                    return
                self._changed = found.horizon
                self._tell(found)
                if not found.more:
                    return

    def _tell(self, found: changes.Changes) -> None:
        by_namespace: dict[str, list[history.Summary]] = defaultdict(list)
        for summary in found.summaries:
            if self._told.get(summary.id, (-1, False))[0] < summary.revision:
                by_namespace[summary.namespace].append(summary)
        told = {name: _messages(new, found.horizon, known=self._told) for name, new in by_namespace.items()}
        for listener, namespace in self._listeners.items():
            if namespace.name in told:
                listener.put(told[namespace.name])
        for summary in found.summaries:
            self._told[summary.id] = summary.revision, summary.ended_at is not None
            self._told.move_to_end(summary.id)
        while len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)

    async def _since(self, changed: int, namespaces: dict[str, str], *, limit: int) -> changes.Changes:
        found = await changes.since(self._database, changed=changed, namespaces=namespaces, limit=limit)
        if found is None:
            raise FutureError(f"{changed} is in the future of this database: read the list again")
        return found


def _messages(
    summaries: Sequence[history.Summary], horizon: int, *, known: dict[UUID, tuple[int, bool]] | None = None
) -> list[wire.Message]:
    """What is told of these; the last one carries where to go on."""
    bodies = [*_bodies(summaries, known or {})]
    last = len(bodies) - 1
    return [
        wire.Message(kind, body, of=of, id=horizon if place == last else None)
        for place, (kind, body, of) in enumerate(bodies)
    ]


def _bodies(
    summaries: Iterable[history.Summary], known: dict[UUID, tuple[int, bool]]
) -> Iterator[tuple[str, dict[str, object], UUID]]:
    for one in summaries:
        named = {"namespace": one.namespace, "name": one.name, "alert_type": one.alert_type, "chain": one.chain_name}
        yield "investigation.status", named | telling.of_status(one), one.id
        if one.ended_at is not None and not known.get(one.id, (-1, False))[1]:
            yield "investigation.completed", named | telling.of_end(one), one.id


def _caught_up(found: changes.Changes | None) -> list[wire.Message]:
    """What is told last of a catch-up, if there was one."""
    if found is None:
        return []
    messages = _messages(found.summaries, found.horizon)
    if found.more:
        overflow = {"last_event_id": found.horizon, "limit": AT_ONCE}
        messages.append(wire.Message("catchup.overflow", overflow, of=None))
    return messages

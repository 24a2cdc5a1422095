"""The backlog of a subscriber: bounded for each connection and for all, so that unread messages cost little.

Messages that a slow client has not read wait here. Live messages have a limit; a catch-up waits until there is room. If
all together hold too much, catch-ups are not read, and slow clients get nothing more.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from tarsy import errors
from tarsy.live import wire

QUEUED_MAX = 1024 * 1024
"""Bytes that may wait behind the next message when more is told; who is further behind is dropped."""
HELD_MAX = 64 * 1024 * 1024
"""Bytes that wait for all connections of a process: an eighth of a pod of 512 MiB."""
FULL_SECONDS = 10.0
"""For so long a catch-up waits where more than that is held."""
PROGRESS_SECONDS = 10.0
"""Within this a client has to take something of what it is sent: of a stream a piece of it."""
_ROOM = 64 * 1024

Render = Callable[[wire.Message, wire.Channel], bytes]
"""How a message is sent on this connection."""


class FullError(errors.TemporaryError):
    """All who watch here hold too much that they have not read."""


class Held:
    """The waiting messages of all connections of a process; a message for many is held once, and counts once."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes."""
        self._users: dict[int, int] = {}
        """The number of waiting connections for each message, by its identity: it is held as long as there is one."""
        self._full_since = 0.0
        self._emptied = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Whether more is held than may be."""
        return self.size > HELD_MAX

    def take(self, frames: Iterable[bytes]) -> None:
        """One more waits for these."""
        was_full = self.is_full
        for frame in frames:
            users = self._users.get(id(frame), 0)
            self._users[id(frame)] = users + 1
            if not users:
                self.size += len(frame)
        if self.is_full and not was_full:
            self._full_since = time.monotonic()
            self._emptied.clear()

    def give_back(self, frames: Iterable[bytes]) -> None:
        """One less does."""
        for frame in frames:
            users = self._users.pop(id(frame)) - 1
            if users:
                self._users[id(frame)] = users
            else:
                self.size -= len(frame)
        if not self.is_full:
            self._emptied.set()

    async def room(self) -> None:
        """Wait until no more is held than may be; a FullError where that has not been so for FULL_SECONDS."""
        while self.is_full:
            try:
                async with asyncio.timeout(self._full_since + FULL_SECONDS - time.monotonic()):
                    await self._emptied.wait()
            except TimeoutError as error:
                raise FullError("those who watch here have too much to read already: come again later") from error


class Outbox:
    """The queue of one connection. Who tells never waits for it."""

    def __init__(self, render: Render, held: Held) -> None:
        """`held` is what all connections have; `close` gives back what this one has of it."""
        self.render = render
        self.overflown = asyncio.Event()
        """Set once it was told more than it may hold: from then on it takes nothing."""
        self._held = held
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._sending: Sequence[bytes] = ()
        """The messages that were taken from it last, and may still be on their way."""
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()

    def put(self, *told: bytes) -> None:
        """Have these sent, unless what was told before is too much already."""
        if told and self._is_behind():
            self.drop()
        if self.overflown.is_set():
            return
        self._held.take(told)
        self._queue.extend(told)
        self._size += sum(map(len, told))
        self._filled.set()

    async def put_in_turn(self, frames: deque[bytes]) -> None:
        """Have these sent, each once there is room for it: for who can wait. All are held until then, and taken out."""
        self._held.take(frames)
        try:
            while frames:
                await self.room()
                self.put(frames[0])
                self._held.give_back((frames.popleft(),))
        finally:
            self._held.give_back(frames)

    def _is_behind(self) -> bool:
        """Whether it takes no more: of what waits the next message does not count, which may be larger than all."""
        if not self._queue:
            return False
        return self._size - len(self._queue[0]) > QUEUED_MAX or (self._held.is_full and self._size > _ROOM)

    def drop(self) -> None:
        """Forget what waits, and take nothing more."""
        self.overflown.set()
        self._held.give_back(self._queue)
        self._queue.clear()

    def close(self) -> None:
        """Forget all: nothing of it is sent any more."""
        self.drop()
        self._held.give_back(self._sending)
        self._sending = ()

    async def next(self) -> bytes:
        """Return the next message; the one before has gone."""
        self._held.give_back(self._sending)
        self._sending = ()
        while not self._queue:
            self._filled.clear()
            await self._filled.wait()
        first = self._queue.popleft()
        self._sending = (first,)
        self._size -= len(first)
        if self._size <= _ROOM:
            self._emptied.set()
        return first

    async def room(self) -> None:
        """Wait until there is little left to send: for who can wait, as a catch-up can."""
        while self._size > _ROOM:
            self._emptied.clear()
            await self._emptied.wait()


class Listener:
    """A subscription as the hub sees it: where to, and under which name."""

    def __init__(self, outbox: Outbox, channel: wire.Channel) -> None:
        self.outbox = outbox
        self.channel = channel
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why nothing more will come, when that is so."""

    def put(self, messages: Iterable[wire.Message]) -> None:
        """Tell these."""
        self.outbox.put(*self.rendered(messages))

    def rendered(self, messages: Iterable[wire.Message]) -> deque[bytes]:
        """These, as they are sent here; without those that others get alone."""
        channel, render = self.channel, self.outbox.render
        return deque(render(message, channel) for message in messages if message.only in (None, channel.translation))

    def end(self, reason: str) -> None:
        """Tell that nothing more will come."""
        if not self.over.done():
            self.over.set_result(reason)

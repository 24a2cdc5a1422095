"""What is still to be sent on one connection: bounded, so that a client that does not read costs no more than that."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from tarsy.api.live import wire

QUEUED_MAX = 1024 * 1024
"""Bytes that may wait when more is told; who is further behind is dropped."""
PROGRESS_SECONDS = 10.0
"""Within this a client has to take something of what it is sent: of a stream a piece of it."""
_ROOM = 64 * 1024

Render = Callable[[wire.Message, wire.Channel], str | bytes]
"""How a message is sent on this connection."""


class Outbox:
    """The queue of one connection. Who tells never waits for it."""

    def __init__(self, render: Render) -> None:
        self.render = render
        self.overflown = asyncio.Event()
        """Set once it was told more than it may hold: from then on it takes nothing."""
        self._queue: deque[str | bytes] = deque()
        self._size = 0
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()

    def put(self, *told: str | bytes) -> None:
        """Have these sent, unless what was told before is too much already."""
        if told and self._size > QUEUED_MAX:
            self.drop()
        if self.overflown.is_set():
            return
        self._queue.extend(told)
        self._size += sum(map(len, told))
        self._filled.set()

    def drop(self) -> None:
        """Forget what waits, and take nothing more."""
        self.overflown.set()
        self._queue.clear()

    async def next(self) -> str | bytes:
        """What is to be sent next."""
        while not self._queue:
            self._filled.clear()
            await self._filled.wait()
        first = self._queue.popleft()
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
        words, render = self.channel.words, self.outbox.render
        self.outbox.put(*(render(message, self.channel) for message in messages if message.only in (None, words)))

    def end(self, reason: str) -> None:
        """Tell that nothing more will come."""
        if not self.over.done():
            self.over.set_result(reason)

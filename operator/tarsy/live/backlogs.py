"""Backlogs: the live events that wait until a client reads them, bounded for each connection and for the process.

A sender never waits: a client that is too far behind is dropped. A catch-up waits until there is room. When all
backlogs of the process together hold too much, catch-ups read nothing, and clients that are behind are dropped.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence

from tarsy import errors
from tarsy.live import live_events

BACKLOG_MAX = 1024 * 1024
"""Bytes that may wait behind the next event when another one is added; a client with more is dropped."""
MEMORY_MAX = 64 * 1024 * 1024
"""Bytes of all backlogs of a process: an eighth of a pod of 512 MiB."""
MEMORY_WAIT_SECONDS = 10.0
"""Seconds that a catch-up waits while the backlogs hold more than MEMORY_MAX."""
STALLED_SECONDS = 10.0
"""Seconds after which a client that reads nothing of what was sent is dropped."""
_LOW = 64 * 1024
"""Bytes of a backlog up to which a catch-up continues."""
TOO_SLOW = "the client reads too slowly"


class FullError(errors.TemporaryError):
    """The backlogs of the process hold too much."""


class Memory:
    """The memory of all backlogs of a process; an event that waits in several is held once, and counted once."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes."""
        self._users: dict[int, int] = {}
        """The number of backlogs that hold an encoded event, by the event's `id()`."""
        self._full_since = 0.0
        self._freed = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Whether the backlogs hold more than they may."""
        return self.size > MEMORY_MAX

    def hold(self, encoded: Iterable[bytes]) -> None:
        """Count these events for one more backlog."""
        was_full = self.is_full
        for event in encoded:
            users = self._users.get(id(event), 0)
            self._users[id(event)] = users + 1
            if not users:
                self.size += len(event)
        if self.is_full and not was_full:
            self._full_since = time.monotonic()
            self._freed.clear()

    def release(self, encoded: Iterable[bytes]) -> None:
        """Count these events for one backlog less."""
        for event in encoded:
            users = self._users.pop(id(event)) - 1
            if users:
                self._users[id(event)] = users
            else:
                self.size -= len(event)
        if not self.is_full:
            self._freed.set()

    async def wait_while_full(self) -> None:
        """Wait until the memory is not full. Raises FullError if it has been full for MEMORY_WAIT_SECONDS."""
        while self.is_full:
            try:
                async with asyncio.timeout(self._full_since + MEMORY_WAIT_SECONDS - time.monotonic()):
                    await self._freed.wait()
            except TimeoutError as error:
                raise FullError("too many live events wait for slow clients: try again later") from error


class Backlog:
    """The encoded events that wait for one connection."""

    def __init__(self, transport: live_events.Transport, memory: Memory) -> None:
        """The caller has to call `close`, which releases the memory of the events."""
        self.transport = transport
        self.dropped = asyncio.Event()
        """Set when the client is dropped: from then on no event is added."""
        self.catching_up = asyncio.Lock()
        """Held by the subscription that catches up: one at a time for a connection."""
        self._memory = memory
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._sending: Sequence[bytes] = ()
        """The event that `next` returned last: it may still be in transit."""
        self._has_ended = False
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()

    def put(self, *encoded: bytes) -> None:
        """Add events, or drop the client if too many bytes wait already."""
        if encoded and self._is_too_far_behind():
            self.drop()
        if self.dropped.is_set():
            return
        self._memory.hold(encoded)
        self._queue.extend(encoded)
        self._size += sum(map(len, encoded))
        self._filled.set()

    def hold(self, encoded: Iterable[bytes]) -> None:
        """Count events that `put_as_read` will add."""
        self._memory.hold(encoded)

    async def put_as_read(self, encoded: deque[bytes]) -> None:
        """Move each event from `encoded` to this backlog once that is low; `hold` has counted all of them."""
        try:
            while encoded:
                await self.wait_until_low()
                self.put(encoded[0])
                self._memory.release((encoded.popleft(),))
        finally:
            self._memory.release(encoded)

    def _is_too_far_behind(self) -> bool:
        """Whether the client must be dropped. The next event is not counted: alone it may be larger than any limit."""
        if not self._queue:
            return False
        return self._size - len(self._queue[0]) > BACKLOG_MAX or (self._memory.is_full and self._size > _LOW)

    def drop(self) -> None:
        """Drop the client: discard the events that wait, and accept no more."""
        self.dropped.set()
        self._memory.release(self._queue)
        self._queue.clear()
        self.end()

    def end(self) -> None:
        """End the backlog: `next` returns None after the events that wait."""
        self._has_ended = True
        self._filled.set()

    def close(self) -> None:
        """Release all memory after the connection has ended."""
        self.drop()
        self._memory.release(self._sending)
        self._sending = ()

    async def next(self) -> bytes | None:
        """Return the next event, or None at the end. The event before has been sent by now."""
        self._memory.release(self._sending)
        self._sending = ()
        while not self._queue:
            if self._has_ended:
                return None
            self._filled.clear()
            await self._filled.wait()
        event = self._queue.popleft()
        self._sending = (event,)
        self._size -= len(event)
        if self._size <= _LOW:
            self._emptied.set()
        return event

    async def wait_until_low(self) -> None:
        """Wait until little is left to send."""
        while self._size > _LOW:
            self._emptied.clear()
            await self._emptied.wait()


class Subscriber:
    """One subscription of a connection, as the feeds see it."""

    def __init__(self, backlog: Backlog, channel: live_events.Channel) -> None:
        self.backlog = backlog
        self.channel = channel
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """The reason why the subscription has ended."""

    def put(self, events: Iterable[live_events.LiveEvent]) -> None:
        """Add events to the connection's backlog; the subscription ends if its client is dropped."""
        self.backlog.put(*self.encode(events))
        if self.backlog.dropped.is_set():
            self.end(TOO_SLOW)

    def encode(self, events: Iterable[live_events.LiveEvent]) -> deque[bytes]:
        """Return the encoded events, without those for the channels of another translation."""
        channel, transport = self.channel, self.backlog.transport
        return deque(event.encode(channel, transport) for event in events if event.only in (None, channel.translation))

    def end(self, reason: str) -> None:
        """End the subscription."""
        if not self.ended.done():
            self.ended.set_result(reason)

"""A TCP proxy that can be told to misbehave while it runs.

It stands between tarsy and Postgres, the API server, the model or an MCP server, and knows none of their protocols: the
one place where bytes are looked at is the condition that a test gives to `lose_reply`. In the event loop of the test
rather than iptables or a container, so that it needs no rights and a fault begins and ends at a line of the test.

    async with proxy.serve("127.0.0.1", 5432) as p:
        p.lose_reply(lambda sent: b"COMMIT" in sent)
        ...  # connect to p.port
        await p.wait_for(lambda: p.lost_replies == 1)
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from tarsy_dev import changes, children, loopback, patience

T = TypeVar("T")

_CHUNK = 64 * 1024  # bytes forwarded at once
_REQUEST = 256 * 1024  # bytes of a request that a condition gets to see: its last ones


@dataclass
class _Loss:
    """Replies that are to be lost."""

    condition: Callable[[bytes], bool]
    left: int | None


@dataclass(eq=False)
class _Connection:
    """A client's connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    request: bytes = b""
    """The bytes that the client has sent since the server last sent something."""

    losing: bool = False
    """The next reply is swallowed, and the connection cut."""


@dataclass
class Proxy:
    """A running proxy; `serve` starts one. What is set holds from the next bytes on, for open connections too."""

    upstream: tuple[str, int]
    port: int = 0
    delay_up: float = 0.0
    """Seconds that bytes towards the server are held."""

    delay_down: float = 0.0
    """Seconds that bytes towards the client are held."""

    holds_ends: bool = False
    """Whether connections that the server ends stay open: an end may come later than the last bytes."""

    connections: int = 0
    """How many were accepted so far."""

    bytes_up: int = 0
    bytes_down: int = 0
    lost_replies: int = 0
    _open: set[asyncio.Task[None]] = field(default_factory=set)
    _losses: list[_Loss] = field(default_factory=list)
    _passing: asyncio.Event = field(default_factory=asyncio.Event)
    _changes: changes.Changes = field(default_factory=changes.Changes)
    _listening: socket.socket | None = None

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        return len(self._open)

    def blackhole(self) -> None:
        """Accept, and forward nothing, as in a partition; what is sent meanwhile is delivered after `heal`."""
        self._passing.clear()

    def heal(self) -> None:
        """End a `blackhole`."""
        self._passing.set()

    def refuse(self) -> None:
        """Refuse new connections; open ones go on."""
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None

    def accept(self) -> None:
        """Accept connections, on the same port as before."""
        if self._listening is None:
            self._listening = loopback.listen(self.port)
            self._listening.settimeout(0)
            self.port = self._listening.getsockname()[1]
            asyncio.get_running_loop().add_reader(self._listening, self._accept, self._listening)

    def cut(self) -> int:
        """Close all connections that are open now, whatever is under way; how many they were."""
        for task in self._open:
            task.cancel()
        return len(self._open)

    def lose_reply(self, condition: Callable[[bytes], bool], *, times: int | None = 1) -> None:
        """Let a request reach the server, wait for its reply, swallow it and cut the connection.

        The condition is given what a client has sent since the server last answered it; once it is true, that request's
        reply is lost. For the first `times` such requests; None: for all.
        """
        self._losses.append(_Loss(condition=condition, left=times))

    async def wait_for(self, condition: Callable[[], T | None], *, timeout: float = patience.PATIENCE) -> T:
        """Wait until a condition, on this proxy's counters say, is true; TooLong says what they were."""
        return await self._changes.until(condition, timeout=timeout, state=self._state)

    async def close(self) -> None:
        """Refuse, cut, and wait until nothing is left."""
        self.refuse()
        self.cut()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _accept(self, listening: socket.socket) -> None:
        # By hand: asyncio's own server, closed while it accepts a connection, forgets it unclosed.
        try:
            client, _ = listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        task = asyncio.create_task(self._serve(client))
        self._open.add(task)
        self.connections += 1
        task.add_done_callback(functools.partial(self._ended, client))
        self._changes.happened()

    def _ended(self, client: socket.socket, task: asyncio.Task[None]) -> None:
        client.close()  # where the task was cancelled before it began
        self._open.discard(task)
        self._changes.happened()

    async def _serve(self, accepted: socket.socket) -> None:
        client_reader, client = await asyncio.open_connection(sock=accepted)
        connection = _Connection(reader=client_reader, writer=client)
        try:
            await self._passing.wait()
            reader, server = await asyncio.open_connection(*self.upstream)
            try:
                async with asyncio.TaskGroup() as both_ways:
                    both_ways.create_task(self._upwards(connection, server))
                    both_ways.create_task(self._downwards(connection, reader))
                client.close()  # sends what is left
                await client.wait_closed()
            finally:
                server.transport.abort()
        except* OSError:
            pass  # one side has gone, or was never there: the other one is told by the end of its connection
        finally:
            client.transport.abort()

    async def _upwards(self, connection: _Connection, server: asyncio.StreamWriter) -> None:
        while chunk := await connection.reader.read(_CHUNK):
            await self._hold(self.delay_up)
            connection.request = (connection.request + chunk)[-_REQUEST:]
            connection.losing = connection.losing or self._is_lost(connection.request)
            server.write(chunk)
            await server.drain()
            self.bytes_up += len(chunk)
            self._changes.happened()
        server.write_eof()

    async def _downwards(self, connection: _Connection, server: asyncio.StreamReader) -> None:
        while chunk := await server.read(_CHUNK):
            if connection.losing:
                self.lost_replies += 1
                raise ConnectionAbortedError
            connection.request = b""
            await self._hold(self.delay_down)
            connection.writer.write(chunk)
            await connection.writer.drain()
            self.bytes_down += len(chunk)
            self._changes.happened()
        if self.holds_ends:
            await asyncio.Event().wait()
        connection.writer.write_eof()

    async def _hold(self, seconds: float) -> None:
        if seconds:
            await asyncio.sleep(seconds)
        await self._passing.wait()

    def _is_lost(self, request: bytes) -> bool:
        for loss in self._losses:
            if loss.left != 0 and loss.condition(request):
                loss.left = None if loss.left is None else loss.left - 1
                return True
        return False

    def _state(self) -> str:
        return (
            f"{self.connections} connections, {self.open_connections} of them open, {self.bytes_up} bytes up and "
            f"{self.bytes_down} down, {self.lost_replies} replies lost"
        )


@contextlib.asynccontextmanager
async def serve(host: str, port: int) -> AsyncIterator[Proxy]:
    """Forward a free port of 127.0.0.1 to `host` and `port`."""
    (own,) = children.free_ports(1)  # which no other process is given while it is refused
    proxy = Proxy(upstream=(host, port), port=own)
    proxy.heal()
    proxy.accept()
    try:
        yield proxy
    finally:
        await proxy.close()

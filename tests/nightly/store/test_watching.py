"""Messages to watchers, by the API over a real database; rights are the cluster's tests'."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable

import pytest
from support import stories, watching
from support.watched_api import STORY, World, eventually, large, listening, slow_reader
from tarsy.live import backlogs, web_socket_protocol, web_sockets
from tarsy.serve import connections as protocols
from tarsy_dev import patience
from websockets import exceptions


async def test_protocol_violation_closes_the_connection_with_a_reason(watched: World) -> None:
    async with watching.watching(watched.url) as watcher:
        await watcher.ask(action="subscribe", channel="alerts")
        assert (await watcher.next())["reason"].startswith("unknown channel alerts: the channels are investigations, ")
        await watcher.socket.send(b'{"action": "ping"}')
        assert (await watcher.next())["reason"] == "binary frames are not accepted: send text"
        assert (await watcher.answer(action="ping")) == {"type": "pong"}
        for _ in range(web_sockets.ERRORS_MAX - 2):
            assert (await watcher.answer(action="x"))["type"] == "error"
        await watcher.ask(action="x")
        assert await watcher.closed() == (1008, "too many errors")
    async with watching.watching(watched.url) as watcher:
        await watcher.socket.send(json.dumps({"action": "ping", "pad": "x" * web_socket_protocol.FRAME_MAX}))
        assert (await watcher.closed())[0] == 1009
    async with watching.watching(watched.url) as watcher:
        with contextlib.suppress(exceptions.ConnectionClosed):
            for _ in range(web_socket_protocol.FRAMES_BURST * 2):
                await watcher.ask(action="ping")
        assert await watcher.closed() == (1008, "more than 10 frames a second")


async def test_websocket_without_subscriptions_is_closed(watched: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_sockets, "UNUSED_SECONDS", 2.0)
    async with watching.watching(watched.url) as watcher:
        await watcher.ask(action="subscribe", channel=watched.channel)
        await watcher.until_type("investigation.status")
        async with watching.watching(watched.url) as idle:  # in which longer passes than it might be idle
            assert await idle.closed() == (1008, "nothing was subscribed for 2 s")
        assert (await watcher.answer(action="ping"))["type"] == "pong"
        await watcher.ask(action="unsubscribe", channel=watched.channel)
        assert await watcher.closed() == (1008, "nothing was subscribed for 2 s")


async def slow_stream(watched: World, *, holds: int = 4096) -> socket.socket:
    """The same of a stream of events."""
    host, port = watched.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, holds)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, (host, int(port)))
    await loop.sock_sendall(connection, f"GET {watched.path}/events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    return connection


async def is_cut_off(connection: socket.socket) -> bool:
    """Whether the other side ends it within some seconds of being read."""
    loop = asyncio.get_running_loop()
    try:
        async with patience.limit():
            while await loop.sock_recv(connection, 1 << 20):
                pass
    except OSError as error:
        return isinstance(error, ConnectionError)
    return True


@pytest.mark.parametrize("connect", [slow_reader, slow_stream])
@pytest.mark.parametrize("limit", ["queued", "seconds"])
async def test_client_that_reads_nothing_is_dropped_and_delays_no_other(
    watched: World,
    limit: str,
    connect: Callable[[World], Awaitable[socket.socket]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(protocols, "READ_SECONDS", 2.0)
    monkeypatch.setattr(backlogs, "STALLED_SECONDS", 3.0 if limit == "seconds" else 60.0)
    await watched.commit(*STORY[:1])
    async with watching.watching(watched.url) as watcher:
        await watcher.ask(action="subscribe", channel=watched.channel)
        await watcher.until_type("stage.started")
        with contextlib.closing(await connect(watched)) as slow:
            await eventually(lambda: listening(watched) == 2)
            for call_number in range(2 if limit == "seconds" else 6):
                await watched.commit(large(call_number))
                last_message = (await watcher.until(lambda message: "id" in message))[-1]
                assert (last_message["id"], len(last_message["event"]["content"])) == (call_number + 3, 512 * 1024)
            await eventually(lambda: listening(watched) == 1)
            assert await is_cut_off(slow), "and its connection is over, although it never read"
            assert not [log_record for log_record in caplog.records if log_record.levelname == "ERROR"]
        assert (await watcher.answer(action="ping"))["type"] == "pong"


@pytest.mark.parametrize("connect", [slow_reader, slow_stream])
async def test_client_that_reads_slowly_receives_everything(
    watched: World, connect: Callable[..., Awaitable[socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several times what a piece may take."""
    monkeypatch.setattr(backlogs, "STALLED_SECONDS", 4.0)
    monkeypatch.setattr(web_socket_protocol, "PING_SECONDS", 0.5)
    await watched.commit(*STORY[:1], (stories.answers("x" * 3 * 512 * 1024, call_number=0),))
    loop = asyncio.get_running_loop()
    began = loop.time()
    tail = b""
    got = 0
    with contextlib.closing(await connect(watched, holds=64 * 1024)) as slow:
        async with patience.limit():
            while got < 3 * 512 * 1024:
                chunk = await loop.sock_recv(slow, 32 * 1024)
                assert chunk, f"cut off after {got} bytes"
                tail, got = (tail + chunk)[-1000:], got + len(chunk)
                await asyncio.sleep(0.2)  # as slow as it reads
    assert loop.time() - began > 2 * backlogs.STALLED_SECONDS


async def test_slow_reader_receives_the_last_event_of_a_stream(watched: World) -> None:
    await watched.commit(*STORY[:1], large(0))
    loop = asyncio.get_running_loop()
    with contextlib.closing(await slow_stream(watched)) as slow:
        await eventually(lambda: listening(watched) == 1)
        await watched.commit(large(1))
        watched.parts.hub._feeds[watched.identity].end("it is over")
        received = b""
        async with patience.limit():
            while chunk := await loop.sock_recv(slow, 1 << 16):
                received += chunk
    assert b'"reason":"it is over"' in received[-1000:]

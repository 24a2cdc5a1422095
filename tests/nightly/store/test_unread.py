"""Answers that no client reads, those that are read slowly, and more connections than there may be."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from fastapi import FastAPI, Response, WebSocket
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from support import apis, kubeconfigs
from tarsy.config.model import platforms
from tarsy.kube import client
from tarsy.serve import answers, connections, problems
from tarsy.store.base import databases

SECONDS = 1.0
"""How long what was written may stay unread here."""
LARGE = 7 * 1024 * 1024
HOSTILE, HONEST = "127.0.0.2", "127.0.0.3"
OPEN = ("01", "08")
"""The states ESTABLISHED and CLOSE_WAIT: the process has not closed it. Source: Linux, include/net/tcp_states.h."""


class Text(BaseModel):
    """The body of an answer."""

    text: str


class Served:
    """A server whose answers are as long as one likes, and connections to it that are read by hand."""

    def __init__(self) -> None:
        self.responder = answers.Responder()
        self.asked = 0
        self.ended = asyncio.Event()
        """Its stream did."""
        self.go = asyncio.Event()
        """For those that wait."""
        self.port = 0
        self.connections: list[socket.socket] = []

    async def answer(self, size: int) -> Response:
        """Answer so many characters, which do not repeat."""
        self.asked += 1

        async def find() -> Text:
            return Text(text=noise(size))

        return await self.responder.respond(find)

    async def stream(self) -> StreamingResponse:
        """Answer something small now and then, for ever."""

        async def events() -> AsyncIterator[bytes]:
            try:
                for number in itertools.count():
                    yield f"data: {number:04000}\n\n".encode()
                    await asyncio.sleep(0.001)
            finally:
                self.ended.set()

        return StreamingResponse(events())

    async def wait(self) -> StreamingResponse:
        """Answer a word now, and another one when it is told to."""

        async def words() -> AsyncIterator[bytes]:
            yield b"wait"
            await self.go.wait()
            yield b"go"

        return StreamingResponse(words())

    async def waiting(self, source: str) -> socket.socket:
        """Open a connection whose answer is under way."""
        own = await self.connect(source, ask("/wait"))
        while b"wait" not in await read(own):
            pass
        return own

    async def connect(self, source: str, *chunks: bytes) -> socket.socket:
        """Open a connection from there and say that, one behind the other; nothing is read."""
        own = socket.socket()
        self.connections.append(own)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        own.bind((source, 0))
        own.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(own, ("127.0.0.1", self.port))
        await loop.sock_sendall(own, b"".join(chunks))
        return own

    async def given_back(self) -> None:
        """Wait until no answer is held."""
        while self.responder.held:  # noqa: ASYNC110 - what is waited for is a plain attribute
            await asyncio.sleep(0.01)


def noise(size: int) -> str:
    """So many characters, which do not repeat."""
    return random.Random(size).randbytes(size // 2 + 1).hex()[:size]  # noqa: S311 - no secret


def ask(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


def is_open(own: socket.socket) -> bool:
    """Whether the server's process still has it."""
    host, port = own.getsockname()
    name = f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}"
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines())
    return any(row[2] == name and row[3] in OPEN for row in rows)


async def gone(own: socket.socket) -> None:
    """Wait until it is open no more; nothing is read."""
    while is_open(own):  # noqa: ASYNC110 - what the system knows of it
        await asyncio.sleep(0.01)


async def read(own: socket.socket, size: int = 65536) -> bytes:
    """Return the bytes that have come, up to so many; b"" at the end."""
    return await asyncio.get_running_loop().sock_recv(own, size)


async def status(own: socket.socket) -> int:
    """That of the next answer, which is small."""
    return int((await read(own)).split()[1])


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr(connections, "READ_SECONDS", SECONDS)
    server, application = Served(), FastAPI()
    problems.install(application)
    application.get("/large/{size}")(server.answer)
    application.get("/stream")(server.stream)
    application.get("/wait")(server.wait)

    @application.get("/")
    async def small() -> str:
        return "ok"

    @application.websocket("/socket")
    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        async for message in socket.iter_text():
            await socket.send_text(message)

    cluster = await client.connect(kubeconfigs.write(tmp_path / "kubeconfig", server="http://127.0.0.1:1"))
    database = databases.Database("postgresql://postgres@127.0.0.1:1/postgres")
    parts = apis.parts(cluster=cluster, database=database, settings=platforms.API())
    async with apis.listening(parts, application=application) as url:
        server.port = int(url.rpartition(":")[2])
        yield server
        for own in server.connections:
            own.close()
    await database.close()
    await cluster.close()


@pytest.mark.parametrize("many", [1, 20], ids=["one", "many in a row"])
async def test_client_that_reads_nothing_is_cut_off_and_its_answer_is_dropped(served: Served, many: int) -> None:
    began = time.monotonic()
    hostile = await served.connect(HOSTILE, *[ask(f"/large/{LARGE}")] * many)
    await gone(hostile)
    assert time.monotonic() - began > SECONDS * 0.9
    await served.given_back()
    assert served.asked == 1


async def test_client_that_does_not_read_a_stream_is_cut_off(served: Served) -> None:
    await gone(await served.connect(HOSTILE, ask("/stream")))
    await served.ended.wait()


async def test_slow_client_gets_the_whole_answer_byte_for_byte(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "READ_SECONDS", 2.5 * SECONDS)
    slow = await served.connect(HOSTILE, ask(f"/large/{LARGE // 2}"))
    began, come = time.monotonic(), bytearray()
    while not come.endswith(b'"}'):
        come += await read(slow)
        await asyncio.sleep(0.005)  # the pace
    assert time.monotonic() - began > 4 * SECONDS, "it was no slow one"
    _, _, body = bytes(come).partition(b"\r\n\r\n")
    assert Text.model_validate_json(body).text == noise(LARGE // 2)


@pytest.mark.parametrize("size", [1, 65536], ids=["a byte", "more, and not enough"])
async def test_client_that_reads_too_little_is_cut_off(served: Served, size: int) -> None:
    hostile = await served.connect(HOSTILE, ask(f"/large/{LARGE}"))

    async def drip() -> None:
        with contextlib.suppress(ConnectionError):
            while await read(hostile, size):  # noqa: ASYNC110 - nothing to wait for
                await asyncio.sleep(SECONDS / 8)  # the pace

    dripping = asyncio.create_task(drip())
    await gone(hostile)
    dripping.cancel()  # nothing may tell it
    await served.given_back()


async def test_stream_that_is_read_has_no_time_limit(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "READ_SECONDS", 2.5 * SECONDS)
    reader = await served.connect(HOSTILE, ask("/stream"))
    began = time.monotonic()
    while time.monotonic() < began + 4 * SECONDS:
        assert await read(reader)
    assert not served.ended.is_set()


async def test_hundred_clients_that_read_nothing_hold_no_more_than_the_process_allows(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "HELD_MAX", 1_000_000)
    monkeypatch.setattr(connections, "READ_SECONDS", 100.0)
    hostile = [await served.connect(HOSTILE, ask("/large/300000")) for _ in range(100)]
    statuses = [int((await read(own, 12)).split()[1]) for own in hostile]
    assert set(statuses) == {200, 503}
    assert served.responder.held == statuses.count(200) * len(Text(text=noise(300_000)).model_dump_json())
    assert 600_000 < served.responder.held <= 1_000_000
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(local_addr=(HONEST, 0))) as session:
        url = f"http://127.0.0.1:{served.port}/large/400000"
        async with session.get(url) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "1")
        for own in hostile:
            own.close()
        await served.given_back()
        async with session.get(url) as response:
            assert response.status == 200
            assert Text.model_validate_json(await response.read()).text == noise(400_000)


async def test_process_refuses_connections_beyond_its_limit_with_a_reason(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 5)
    waiting = [await served.waiting(source) for source in (HOSTILE, HONEST, HOSTILE, HONEST, HOSTILE)]
    refused = await served.connect(HONEST)
    assert b"5 connections are open already" in await read(refused)
    assert await read(refused) == b""
    waiting.pop().close()
    while await status(await served.connect(HONEST, ask("/", "Connection: close"))) != 200:
        pass  # until the server has seen it go
    served.go.set()
    for own in waiting:
        assert b"go" in await read(own)


async def test_time_of_a_request_does_not_run_on_in_a_websocket(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", SECONDS)
    async with aiohttp.ClientSession() as session:
        began = time.monotonic()
        async with session.ws_connect(f"http://127.0.0.1:{served.port}/socket") as websocket:
            while time.monotonic() < began + 2 * SECONDS:
                await websocket.send_str("still there")
                assert await websocket.receive_str() == "still there"
                await asyncio.sleep(SECONDS / 8)  # the pace: a client that sends as fast as it can is closed

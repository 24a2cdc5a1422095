"""Connections that are slow, silent or many, and large bodies: any caller that reaches the port can open them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from pathlib import Path

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from support import apis, kubeconfigs
from tarsy.kube import client
from tarsy.serve import bodies, connections, problems
from tarsy.store.base import databases
from tarsy_dev import patience

SECONDS = 1.0
"""How long a request may take where that is tested; elsewhere a busy machine has its time."""
Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@pytest.fixture
def cut_off() -> asyncio.Event:
    """Set when the answer of `/flood`, which has no end, is cut off."""
    return asyncio.Event()


@pytest.fixture
async def connect(tmp_path: Path, cut_off: asyncio.Event, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Connect]:
    """Opens connections to a server that tells how long the body was."""
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 60.0)
    application, held = FastAPI(), bodies.Bodies()
    problems.install(application)

    @application.post("/")
    async def length(request: Request) -> int:
        return len(await held.read(request, limit=2000))

    @application.get("/wait")
    async def wait() -> StreamingResponse:
        async def words() -> AsyncIterator[bytes]:
            yield b"wait"
            await asyncio.Event().wait()

        return StreamingResponse(words())

    @application.get("/flood")
    async def flood() -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"x" * 65536
                    await asyncio.sleep(0)  # as what reads a database
            finally:
                cut_off.set()

        return StreamingResponse(pieces())

    @application.post("/refused")
    async def refuse() -> None:
        raise problems.Problem(HTTPStatus.UNAUTHORIZED, "who?")

    cluster = await client.connect(kubeconfigs.write(tmp_path / "kubeconfig", server="http://127.0.0.1:1"))
    database = databases.Database("postgresql://postgres@127.0.0.1:1/postgres")
    writers: list[asyncio.StreamWriter] = []
    async with apis.listening(apis.parts(cluster=cluster, database=database), application=application) as url:

        async def open_one() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            writers.append(writer)
            return reader, writer

        yield open_one
        for writer in writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    await database.close()
    await cluster.close()


def post(body: bytes, *, length: int | None = None, path: str = "/") -> bytes:
    size = len(body) if length is None else length
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode() + body


async def answer(reader: asyncio.StreamReader) -> tuple[int, str]:
    """The next answer: status and body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    (length,) = [line.partition(":")[2] for line in head.splitlines() if line.lower().startswith("content-length")]
    return int(head.split()[1]), (await reader.readexactly(int(length))).decode()


async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: bytes) -> bytes:
    """Send `text` again and again, slowly, until the other side closes: what it said."""
    received = b""
    while True:
        with contextlib.suppress(OSError):
            writer.write(text)
            await writer.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SECONDS / 20):  # the pace
                if not (came := await reader.read(4096)):
                    return received
                received += came


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (b"", b""),
        (b"POST / HT", b""),
        (b"POST / HTTP/1.1\r\nHost: x\r\n", b"X-More: 1\r\n"),
        (post(b"", length=1000), b"x"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (post(b"whole") + b"POST / ", b""),
    ],
    ids=["silent", "half a line", "headers", "a body", "chunks", "the second request"],
)
async def test_request_that_does_not_arrive_in_time_gets_a_reason_and_its_connection_is_closed(
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    first: bytes,
    then: bytes,
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", SECONDS)
    async with patience.limit():
        began = time.monotonic()
        reader, writer = await connect()
        writer.write(first)
        if b"whole" in first:
            assert await answer(reader) == (200, "5")
        received = await trickle(reader, writer, then)
        assert b"HTTP/1.1 408 " in received
        assert b"the request has to arrive within 1 s" in received
        assert time.monotonic() - began > SECONDS * 0.9
        monkeypatch.setattr(connections, "REQUEST_SECONDS", 60.0)
        reader, writer = await connect()
        writer.write(post(b"as ever"))
        assert await answer(reader) == (200, "7")
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_unanswered_request_bodies_share_one_memory_limit(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "HELD_MAX", 2000)
    async with patience.limit():
        slow_reader, slow = await connect()
        slow.write(post(b"x" * 1500, length=1600))
        status = 200
        while status == 200:  # until the server has read what is there of it
            reader, writer = await connect()
            writer.write(post(b"y" * 600))
            status, problem = await answer(reader)
        assert (status, "request bodies of 2000 bytes are held already" in problem) == (503, True)
        slow.write(b"x" * 100)
        assert await answer(slow_reader) == (200, "1600")
        while status != 200:  # until its task has ended
            reader, writer = await connect()
            writer.write(post(b"y" * 600))
            status, _ = await answer(reader)


async def test_client_that_reads_nothing_is_cut_off(
    connect: Connect, cut_off: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "READ_SECONDS", SECONDS)
    _, writer = await connect()
    writer.write(b"GET /flood HTTP/1.1\r\nHost: x\r\n\r\n")
    async with patience.limit():
        await cut_off.wait()


async def test_process_refuses_connections_beyond_its_limit_with_a_reason(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 2)
    async with patience.limit():
        for _ in range(2):
            reader, writer = await connect()
            writer.write(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"wait")
        refused, _ = await connect()
        assert b"2 connections are open already" in await refused.read()

"""Requests to receivers on loopback that hang, break off, speak no HTTP or cannot be reached."""

from __future__ import annotations

import asyncio
import socket

import pytest
from aiohttp import abc
from tarsy.deliveries import requests


async def answer_of(reply: bytes, *, answer_max: int = requests.ANSWER_MAX, close: bool = True) -> requests.Answer:
    """The answer to a request at a server that replies with these bytes, and then closes or hangs."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        if not close:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    never_ends = not close and answer_max > 0
    async with server, requests.Client(seconds=0.5 if never_ends else 60.0) as client:
        port = server.sockets[0].getsockname()[1]
        return await client.send("GET", f"http://127.0.0.1:{port}/", headers={}, answer_max=answer_max)


BEGUN = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nok"


@pytest.mark.parametrize("close", [True, False], ids=["breaks off", "hangs"])
async def test_broken_or_hanging_body_does_not_undo_success_if_body_is_not_read(*, close: bool) -> None:
    assert (await answer_of(BEGUN, answer_max=0, close=close)).status == 200
    with pytest.raises(requests.UndeliveredError, match="its answer breaks off" if close else "no answer in time"):
        await answer_of(BEGUN, close=close)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"", "it closed the connection"),
        (b"garbage\r\n\r\n", "its answer is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", "its answer is not HTTP"),
        (b"HTTP/1.1 503 Away\r\nContent-Length: 100\r\n\r\nsecret", "it answers 503"),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", "it answers 302, a redirect, which is not followed"),
    ],
)
async def test_answer_that_is_no_success_is_named_without_its_text(reply: bytes, reason: str) -> None:
    with pytest.raises(requests.UndeliveredError) as error:
        await answer_of(reply)
    assert str(error.value).startswith(reason)
    assert "secret" not in str(error.value)


class _NoName(abc.AbstractResolver):
    """A name server that knows no name."""

    async def resolve(self, host: str, *_: object, **__: object) -> list[abc.ResolveResult]:
        raise socket.gaierror(socket.EAI_NONAME, host)

    async def close(self) -> None: ...


async def test_unresolved_host_name_and_failed_tls_are_reported_as_such() -> None:
    async with requests.Client(resolver=_NoName()) as client:
        with pytest.raises(requests.UndeliveredError) as error:
            await client.send("GET", "http://hook.secret.example/", headers={})
    assert str(error.value) == "its name is not found"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, requests.Client() as client:
        with pytest.raises(requests.UndeliveredError) as error:
            await client.send("GET", f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/", headers={})
    assert str(error.value) == "its TLS certificate is not accepted, or it speaks no TLS"

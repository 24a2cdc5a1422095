"""The MCP client's HTTP, over real sockets: what it sends, what it reads, and what it raises as httpx2 would."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx2
import pytest
from tarsy import transport
from tarsy_dev import loopback

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
PACKED = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello"
REDIRECT = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"


class Server:
    """Answers each request with the next of `answers`; None is silence, b"" an end."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.heads: list[str] = []
        self.connections = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                for line in head.lower().splitlines():
                    if line.startswith("content-length: "):
                        await reader.readexactly(int(line.removeprefix("content-length: ")))
                answer = self.answers.pop(0)
                if answer is None:
                    await reader.read()
                    break
                writer.write(answer)
                await writer.drain()
                if answer in (b"", CUT):
                    break
        writer.close()


@contextlib.asynccontextmanager
async def client(*answers: bytes | None, read: float = 5) -> AsyncIterator[tuple[httpx2.AsyncClient, Server]]:
    server = Server(*answers)
    listening = loopback.listen(0)
    server.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    async with (
        await asyncio.start_server(server.serve, sock=listening),
        httpx2.AsyncClient(
            transport=transport.Transport(server.url), base_url=server.url, timeout=httpx2.Timeout(5, read=read)
        ) as http,
    ):
        yield http, server


async def test_a_request_arrives_as_it_was_made_and_its_connection_is_used_again() -> None:
    async with client(OK, CHUNKED) as (http, server):
        first = await http.post("/mcp?a=%2F", content=b"{}", headers={"Mcp-Session-Id": "s"})
        second = await http.get("/mcp")
    assert (first.text, second.text) == ("hello", "hello")
    assert first.headers["content-type"] == "text/plain"
    assert server.connections == 1
    assert server.heads[0].startswith("POST /mcp?a=%2F HTTP/1.1\r\n")
    assert "mcp-session-id: s\r\n" in server.heads[0].lower()
    assert server.heads[0].lower().count("host: ") == server.heads[0].lower().count("content-length: ") == 1


async def test_a_packed_body_and_a_redirect_are_left_as_they_are() -> None:
    async with client(PACKED, REDIRECT) as (http, _):
        async with http.stream("GET", "/") as packed:
            assert b"".join([chunk async for chunk in packed.aiter_raw()]) == b"hello"
        assert (await http.get("/")).status_code == 302


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        (None, httpx2.ReadTimeout),
        (b"", httpx2.ReadError),
        (CUT, httpx2.RemoteProtocolError),
        (b"no http\r\n\r\n", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", httpx2.RemoteProtocolError),
    ],
    ids=["silence", "no answer", "half an answer", "no HTTP", "an endless header"],
)
async def test_failures_are_errors_of_httpx2(answer: bytes | None, raised: type[Exception]) -> None:
    async with client(answer, read=0.2 if answer is None else 60) as (http, _):
        with pytest.raises(raised):
            await http.post("/", content=b"{}")


async def test_a_body_that_is_left_early_ends_its_connection() -> None:
    async with client(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhello", OK) as (http, server):
        async with http.stream("GET", "/") as response:
            assert response.status_code == 200
        assert (await http.get("/")).text == "hello"
    assert server.connections == 2


async def test_a_proxy_that_the_environment_names_is_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    async with client(OK) as (_, server):
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.setenv("HTTP_PROXY", server.url)
        async with httpx2.AsyncClient(transport=transport.Transport("http://mcp.invalid")) as http:
            assert (await http.get("http://mcp.invalid/mcp")).text == "hello"
    assert server.heads[0].startswith("GET http://mcp.invalid/mcp HTTP/1.1")

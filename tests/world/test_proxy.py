"""The TCP proxy, in front of a server that echoes lines and counts them."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.parse
from collections.abc import AsyncIterator

import asyncpg
import pytest
from tarsy_dev import proxy


class Echo:
    def __init__(self) -> None:
        self.lines: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                self.lines.append(line)
                writer.write(b"echo " + line)
                await writer.drain()
        writer.close()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def say(self, line: bytes) -> None:
        self.writer.write(line)
        await self.writer.drain()

    async def ask(self, line: bytes) -> bytes:
        """The server's answer; empty when the connection has ended."""
        try:
            await self.say(line)
            return await asyncio.wait_for(self.reader.readline(), 60)
        except ConnectionError:
            return b""


@contextlib.asynccontextmanager
async def connected(p: proxy.Proxy) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", p.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


@contextlib.asynccontextmanager
async def echoing() -> AsyncIterator[tuple[proxy.Proxy, Echo]]:
    echo = Echo()
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        port: int = server.sockets[0].getsockname()[1]
        async with proxy.serve("127.0.0.1", port) as p:
            yield p, echo


async def test_it_forwards_both_ways_and_counts() -> None:
    async with echoing() as (p, _), connected(p) as client:
        assert await client.ask(b"hello\n") == b"echo hello\n"
        await p.wait_for(lambda: (p.connections, p.open_connections, p.bytes_up, p.bytes_down) == (1, 1, 6, 11))


async def test_all_bytes_arrive_when_the_server_closes_after_much_text() -> None:
    async def much(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * 3_000_000)
        writer.close()

    async with await asyncio.start_server(much, "127.0.0.1", 0) as server:
        port: int = server.sockets[0].getsockname()[1]
        async with proxy.serve("127.0.0.1", port) as p, connected(p) as client:
            client.writer.write_eof()
            assert len(await asyncio.wait_for(client.reader.read(), 60)) == 3_000_000


async def test_a_blackhole_accepts_and_delivers_only_after_it_is_healed() -> None:
    async with echoing() as (p, echo), connected(p) as before:
        assert await before.ask(b"one\n") == b"echo one\n"
        p.blackhole()
        async with connected(p) as during:
            await p.wait_for(lambda: p.connections == 2)
            await before.say(b"two\n")
            await during.say(b"three\n")
            for _ in range(100):
                await asyncio.sleep(0)  # whatever could pass, passes
            assert echo.lines == [b"one\n"]
            p.heal()
            assert await asyncio.wait_for(before.reader.readline(), 60) == b"echo two\n"
            assert await asyncio.wait_for(during.reader.readline(), 60) == b"echo three\n"


async def test_refused_connections_are_accepted_again_on_the_same_port() -> None:
    async with echoing() as (p, _), connected(p) as before:
        assert await before.ask(b"one\n") == b"echo one\n"
        p.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", p.port)
        assert await before.ask(b"two\n") == b"echo two\n"
        p.accept()
        async with connected(p) as after:
            assert await after.ask(b"three\n") == b"echo three\n"


@pytest.mark.parametrize("blackholed", [False, True])
async def test_a_cut_ends_all_connections_at_once_and_no_later_ones(blackholed: bool) -> None:
    async with echoing() as (p, _), connected(p) as client:
        assert await client.ask(b"one\n") == b"echo one\n"
        if blackholed:
            p.blackhole()
        assert p.cut() == 1
        assert await client.ask(b"two\n") == b""
        p.heal()
        async with connected(p) as later:
            assert await later.ask(b"three\n") == b"echo three\n"


async def test_a_lost_reply_is_to_a_request_that_the_server_has_served() -> None:
    async with echoing() as (p, echo):
        p.lose_reply(lambda sent: b"COMMIT" in sent, times=2)
        for _ in range(2):
            async with connected(p) as client:
                assert await client.ask(b"BEGIN\n") == b"echo BEGIN\n"
                assert await client.ask(b"COMMIT\n") == b""
        async with connected(p) as client:
            assert await client.ask(b"COMMIT\n") == b"echo COMMIT\n"
    assert echo.lines == [b"BEGIN\n", b"COMMIT\n"] * 2 + [b"COMMIT\n"]
    assert p.lost_replies == 2


async def test_a_commit_whose_reply_is_lost_has_happened(database_url: str) -> None:
    url = urllib.parse.urlsplit(database_url)
    assert url.hostname
    async with proxy.serve(url.hostname, url.port or 5432) as p:
        through = url._replace(netloc=url.netloc.replace(f":{url.port}", f":{p.port}")).geturl()
        connection = await asyncpg.connect(through)
        await connection.execute("CREATE TABLE t (n int)")
        p.lose_reply(lambda sent: b"COMMIT" in sent)
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(asyncpg.ConnectionDoesNotExistError):
            await transaction.commit()
        connection.terminate()
        assert p.lost_replies == 1
        again = await asyncpg.connect(through)
        assert await again.fetchval("SELECT n FROM t") == 1
        await again.close()


async def test_a_request_is_recognised_across_its_pieces() -> None:
    async with echoing() as (p, echo), connected(p) as client:
        p.lose_reply(lambda sent: sent == b"COMMIT\n")
        await client.say(b"COM")
        await p.wait_for(lambda: p.bytes_up == 3)
        assert await client.ask(b"MIT\n") == b""
        assert echo.lines == [b"COMMIT\n"]


async def test_a_server_that_is_not_there_ends_the_connection() -> None:
    async with echoing() as (gone, _):
        pass
    async with proxy.serve("127.0.0.1", gone.port) as p, connected(p) as client:
        assert await client.ask(b"one\n") == b""

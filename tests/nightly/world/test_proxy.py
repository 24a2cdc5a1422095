"""The delays of the TCP proxy."""

from __future__ import annotations

import asyncio
import time

from tarsy_dev import proxy


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"echo " + await reader.readline())
    writer.close()


async def test_each_direction_can_be_delayed() -> None:
    async with (
        await asyncio.start_server(echo, "127.0.0.1", 0) as server,
        proxy.serve("127.0.0.1", server.sockets[0].getsockname()[1]) as p,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", p.port)
        p.delay_up, p.delay_down = 0.1, 0.15
        began = time.monotonic()
        writer.write(b"hello\n")
        assert await reader.readline() == b"echo hello\n"
        assert time.monotonic() - began >= 0.24
        writer.close()

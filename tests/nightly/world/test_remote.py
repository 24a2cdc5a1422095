"""MCP servers that run elsewhere, of real SDKs: over both protocols, with headers, tokens and certificates."""

from __future__ import annotations

import asyncio

import pytest
from support.remotes import call, owned, served, transport

KINDS = pytest.mark.parametrize("kind", ["http", "sse"])


@KINDS
async def test_the_time_that_a_server_may_take_is_kept(kind: str) -> None:
    async with served(kind) as there, owned(transport(kind, there.url, timeout="3s")) as (server, box):
        assert (await call(box, "slow", seconds=60)).text == "'tools.slow' did not answer within 3 s"
        assert (await call(box, "lookup")).text == "web-0 exists"
        assert server.problem == ""


async def test_a_server_that_is_silent_from_the_start_is_told_as_such() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp"
        async with owned(transport("http", url, timeout="1s")) as (server, _):
            assert server.problem == "cannot be reached: it did not answer within 1 s"

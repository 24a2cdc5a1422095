"""The pool of MCP servers, over a real one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from tarsy.config import platform
from tarsy.tools import pool
from tarsy_dev import mcp_server


@contextlib.asynccontextmanager
async def owned(server: pool.Server) -> AsyncIterator[None]:
    owner = asyncio.create_task(server.own())
    async with asyncio.timeout(20):
        await server.tried.wait()
    try:
        yield
    finally:
        owner.cancel()
        with pytest.raises(asyncio.CancelledError):
            await owner


async def test_a_client_that_broke_is_given_to_nobody_and_another_one_takes_its_place() -> None:
    async with mcp_server.serve() as remote:
        transport = platform.HTTPTransport(type="http", url=remote.url)
        server = pool.Server("tools", platform.MCPServer(transport=transport), calls=1)
        async with owned(server), asyncio.timeout(20):
            broken = await server.client()
            server.broke(broken)
            assert server.problem == "lost its connection"
            assert await server.client() is not broken
            assert server.problem == ""


async def test_why_a_server_cannot_be_reached_is_one_line_without_control_characters() -> None:
    """It goes into logs, statuses and events; the command is a stand-in for what a server may say."""
    transport = platform.StdioTransport(type="stdio", command="no\x1b[31m such\r\nprogram")
    server = pool.Server("tools", platform.MCPServer(transport=transport), calls=1)
    async with owned(server):
        assert server.problem.startswith("cannot be reached: ")
        assert server.problem.isprintable()

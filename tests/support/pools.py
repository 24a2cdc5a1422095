"""MCP servers as owners of a pool have them, on stdio."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from tarsy.config.model import platforms, server_transports
from tarsy.tools.servers import connection, pool
from tarsy_dev import patience, tools


@contextlib.asynccontextmanager
async def owned(server: connection.Server) -> AsyncIterator[None]:
    owner = asyncio.create_task(server.keep_connected())
    async with patience.limit():
        await server.tried.wait()
    try:
        yield
    finally:
        owner.cancel()
        with pytest.raises(asyncio.CancelledError):
            await owner


def stdio(folder: Path) -> server_transports.StdioTransport:
    """A server that has written its process's number into `folder`."""
    start = f"echo $$ > {folder}/pid && exec {sys.executable} -m tarsy_dev.mcp_server --stdio"
    return server_transports.StdioTransport(
        type="stdio", command="/bin/sh", args=["-c", start], env={"PYTHONPATH": str(tools.ROOT / "dev")}
    )


@contextlib.asynccontextmanager
async def running(servers: pool.Pool) -> AsyncIterator[None]:
    tasks = asyncio.create_task(servers.run())
    async with patience.limit():
        await servers.tools.wait_tried()
    try:
        yield
    finally:
        tasks.cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks


async def renew(servers: pool.Pool, settings: platforms.Platform) -> list[connection.Server]:
    tools = servers.prepare(settings)
    async with patience.limit():
        await tools.wait_tried()
    former = [server for server in servers.tools.servers.values() if server not in tools.servers.values()]
    servers.exchange(tools)
    return former


async def close(former: Sequence[connection.Server]) -> None:
    """End servers that no configuration version has any more."""
    for server in former:
        await server.close()

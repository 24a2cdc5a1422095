"""Remote MCP servers, their transports and calls through them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support import leases
from support.masking import NO_SECRETS
from tarsy import slots
from tarsy.config.model import platforms, server_transports
from tarsy.masking import known_secrets
from tarsy.tools.servers import connection, listing, toolbox
from tarsy.transcript import messages, ports
from tarsy_dev import mcp_server, patience

SCOPE = ports.Scope(execution="e", ensure_lease=leases.clear)


def transport(kind: str, url: str, **keys: Any) -> server_transports.HTTPTransport | server_transports.SSETransport:
    fields = {"type": kind, "url": url, **keys}
    settings = platforms.MCPServer.model_validate({"transport": fields}).transport
    assert isinstance(settings, server_transports.RemoteTransport)
    return settings


@contextlib.asynccontextmanager
async def owned(
    settings: server_transports.Transport, *, secrets: known_secrets.KnownSecrets = NO_SECRETS
) -> AsyncIterator[tuple[connection.Server, toolbox.PoolToolbox]]:
    there = platforms.MCPServer(transport=settings, write_tools=["*"])
    server = connection.Server("tools", there, limit=slots.Slots(8), secrets=secrets)
    owner = asyncio.create_task(server.keep_connected())
    async with patience.limit():
        await server.tried.wait()
    try:
        yield (
            server,
            toolbox.PoolToolbox(
                [server], limits=platforms.Limits(), selection=listing.ToolSelection({"tools": there}, lambda _: True)
            ),
        )
    finally:
        owner.cancel()
        with pytest.raises(asyncio.CancelledError):
            await owner


async def call(box: toolbox.PoolToolbox, tool: str, **arguments: object) -> ports.ToolOutput:
    asked = messages.ToolCall(id="0.0", name=f"tools.{tool}", arguments=json.dumps(arguments))
    return await box.call(asked, SCOPE)


def served(kind: str, **more: Any) -> contextlib.AbstractAsyncContextManager[mcp_server.Server]:
    return mcp_server.serve(wire="sse" if kind == "sse" else "mcp", **more)

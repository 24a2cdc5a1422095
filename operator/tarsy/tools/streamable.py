"""MCP servers that run elsewhere, over streamable HTTP, with a limit on what an answer may be.

The SDK reads an answer whole before it parses it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import anyio
from mcp.client import streamable_http

from tarsy.config import platform
from tarsy.tools import bounds, progress, remote


@contextlib.asynccontextmanager
async def client(settings: platform.HTTPTransport, *, reports: progress.Reports) -> AsyncIterator[Any]:
    """A transport for `mcp.Client`."""
    async with (
        remote.client(settings) as http,
        streamable_http.streamable_http_client(
            settings.url, http_client=http, max_sse_event_size=bounds.MESSAGE_MAX
        ) as (reads, *others),
    ):
        received, checked = anyio.create_memory_object_stream[Any](0)
        checking = asyncio.create_task(_check(reads, received, reports))
        with received, checked:
            try:
                yield (checked, *others)
            finally:
                checking.cancel()


async def _check(reads: Any, received: Any, reports: progress.Reports) -> None:
    with received, contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for one in reads:
            if not reports.takes(checked := bounds.checked(one)):
                await received.send(checked)

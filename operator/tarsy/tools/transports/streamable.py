"""MCP servers over streamable HTTP: the SDK's transport, with bounds on messages and our own parser."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any, TypeAlias

import anyio
import httpx2
from mcp import types
from mcp.client import streamable_http
from mcp.shared import message

from tarsy.config.model import server_transports
from tarsy.tools.transports import progress, remote, wire

_REFUSED = ("Server returned an error response", "Not Found")
"""The SDK's texts for a refused request. Its text for an ended session is not changed, because callers recognise it."""
Statuses: TypeAlias = dict[Any, int]
"""The statuses of refused requests, by their ids."""


class _Parser:
    """Replaces the parser of the SDK's transport."""

    def validate_json(self, data: str | bytes, *, by_name: bool) -> types.JSONRPCMessage:  # noqa: ARG002 - the SDK's
        return wire.parse(data)


streamable_http.jsonrpc_message_adapter = _Parser()  # type: ignore[assignment,attr-defined]


@contextlib.asynccontextmanager
async def client(settings: server_transports.HTTPTransport, *, reports: progress.Reports) -> AsyncIterator[Any]:
    """A transport for `mcp.Client`."""
    refused: Statuses = {}

    async def remember_refusal(response: httpx2.Response) -> None:
        """Remember the status of a refused request, because the SDK's error has none."""
        if response.status_code >= HTTPStatus.BAD_REQUEST and response.request.method == "POST":
            request = json.loads(response.request.content)
            if "method" in request and "id" in request:
                refused[request["id"]] = response.status_code

    async with remote.client(settings) as http:
        http.event_hooks["response"].append(remember_refusal)
        async with streamable_http.streamable_http_client(
            settings.url, http_client=http, max_sse_event_size=wire.MESSAGE_MAX
        ) as (reads, *others):
            received, bounded = anyio.create_memory_object_stream[Any](0)
            bridge = asyncio.create_task(_deliver(reads, received, reports, refused))
            with received, bounded:
                try:
                    yield (bounded, *others)
                finally:
                    bridge.cancel()


async def _deliver(reads: Any, received: Any, reports: progress.Reports, refused: Statuses) -> None:
    with received, contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for read in reads:
            if not reports.takes(incoming := wire.bounded(_with_status(read, refused))):
                await received.send(incoming)


def _with_status(received: Any, refused: Statuses) -> Any:
    """The received message; the status is added to the SDK's error for a refused request."""
    if not isinstance(received, message.SessionMessage) or not isinstance(received.message, types.JSONRPCError):
        return received
    error, status = received.message.error, refused.pop(received.message.id, None)
    if status is None or error.message not in _REFUSED:
        return received
    described = error.model_copy(update={"message": f"it answered with status {status}"})
    return message.SessionMessage(received.message.model_copy(update={"error": described}), metadata=received.metadata)

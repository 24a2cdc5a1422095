"""MCP servers that run elsewhere, over streamable HTTP, with a limit on what an answer may be.

The SDK reads an answer whole before it parses it.
"""

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

from tarsy.config.model import platforms
from tarsy.tools.transports import bounds, progress, remote, wire

_OF_STATUS = ("Server returned an error response", "Not Found")
"""The SDK's words for a refusal; another, that of a session which has ended, is told apart by who calls."""
Refused: TypeAlias = dict[Any, int]
"""The statuses of requests that were refused, by their ids."""


class _Parser:
    """Stands for the parser of the SDK's transport."""

    def validate_json(self, data: str | bytes, *, by_name: bool) -> types.JSONRPCMessage:  # noqa: ARG002 - the SDK's
        return wire.parse(data)


streamable_http.jsonrpc_message_adapter = _Parser()  # type: ignore[assignment,attr-defined]


@contextlib.asynccontextmanager
async def client(settings: platforms.HTTPTransport, *, reports: progress.Reports) -> AsyncIterator[Any]:
    """A transport for `mcp.Client`."""
    async with (
        remote.client(settings) as http,
        _refusals(http) as refused,
        streamable_http.streamable_http_client(
            settings.url, http_client=http, max_sse_event_size=bounds.MESSAGE_MAX
        ) as (reads, *others),
    ):
        received, checked = anyio.create_memory_object_stream[Any](0)
        checking = asyncio.create_task(_check(reads, received, reports, refused))
        with received, checked:
            try:
                yield (checked, *others)
            finally:
                checking.cancel()


@contextlib.asynccontextmanager
async def _refusals(http: httpx2.AsyncClient) -> AsyncIterator[Refused]:
    """Keeps with which status requests were refused: the SDK has the same words for all."""
    refused: Refused = {}

    async def note(response: httpx2.Response) -> None:
        if response.status_code >= HTTPStatus.BAD_REQUEST and response.request.method == "POST":
            asked = json.loads(response.request.content)
            if "method" in asked and "id" in asked:
                refused[asked["id"]] = response.status_code

    http.event_hooks["response"].append(note)
    yield refused


def _with_status(response: Any, refused: Refused) -> Any:
    """Return the received message; an error that the SDK made of a refusal gets its status."""
    if not isinstance(response, message.SessionMessage) or not isinstance(response.message, types.JSONRPCError):
        return response
    error, status = response.message.error, refused.pop(response.message.id, None)
    if status is None or error.message not in _OF_STATUS:
        return response
    described = error.model_copy(update={"message": f"it answered with status {status}"})
    return message.SessionMessage(response.message.model_copy(update={"error": described}), metadata=response.metadata)


async def _check(reads: Any, received: Any, reports: progress.Reports, refused: Refused) -> None:
    with received, contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for read in reads:
            if not reports.takes(checked := bounds.checked(_with_status(read, refused))):
                await received.send(checked)

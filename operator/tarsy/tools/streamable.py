"""MCP servers that run elsewhere, over streamable HTTP, with a limit on what an answer may be.

The SDK reads an answer whole before it parses it, and would unpack what a server has compressed on top of that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import httpx2
from mcp.client import streamable_http

from tarsy import transport
from tarsy.tools import bounds, progress

LOOK_LASTS_SECONDS = 10.0
_AWAY = frozenset({502, 503, 504})
"""What a proxy says of a server that is not there."""
_TIMEOUT = httpx2.Timeout(30.0, read=300.0)  # the SDK's own


class UnreadableError(httpx2.StreamError, httpx2.SSEError):
    """A body that is not read on: of both kinds that the SDK makes the call's error, for JSON and for events."""

    def __init__(self, why: str) -> None:
        httpx2.SSEError.__init__(self, why)


@contextlib.asynccontextmanager
async def client(url: str, *, reports: progress.Reports) -> AsyncIterator[Any]:
    """A transport for `mcp.Client`."""
    received, checked = anyio.create_memory_object_stream[Any](0)
    async with (
        httpx2.AsyncClient(
            transport=transport.Transport(url),
            timeout=_TIMEOUT,
            headers={"Accept-Encoding": "identity"},
            event_hooks={"response": [_bound]},
        ) as http,
        streamable_http.streamable_http_client(url, http_client=http, max_sse_event_size=bounds.MESSAGE_MAX) as (
            reads,
            *others,
        ),
    ):
        checking = asyncio.create_task(_check(reads, received, reports))
        with received, checked:
            try:
                yield (checked, *others)
            finally:
                checking.cancel()


@contextlib.asynccontextmanager
async def looking(url: str) -> AsyncIterator[Callable[[], Awaitable[bool]]]:
    """What tells whether a server is there: whether it answers at all, be it with a refusal.

    Each time over a new connection, so that no call can suffer from it. Who is silent may be busy, and is there.
    """
    async with httpx2.AsyncClient(
        transport=transport.Transport(url), timeout=LOOK_LASTS_SECONDS, headers={"Connection": "close"}
    ) as http:

        async def is_there() -> bool:
            try:
                async with http.stream("OPTIONS", url) as response:
                    return response.status_code not in _AWAY
            except (httpx2.ReadTimeout, httpx2.WriteTimeout):
                return True
            except httpx2.HTTPError:
                return False

        yield is_there


async def _check(reads: Any, received: Any, reports: progress.Reports) -> None:
    with received, contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for one in reads:
            if not reports.takes(checked := bounds.checked(one)):
                await received.send(checked)


async def _bound(response: httpx2.Response) -> None:
    """Put a limit on the body of `response`, which nobody has read yet.

    Also where it is the stream of a server's own messages: we do nothing on them, so it may end.
    """
    assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - the client is an asynchronous one
    encoding = response.headers.pop("Content-Encoding", "identity")
    response.encoding = "utf-8"  # whatever it says: bytes are counted, and others could stand for more
    response.stream = _Bounded(response.stream, packed=encoding.strip().lower() != "identity")


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, *, packed: bool) -> None:
        self._stream = stream
        self._packed = packed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._packed:
            raise UnreadableError("it sent a compressed answer, which was not asked for")
        read, values = 0, bounds.Values()
        async for chunk in self._stream:
            read += len(chunk)
            if read > bounds.MESSAGE_MAX:
                raise UnreadableError(bounds.TOO_LARGE)
            if not values.feed(chunk):
                raise UnreadableError(bounds.TOO_MANY)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()

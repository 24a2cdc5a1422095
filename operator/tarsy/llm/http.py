"""HTTP of the SDKs that speak it by httpx2: over the session that all share, and to one address only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

import aiohttp
import httpx2

from tarsy import transport
from tarsy.llm import provider

EVENT_MAX = 16 * 1024 * 1024
"""Bytes of one event of a stream, or of an error: SDKs hold it whole."""
BODY_MAX = 256 * 1024 * 1024
"""Bytes of an answer, of which most are not its text."""
CONNECT = 30.0
"""Seconds for a connection; how long an answer may take is said elsewhere."""
_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")

_responses: ContextVar[list[httpx2.Response]] = ContextVar("responses")
"""The responses of the stream that is asked for: the SDKs keep them to themselves."""


def client(url: str, session: aiohttp.ClientSession) -> httpx2.AsyncClient:
    """A client for requests to `url`; it needs no closing, `session` is its caller's."""
    origin = transport.origin(httpx2.URL(url))

    async def stays(request: httpx2.Request) -> None:
        """Of a redirected request httpx2 takes out `Authorization` alone: key and conversation would go along."""
        if transport.origin(request.url) != origin:
            raise provider.FatalError("the server redirects to another origin, which gets neither key nor conversation")

    return httpx2.AsyncClient(
        transport=transport.Transport(url, session),
        timeout=httpx2.Timeout(None, connect=CONNECT),
        follow_redirects=True,
        trust_env=False,
        headers={"Accept-Encoding": "identity"},
        event_hooks={"request": [stays], "response": [_bounded]},
    )


@asynccontextmanager
async def closing() -> AsyncIterator[None]:
    """Close at its end what was opened in it: a stream that is left early must not wait for a garbage collector."""
    responses: list[httpx2.Response] = []
    _responses.set(responses)
    try:
        yield
    finally:
        for response in responses:
            await response.aclose()


async def _bounded(response: httpx2.Response) -> None:
    assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - the client is an asynchronous one
    response.stream = _Events(response.stream)
    _responses.get([]).append(response)
    if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise provider.FatalError("the server sent a compressed answer, which was not asked for")


class _Events(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = whole = 0
        async for chunk in self._stream:
            whole += len(chunk)
            end = max(map(chunk.rfind, _ENDS))
            size = size + len(chunk) if end < 0 else len(chunk) - end
            if size > EVENT_MAX:
                raise provider.RejectedError(f"the server sent more than {EVENT_MAX // 2**20} MiB in one event")
            if whole > BODY_MAX:
                raise provider.RejectedError(f"the server sent more than {BODY_MAX // 2**20} MiB")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()

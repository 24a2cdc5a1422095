"""The HTTP of SDKs that want httpx2's, by aiohttp: httpx2's own is all Python, and three times as slow."""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import aiohttp
import httpx2
import yarl

from tarsy import proxies
from tarsy.telemetry import logs

_ERRORS: dict[type[Exception], type[httpx2.TransportError]] = {
    aiohttp.ConnectionTimeoutError: httpx2.ConnectTimeout,
    aiohttp.SocketTimeoutError: httpx2.ReadTimeout,
    aiohttp.ClientConnectorError: httpx2.ConnectError,
    aiohttp.ClientResponseError: httpx2.RemoteProtocolError,
    aiohttp.ClientPayloadError: httpx2.RemoteProtocolError,
    aiohttp.ClientError: httpx2.ReadError,
    OSError: httpx2.ReadError,
}
"""The exceptions of httpx2 by those of aiohttp; the first match counts."""
_QUOTING = (aiohttp.ClientResponseError, aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError)
_QUOTE = re.compile(r"[:\n'\"(<]|when reading")
"""Where a parser's own words end, and what it has received begins."""


def origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    """Return the origin of a URL, comparable with others."""
    return url.scheme, url.host, url.port


class Transport(httpx2.AsyncBaseTransport):
    """Requests to one address; opened and closed by its client."""

    def __init__(
        self, url: str, session: aiohttp.ClientSession | None = None, *, tls: ssl.SSLContext | None = None
    ) -> None:
        """`url` is where the requests go, which says by what proxy; `session`, if given, stays the caller's.

        `tls` is how others are believed, and who we are to them, if there is no session; None is the system's.
        """
        self._proxy = proxies.proxy_for(url)
        self._session = session
        self._tls = tls
        self._is_https = httpx2.URL(url).scheme == "https"
        self._is_ours = session is None

    async def __aenter__(self) -> Self:
        """Open nothing yet but the pool."""
        if self._is_ours:
            trusted = self._tls or (httpx2.create_ssl_context() if self._is_https else True)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=trusted),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the pool."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close the pool."""
        if self._session is not None and self._is_ours:
            await self._session.close()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send `request`; the caller reads the answer's body."""
        assert self._session is not None  # noqa: S101 - the client has opened it
        url = request.url.copy_with(userinfo=b"") if request.url.userinfo else request.url  # it is a header by now
        seconds: dict[str, float | None] = request.extensions.get("timeout", {})
        with _as_httpx2(request), logs.nobodys():  # a connection that is made for it goes on behind its run
            response = await self._session.request(
                request.method,
                yarl.URL(str(url), encoded=True),
                headers=request.headers.multi_items(),
                data=await request.aread() or None,
                allow_redirects=False,
                auto_decompress=False,
                proxy=self._proxy,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=seconds.get("connect"), sock_read=seconds.get("read")
                ),
            )
        return httpx2.Response(
            response.status, headers=list(response.raw_headers), stream=_Body(response, request), request=request
        )


class _Body(httpx2.AsyncByteStream):
    def __init__(self, response: aiohttp.ClientResponse, request: httpx2.Request) -> None:
        self._response = response
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_httpx2(self._request):
            async for chunk in self._response.content.iter_any():
                yield chunk

    async def aclose(self) -> None:
        """End the connection, unless it was read to its end: then it has gone back to the pool."""
        self._response.close()


class FilteredBody(httpx2.AsyncByteStream):
    """A body whose pieces go through a filter."""

    def __init__(
        self, body: httpx2.AsyncByteStream, filtered: Callable[[httpx2.AsyncByteStream], AsyncIterator[bytes]]
    ) -> None:
        self._body = body
        self._filtered = filtered

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._filtered(self._body)

    async def aclose(self) -> None:
        """Close the body."""
        await self._body.aclose()


@contextmanager
def _as_httpx2(request: httpx2.Request) -> Iterator[None]:
    try:
        yield
    except tuple(_ERRORS) as error:
        raised: Any = next(to for kind, to in _ERRORS.items() if isinstance(error, kind))
        raise raised(_plain_message(error), request=request) from error


def _plain_message(error: Exception) -> str:
    """Return the error's message, without quotes of an answer that is not HTTP, which may hold a secret."""
    text = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
    return (unquoted(text) if isinstance(error, _QUOTING) else text) or type(error).__name__


def unquoted(text: str) -> str:
    """The beginning of what a parser of HTTP says is wrong, up to where it quotes what it has received."""
    return _QUOTE.split(text, maxsplit=1)[0].strip()

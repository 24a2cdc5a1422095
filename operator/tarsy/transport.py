"""A transport for httpx2 that sends requests with aiohttp: httpx2's own is in pure Python, and three times as slow."""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Self

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
"""The exceptions of httpx2, by those of aiohttp; the first match is used."""
_QUOTING = (aiohttp.ClientResponseError, aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError)
_QUOTE = re.compile(r"[:\n'\"(<]|when reading")
"""The end of a parser's own words in its message: a quote of the answer may follow."""


def origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    """Return the origin of a URL: scheme, host and port."""
    return url.scheme, url.host, url.port


class Transport(httpx2.AsyncBaseTransport):
    """Requests to one address; opened and closed by its client."""

    def __init__(
        self, url: str, session: aiohttp.ClientSession | None = None, *, tls: ssl.SSLContext | None = None
    ) -> None:
        """`url` is the address of all requests; it selects the proxy. The caller closes `session` if it passes one.

        `tls` has the trusted certificates and the client's certificate, without a session; None means the system's.
        """
        self._proxy = proxies.proxy_for(url)
        self._session = session
        self._tls = tls
        self._is_https = httpx2.URL(url).scheme == "https"
        self._owns_session = session is None

    async def __aenter__(self) -> Self:
        """Create the connection pool; no connection is opened yet."""
        if self._owns_session:
            tls = self._tls or (httpx2.create_ssl_context() if self._is_https else True)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=tls),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connection pool."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection pool."""
        if self._session is not None and self._owns_session:
            await self._session.close()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send `request`, and return the response with an unread body."""
        assert self._session is not None  # noqa: S101 - the client has opened it
        url = request.url.copy_with(userinfo=b"") if request.url.userinfo else request.url  # a header has it already
        seconds: dict[str, float | None] = request.extensions.get("timeout", {})
        with _as_httpx2(request), logs.no_fields():  # a new connection outlives this run, and serves others
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
        """Close the connection. If the body was read to its end, the connection is back in the pool already."""
        self._response.close()


class FilteredBody(httpx2.AsyncByteStream):
    """A body whose chunks pass through a filter."""

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
        httpx2_error = next(to for kind, to in _ERRORS.items() if isinstance(error, kind))
        message = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
        if isinstance(error, _QUOTING):  # it may quote an answer that is not HTTP, and has a secret
            message = unquoted(message)
        raise httpx2_error(message or type(error).__name__, request=request) from error


def unquoted(text: str) -> str:
    """Return the message of an HTTP parser up to its first quote of the answer."""
    return _QUOTE.split(text, maxsplit=1)[0].strip()

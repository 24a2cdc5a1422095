"""HTTP to MCP servers that run elsewhere: credentials, certificates, and limits of an answer.

Requests go to the origin of a server's address and to no other, whatever it redirects to. Compressed answers are not
unpacked, because that would circumvent the limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path

import httpx2

from tarsy import rawjson, transport
from tarsy.config.load import secret_files
from tarsy.config.model import platforms
from tarsy.tools.transports import bounds, wire

CONNECT_SECONDS = 30.0
LATE_SECONDS = 30.0
"""How long an answer is waited for that comes too late: a connection that is closed under it may be everybody's."""
NOTIFIED_SECONDS = 5.0
"""How long a server may take to take a message that it has nothing to answer to."""
_NOTIFIES = re.compile(rb'"method":\s*"notifications/')
LOOK_LASTS_SECONDS = 10.0
"""A look in all, however slowly an answer comes."""
_LOOK_CONNECTS = 0.8
"""The share of a look for connecting, which tells an unreachable server from a silent one."""
_AWAY = frozenset({502, 503, 504})
"""The statuses of a proxy whose server is away."""


@contextlib.asynccontextmanager
async def client(settings: platforms.RemoteTransport, *, streams: bool = False) -> AsyncIterator[httpx2.AsyncClient]:
    """A client for requests to a server; an UnusableError names the key whose secret or file cannot be had.

    With `streams` what comes by GET has no end, so that who reads it has to say how much is too much.
    """
    seconds = settings.timeout.total_seconds()

    async def bound(response: httpx2.Response) -> None:
        _bound(response, is_endless=streams and response.request.method == "GET")

    async with _client(
        settings,
        kind=_Patient,
        timeout=httpx2.Timeout(seconds + LATE_SECONDS, connect=min(CONNECT_SECONDS, seconds)),
        headers={"Accept-Encoding": "identity"},
        bound=[bound],
    ) as http:
        yield http


@contextlib.asynccontextmanager
async def looking(settings: platforms.RemoteTransport) -> AsyncIterator[Callable[[], Awaitable[bool | None]]]:
    """Yield a function that looks whether a server answers at all, be it with a refusal; None is silence.

    It uses a new connection each time, so that no call can suffer from it. A silent server may be busy.
    """
    timeout = httpx2.Timeout(LOOK_LASTS_SECONDS, connect=_LOOK_CONNECTS * LOOK_LASTS_SECONDS)
    async with _client(settings, kind=transport.Transport, timeout=timeout, headers={"Connection": "close"}) as http:

        async def is_there() -> bool | None:
            try:
                async with asyncio.timeout(LOOK_LASTS_SECONDS), http.stream("OPTIONS", settings.url) as response:
                    return response.status_code not in _AWAY
            except (TimeoutError, httpx2.ReadTimeout, httpx2.WriteTimeout):
                return None
            except httpx2.HTTPError:
                return False

        yield is_there


@contextlib.asynccontextmanager
async def _client(
    settings: platforms.RemoteTransport,
    *,
    kind: type[transport.Transport],
    timeout: httpx2.Timeout,
    headers: Mapping[str, str],
    bound: list[Callable[[httpx2.Response], Awaitable[None]]] | None = None,
) -> AsyncIterator[httpx2.AsyncClient]:
    ours, tls = await asyncio.to_thread(_identity, settings)
    origin = transport.origin(httpx2.URL(settings.url))

    async def stays(request: httpx2.Request) -> None:
        if transport.origin(request.url) != origin:
            raise wire.UnreadableError(
                "it redirects to another origin, which gets nothing of what is meant for this one"
            )

    async with httpx2.AsyncClient(
        transport=kind(settings.url, tls=tls),
        timeout=timeout,
        headers={**headers, **ours},
        trust_env=False,
        event_hooks={"request": [stays], "response": bound or []},
    ) as http:
        yield http


def _identity(settings: platforms.RemoteTransport) -> tuple[Mapping[str, str], ssl.SSLContext | None]:
    """The headers that say who we are, and how the server is believed; read anew for each connection."""
    token = secret_files.bearer_token(settings, os.environ)
    bearer = {"Authorization": f"Bearer {token}"} if token else {}
    tls = _tls(settings) if httpx2.URL(settings.url).scheme == "https" else None
    return {**settings.headers, **bearer}, tls


def _tls(settings: platforms.RemoteTransport) -> ssl.SSLContext:
    context = httpx2.create_ssl_context(settings.verify)
    if settings.ca_file is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        with _said_of("ca_file", settings.ca_file):
            context.load_verify_locations(cafile=settings.ca_file)
    if settings.certificate_file is not None and settings.key_file is not None:
        with _said_of(
            "key_file", settings.key_file
        ):  # looked at first: OpenSSL does not say which of the two is missing
            settings.key_file.open("rb").close()
        with _said_of("certificate_file", settings.certificate_file):
            context.load_cert_chain(settings.certificate_file, settings.key_file, password=_no_passphrase)
    return context


def _no_passphrase() -> str:
    """OpenSSL would ask for it at the terminal."""
    raise secret_files.UnusableError("key_file: it wants a passphrase, and there is none for it")


@contextlib.contextmanager
def _said_of(key: str, path: Path) -> Iterator[None]:
    try:
        if path.exists() and not path.is_file():  # to open a pipe waits for who writes
            raise secret_files.UnusableError(f"{key}: this is no file")
        yield
    except ssl.SSLError as error:
        raise secret_files.UnusableError(f"{key}: it cannot be used: {error.reason or 'this is no PEM'}") from error
    except (OSError, ValueError) as error:  # a NUL in its name
        raise secret_files.UnusableError(f"{key}: {getattr(error, 'strerror', None) or 'cannot be read'}") from error


class _Patient(transport.Transport):
    """Nothing that comes too late ends the SDK's client, and with it everybody's calls.

    Messages that are no requests it sends one after another, and everything else behind them. When it is left it asks
    for the end of its session, and who connects anew has to wait for that.
    """

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = await request.aread()
        if request.method == "DELETE" or (_NOTIFIES.search(body) and "id" not in json.loads(body)):
            request.extensions["timeout"] = {**request.extensions["timeout"], "read": NOTIFIED_SECONDS}
        try:
            return await super().handle_async_request(request)
        except httpx2.ReadTimeout:
            return httpx2.Response(504, request=request, stream=httpx2.ByteStream(b""))


def _bound(response: httpx2.Response, *, is_endless: bool) -> None:
    """Limit the body of `response`, which is not read yet.

    The limit also holds for the stream of a server's own messages: they have no effect here, so the stream may end.
    """
    assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - the client is an asynchronous one
    encoding = response.headers.pop("Content-Encoding", "identity")
    response.encoding = "utf-8"  # whatever it says: bytes are counted, and others could stand for more
    response.stream = _Bounded(
        response.stream,
        packed=encoding.strip().lower() != "identity",
        is_endless=is_endless,
        is_json=response.headers.get("Content-Type", "").lower().startswith("application/json"),
    )


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, *, packed: bool, is_endless: bool, is_json: bool) -> None:
        self._stream = stream
        self._packed = packed
        self._is_endless = is_endless
        self._is_json = is_json

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._packed:
            raise wire.UnreadableError("it sent a compressed answer, which was not asked for")
        read, values = 0, rawjson.Values(bounds.VALUES_MAX)
        try:
            async for chunk in self._stream:
                read += len(chunk)
                if not self._is_endless and read > bounds.MESSAGE_MAX:
                    raise wire.UnreadableError(bounds.TOO_LARGE)
                if not self._is_endless and not values.feed(chunk):
                    raise wire.UnreadableError(bounds.TOO_MANY)
                yield chunk
        except httpx2.TransportError as error:
            if isinstance(error, wire.UnreadableError) or not self._is_json:  # events may be resumed
                raise
            raise wire.UnreadableError("its answer broke off") from error

    async def aclose(self) -> None:
        await self._stream.aclose()

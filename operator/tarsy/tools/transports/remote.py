"""HTTP to remote MCP servers: credentials, certificates, and bounds on answers.

Requests go only to the origin of the server's address, even after a redirect. Compressed answers are refused, because
unpacking them would circumvent the bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path

import httpx2

from tarsy import rawjson, transport
from tarsy.config.load import secret_files
from tarsy.config.model import server_transports
from tarsy.tools.transports import wire

CONNECT_SECONDS = 30.0
LATE_SECONDS = 30.0
"""The seconds that an answer may come after its caller's timeout; ending the request earlier may affect all calls."""
NOTIFIED_SECONDS = 5.0
"""The seconds that a server has to accept a message that needs no answer."""
_NOTIFIES = re.compile(rb'"method":\s*"notifications/')
CHECK_SECONDS = 10.0
"""The time limit of a check whether a server answers."""
_CHECK_CONNECT_SHARE = 0.8
"""The share of that time for connecting: it distinguishes an unreachable server from a silent one."""
_UNAVAILABLE = frozenset({502, 503, 504})
"""The statuses of a proxy that cannot reach its server."""


@contextlib.asynccontextmanager
async def client(
    settings: server_transports.RemoteTransport, *, streams: bool = False
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client for requests to a server. Raises UnusableError, with the setting, if a secret or a file is missing.

    With `streams`, the body of a GET is endless, and its reader limits it.
    """
    seconds = settings.timeout.total_seconds()

    async with _client(
        settings,
        kind=_PatientTransport,
        timeout=httpx2.Timeout(seconds + LATE_SECONDS, connect=min(CONNECT_SECONDS, seconds)),
        headers={"Accept-Encoding": "identity"},
        bound=[functools.partial(_bound, streams=streams)],
    ) as http:
        yield http


@contextlib.asynccontextmanager
async def checker(settings: server_transports.RemoteTransport) -> AsyncIterator[Callable[[], Awaitable[bool | None]]]:
    """A function that checks whether a server answers, even with a refusal; None means that it is silent.

    It opens a new connection each time, so that it affects no call. A silent server may be busy.
    """
    timeout = httpx2.Timeout(CHECK_SECONDS, connect=_CHECK_CONNECT_SHARE * CHECK_SECONDS)
    async with _client(settings, kind=transport.Transport, timeout=timeout, headers={"Connection": "close"}) as http:

        async def is_answering() -> bool | None:
            try:
                async with asyncio.timeout(CHECK_SECONDS), http.stream("OPTIONS", settings.url) as response:
                    return response.status_code not in _UNAVAILABLE
            except (TimeoutError, httpx2.ReadTimeout, httpx2.WriteTimeout):
                return None
            except httpx2.HTTPError:
                return False

        yield is_answering


@contextlib.asynccontextmanager
async def _client(
    settings: server_transports.RemoteTransport,
    *,
    kind: type[transport.Transport],
    timeout: httpx2.Timeout,
    headers: Mapping[str, str],
    bound: list[Callable[[httpx2.Response], Awaitable[None]]] | None = None,
) -> AsyncIterator[httpx2.AsyncClient]:
    credentials, tls = await asyncio.to_thread(_credentials, settings)
    origin = transport.origin(httpx2.URL(settings.url))

    async def stay(request: httpx2.Request) -> None:
        if transport.origin(request.url) != origin:
            raise wire.UnreadableError("it redirects to another origin, to which nothing is sent")

    async with httpx2.AsyncClient(
        transport=kind(settings.url, tls=tls),
        timeout=timeout,
        headers={**headers, **credentials},
        trust_env=False,
        event_hooks={"request": [stay], "response": bound or []},
    ) as http:
        yield http


def _credentials(settings: server_transports.RemoteTransport) -> tuple[Mapping[str, str], ssl.SSLContext | None]:
    """The headers and certificates for a server, read anew for each connection."""
    token = secret_files.bearer_token(settings, os.environ)
    bearer = {"Authorization": f"Bearer {token}"} if token else {}
    tls = _tls(settings) if httpx2.URL(settings.url).scheme == "https" else None
    return {**settings.headers, **bearer}, tls


def _tls(settings: server_transports.RemoteTransport) -> ssl.SSLContext:
    context = httpx2.create_ssl_context(settings.verify)
    if settings.ca_file is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        with _reading("ca_file", settings.ca_file):
            context.load_verify_locations(cafile=settings.ca_file)
    if settings.certificate_file is not None and settings.key_file is not None:
        with _reading("key_file", settings.key_file):  # first, because OpenSSL does not name the missing file
            settings.key_file.open("rb").close()
        with _reading("certificate_file", settings.certificate_file):
            context.load_cert_chain(settings.certificate_file, settings.key_file, password=_no_passphrase)
    return context


def _no_passphrase() -> str:
    """Replaces OpenSSL's question at the terminal."""
    raise secret_files.UnusableError("key_file: it needs a passphrase, and no setting has one")


@contextlib.contextmanager
def _reading(setting: str, path: Path) -> Iterator[None]:
    """Translate errors about a file into an UnusableError that names its setting."""
    try:
        if path.exists() and not path.is_file():  # to open a pipe would wait for a writer
            raise secret_files.UnusableError(f"{setting}: this is not a file")
        yield
    except ssl.SSLError as error:
        raise secret_files.UnusableError(f"{setting}: it cannot be used: {error.reason or 'it is not PEM'}") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in its name
        problem = getattr(error, "strerror", None) or "cannot be read"
        raise secret_files.UnusableError(f"{setting}: {problem}") from error


class _PatientTransport(transport.Transport):
    """A transport whose timeouts do not end the SDK's client, and with it all calls.

    The SDK sends notifications one after another, before all other messages. When it is left, it asks the server to end
    the session, and a new connection has to wait for that.
    """

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = await request.aread()
        if request.method == "DELETE" or (_NOTIFIES.search(body) and "id" not in json.loads(body)):
            request.extensions["timeout"] = {**request.extensions["timeout"], "read": NOTIFIED_SECONDS}
        try:
            return await super().handle_async_request(request)
        except httpx2.ReadTimeout:
            return httpx2.Response(504, request=request, stream=httpx2.ByteStream(b""))


async def _bound(response: httpx2.Response, *, streams: bool) -> None:
    """Limit the body of a response that is not read yet.

    The limits also hold for the stream of the server's own messages. These have no effect here, so that may end.
    """
    assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - the client is an asynchronous one
    encoding = response.headers.pop("Content-Encoding", "identity")
    response.encoding = "utf-8"  # the header is ignored: in some encodings a byte stands for several characters
    filtered = functools.partial(
        _bounded,
        is_compressed=encoding.strip().lower() != "identity",
        is_endless=streams and response.request.method == "GET",
        is_json=response.headers.get("Content-Type", "").lower().startswith("application/json"),
    )
    response.stream = transport.FilteredBody(response.stream, filtered)


async def _bounded(
    body: httpx2.AsyncByteStream, *, is_compressed: bool, is_endless: bool, is_json: bool
) -> AsyncIterator[bytes]:
    """Yield the pieces of a body. Raises UnreadableError beyond its limits."""
    if is_compressed:
        raise wire.UnreadableError("it sent a compressed answer, which was not requested")
    size, values = 0, rawjson.Values(wire.VALUES_MAX)
    try:
        async for chunk in body:
            size += len(chunk)
            if not is_endless and size > wire.MESSAGE_MAX:
                raise wire.UnreadableError(wire.TOO_LARGE)
            if not is_endless and not values.feed(chunk):
                raise wire.UnreadableError(wire.TOO_MANY)
            yield chunk
    except httpx2.TransportError as error:
        if isinstance(error, wire.UnreadableError) or not is_json:  # events may be resumed
            raise
        raise wire.UnreadableError("its answer broke off") from error

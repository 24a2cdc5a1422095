"""HTTP of the models' SDKs: over the session that all share, to one address, and bounded before anything is parsed.

SDKs put a line, an event and the body of a refusal together before they look at them, and make objects of all that is
in it. So bytes, lines and JSON values are counted here, event by event, and what is too much is a ProviderError.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import aiohttp
import httpx2

from tarsy import rawjson, transport
from tarsy.llm import provider

EVENT_MAX = 8 * 1024 * 1024
"""Bytes of one event of a stream: SDKs hold it whole."""
PIECE = 8 * 1024
"""Bytes of events that are handed on at once: each event of a few bytes costs an SDK 0.1 ms."""
LINES_MAX = 256
"""Lines of one event, for each of which SDKs copy those before it."""
OTHER_MAX = 1024 * 1024
"""Bytes of a stream's lines that are no field's of an event: google-genai looks at each of their characters."""
TOLD_MAX = 8 * 1024
"""Characters of what a server says of an error that are looked at."""
VALUES_MAX = 100_000
"""JSON values of one event, or of a refusal: each is an object in memory."""
BODY_MAX = 256 * 1024 * 1024
"""Bytes of an answer, of which most are not its text."""
REFUSAL_MAX = 1024 * 1024
"""Bytes of a redirect's body or of a refusal's: SDKs hold it whole."""
CONNECT = 30.0
"""Seconds for a connection; how long an answer may take is said elsewhere."""
AGAIN = frozenset({408, 409, 425, 429})
"""The statuses below 500 behind which the same request may work later."""
_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_END = re.compile(b"|".join(_ENDS))
_BREAK = re.compile(rb"\r\n|\n|\r")
_MARK = b"\xef\xbb\xbf"
_DATA = b"data:"
_IGNORED = (b":", b"event:", b"id:", b"retry:")
"""How lines begin that say nothing to who reads data alone."""
_LONGEST_END = max(map(len, _ENDS))

_responses: ContextVar[list[httpx2.Response]] = ContextVar("responses")
"""The responses of the stream that is asked for: the SDKs keep them to themselves."""


def client(url: str, session: aiohttp.ClientSession, *, only_data: bool = False) -> httpx2.AsyncClient:
    """A client for requests to `url`; it needs no closing, `session` is its caller's.

    With `only_data` nothing but the data of an answer's events is handed on.
    """
    origin = transport.origin(httpx2.URL(url))

    async def stays(request: httpx2.Request) -> None:
        """Refuse a redirect to another origin.

        Httpx2 removes only `Authorization`, so key and conversation would go along.
        """
        if transport.origin(request.url) != origin:
            raise provider.FatalError("the server redirects to another origin, which gets neither key nor conversation")

    return httpx2.AsyncClient(
        transport=transport.Transport(url, session),
        timeout=httpx2.Timeout(None, connect=CONNECT),
        follow_redirects=True,
        trust_env=False,
        headers={"Accept-Encoding": "identity"},
        event_hooks={"request": [stays], "response": [bounded, *([_leave_data] if only_data else [])]},
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


async def bounded(response: httpx2.Response) -> None:
    """Put bounds on the body of a response that is not read yet, and note it for `closing`.

    A compressed body is an error: what is unpacked of it would be beyond the bounds.
    """
    assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - the client is an asynchronous one
    response.stream = _Events(response.stream) if response.status_code == 200 else _Refusal(response.stream, response)
    response.encoding = "utf-8"  # whatever it says: some of Python's encodings unpack what is compressed
    _responses.get([]).append(response)
    refuse_compressed(response)


async def _leave_data(response: httpx2.Response) -> None:
    """Leave of a stream of events, which `bounded` has bounded, their data, for an SDK that takes all else for data.

    Source: WHATWG HTML, section 9.2.6. Lines that are no field stay as they are: Google tells errors so.
    """
    if isinstance(response.stream, _Events):
        response.stream = _Data(response.stream)


def refuse_compressed(response: Any) -> None:
    """Raise a ProviderError for a response, of httpx or httpx2, whose server has compressed it."""
    if response.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
        what = "the server sent a compressed answer, which was not asked for"
        raise _refusal(response, what) if response.is_error else provider.FatalError(what, code="compressed")


def _refusal(response: Any, what: str) -> provider.ProviderError:
    """Return the error of a refusal whose body cannot be read because of `what`: it is told by its status alone."""
    status, after = response.status_code, response.headers.get("Retry-After", "")
    text = f"{status} {response.reason_phrase}: {what}"
    if status in AGAIN or status >= 500:
        return provider.RetryableError(text, after=float(after) if after.isdecimal() else None, code=str(status))
    return provider.FatalError(text, code=str(status))


class _Events(httpx2.AsyncByteStream):
    """The events of a stream. Only whole ones go on, each within its bounds."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        total_bytes, begun = 0, bytearray()
        async for chunk in self._stream:
            total_bytes += len(chunk)
            if total_bytes > BODY_MAX:
                raise _too_much(f"{BODY_MAX / 2**20:g} MiB")
            start = max(0, len(begun) - _LONGEST_END)
            begun += chunk
            ready = max((position + len(end) for end in _ENDS if (position := begun.rfind(end, start)) >= 0), default=0)
            if len(begun) - ready > EVENT_MAX:
                raise _too_much(f"{EVENT_MAX // 2**20} MiB in one event")
            if ready:
                for piece in _pieces(_checked(bytes(begun[:ready]))):
                    yield piece
                    if ready > PIECE:
                        await asyncio.sleep(0)  # of small events there may be thousands
                del begun[:ready]
        if begun:
            yield _checked(bytes(begun))

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Data(httpx2.AsyncByteStream):
    """The data of events that come whole, each field of it written in the one way."""

    def __init__(self, events: _Events) -> None:
        self._events = events
        self._others = 0
        """Bytes of the lines that are no field's: google-genai keeps them until their braces match."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        mark = _MARK
        async for piece in self._events:
            payload = b"\n".join(self._lines(piece.removeprefix(mark)))
            mark = b""
            if payload.strip():
                yield payload

    async def aclose(self) -> None:
        await self._events.aclose()

    def _lines(self, events: bytes) -> Iterator[bytes]:
        for line in _BREAK.split(events):
            if line.startswith(_DATA):
                yield _DATA + b" " + line.removeprefix(_DATA).removeprefix(b" ")
            elif not line.startswith(_IGNORED):
                self._others += len(line)
                if self._others > OTHER_MAX:
                    raise _too_much(f"{OTHER_MAX // 2**20} MiB that are no data of events")
                yield line


class _Refusal(httpx2.AsyncByteStream):
    """The body of an answer that is no stream: whole, and nothing of it where SDKs would stumble over it."""

    def __init__(self, stream: httpx2.AsyncByteStream, response: httpx2.Response) -> None:
        self._stream = stream
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = bytearray()
        async for chunk in self._stream:
            body += chunk
            if len(body) > REFUSAL_MAX:
                raise _refusal(self._response, f"the server sent more than {REFUSAL_MAX // 2**20} MiB with it")
        payload = body.decode("utf-8", "replace").encode()
        if rawjson.has_more_values(payload, VALUES_MAX):
            raise _refusal(self._response, f"the server sent more than {VALUES_MAX} values with it")
        try:
            json.loads(payload)
        except json.JSONDecodeError:  # a proxy's words
            yield payload
        except (ValueError, RecursionError):  # numbers or levels that no SDK has thought of
            yield b""
        else:
            yield payload

    async def aclose(self) -> None:
        await self._stream.aclose()


def _pieces(events: bytes) -> Iterator[bytes]:
    """Cut events into pieces of about `PIECE` bytes, between events."""
    start = 0
    while start < len(events):
        end = _END.search(events, start + PIECE)
        yield events[start : (start := end.end() if end else len(events))]


def _checked(events: bytes) -> bytes:
    if rawjson.has_more_values(events, VALUES_MAX):
        raise _too_much(f"{VALUES_MAX} values in one event")
    if events.count(b"\n") > LINES_MAX or events.count(b"\r") > LINES_MAX:
        for event in _END.split(events):
            if max(event.count(b"\n"), event.count(b"\r")) > LINES_MAX:
                raise _too_much(f"{LINES_MAX} lines in one event")
    return events


def _too_much(what: str) -> provider.RejectedError:
    return provider.RejectedError(f"the server sent more than {what}", code="too_much")

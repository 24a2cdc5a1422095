"""HTTP for the SDKs of models: over one shared session, to one origin, with bounds on answers before they are parsed.

SDKs put a line, an event and the body of a refusal together before they look at them, and make objects of all values in
it. So bytes, lines and JSON values are counted here, event by event; too many of them are a ProviderError.
"""

from __future__ import annotations

import asyncio
import functools
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
"""Lines of one event: SDKs copy the lines before each of them."""
OTHER_MAX = 1024 * 1024
"""Bytes of a stream's lines that are no field of an event: google-genai looks at each of their characters."""
ERROR_TEXT_MAX = 8 * 1024
"""Characters of a server's error that are read."""
VALUES_MAX = 100_000
"""JSON values of one event, or of a refusal: each is an object in memory."""
BODY_MAX = 256 * 1024 * 1024
"""Bytes of an answer, most of which are not its text."""
REFUSAL_MAX = 1024 * 1024
"""Bytes of the body of a redirect or refusal: SDKs hold it whole."""
CONNECT_SECONDS = 30.0
"""The limit for a connection; `llm.limited_model` limits the answer."""
RETRYABLE = frozenset({408, 409, 425, 429})
"""The statuses below 500 after which the same request may work later."""
_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_END = re.compile(b"|".join(_ENDS))
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_DATA = b"data:"
_IGNORED = (b":", b"event:", b"id:", b"retry:")
"""The beginnings of lines without data."""
_LONGEST_END = max(map(len, _ENDS))

_responses: ContextVar[list[httpx2.Response]] = ContextVar("responses")
"""The responses of the current stream: the SDKs keep them to themselves."""


def client(url: str, session: aiohttp.ClientSession, *, only_data: bool = False) -> httpx2.AsyncClient:
    """Return a client for requests to `url`. It need not be closed; the caller closes `session`.

    With `only_data` it hands on nothing but the data of an answer's events.
    """
    base = httpx2.URL(url)

    async def stay(request: httpx2.Request) -> None:
        refuse_other_origin(request.url, base)

    return httpx2.AsyncClient(
        transport=transport.Transport(url, session),
        timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
        follow_redirects=True,
        trust_env=False,
        headers={"Accept-Encoding": "identity"},
        event_hooks={"request": [stay], "response": [bounded, *([_keep_only_data] if only_data else [])]},
    )


def refuse_other_origin(url: Any, base: Any) -> None:
    """Raise FatalError for a redirect to another origin than that of `base`; both are URLs of httpx or httpx2.

    The clients remove only `Authorization` on the way, so key and conversation would go along.
    """
    if transport.origin(url) != transport.origin(base):
        raise provider.FatalError("the server redirects to another origin, which gets neither key nor conversation")


@asynccontextmanager
async def closing() -> AsyncIterator[None]:
    """Close all responses of the block at its end, so that no abandoned stream waits for a garbage collector."""
    responses: list[httpx2.Response] = []
    _responses.set(responses)
    try:
        yield
    finally:
        for response in responses:
            await response.aclose()


async def bounded(response: httpx2.Response) -> None:
    """Bound the body of a response that is not read yet, and remember the response for `closing`.

    A compressed body is an error, because its contents would circumvent the bounds.
    """
    assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - the client is an asynchronous one
    filtered = bounded_events if response.status_code == 200 else functools.partial(_refusal_body, response)
    response.stream = transport.FilteredBody(response.stream, filtered)
    response.encoding = "utf-8"  # not the header's: some of Python's encodings unpack compressed text
    _responses.get([]).append(response)
    await refuse_compressed(response)


async def _keep_only_data(response: httpx2.Response) -> None:
    """Reduce a bounded stream of events to their data, for an SDK that takes everything else for data.

    Source: WHATWG HTML, section 9.2.6. Lines that are no field stay as they are: Google sends errors so.
    """
    assert isinstance(response.stream, transport.FilteredBody)  # noqa: S101 - from `bounded`
    if response.status_code == 200:
        response.stream = transport.FilteredBody(response.stream, only_data)


async def refuse_compressed(response: Any) -> None:
    """Raise a ProviderError for a compressed response of httpx or httpx2."""
    if response.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
        problem = "the server sent a compressed answer, which was not requested"
        raise (
            _unread_refusal(response, problem) if response.is_error else provider.FatalError(problem, code="compressed")
        )


def _unread_refusal(response: Any, problem: str) -> provider.ProviderError:
    """Return the error for a refusal whose body cannot be read because of `problem`: only its status is known."""
    status, after = response.status_code, response.headers.get("Retry-After", "")
    text = f"{status} {response.reason_phrase}: {problem}"
    if status in RETRYABLE or status >= 500:
        return provider.RetryableError(text, after=float(after) if after.isdecimal() else None, code=str(status))
    return provider.FatalError(text, code=str(status))


async def bounded_events(body: httpx2.AsyncByteStream) -> AsyncIterator[bytes]:
    """Yield the complete events of a stream, each within its bounds."""
    total_bytes, begun = 0, bytearray()
    async for chunk in body:
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
                    await asyncio.sleep(0)  # there may be thousands of small events
            del begun[:ready]
    if begun:
        yield _checked(bytes(begun))


async def only_data(events: httpx2.AsyncByteStream) -> AsyncIterator[bytes]:
    """Yield the data of complete events, each field written as `data: ...`."""
    mark = _BYTE_ORDER_MARK
    other_bytes = 0  # google-genai keeps lines that are no field until their braces match
    async for piece in events:
        lines = []
        for line in _LINE_END.split(piece.removeprefix(mark)):
            if line.startswith(_DATA):
                lines.append(_DATA + b" " + line.removeprefix(_DATA).removeprefix(b" "))
            elif not line.startswith(_IGNORED):
                other_bytes += len(line)
                if other_bytes > OTHER_MAX:
                    raise _too_much(f"{OTHER_MAX // 2**20} MiB that are no data of events")
                lines.append(line)
        mark = b""
        payload = b"\n".join(lines)
        if payload.strip():
            yield payload


async def _refusal_body(response: httpx2.Response, stream: httpx2.AsyncByteStream) -> AsyncIterator[bytes]:
    """Yield the complete body of an answer that is no stream: empty if SDKs would fail at it."""
    body = bytearray()
    async for chunk in stream:
        body += chunk
        if len(body) > REFUSAL_MAX:
            raise _unread_refusal(response, f"the server sent more than {REFUSAL_MAX // 2**20} MiB with it")
    payload = body.decode("utf-8", "replace").encode()
    if rawjson.has_more_values(payload, VALUES_MAX):
        raise _unread_refusal(response, f"the server sent more than {VALUES_MAX} values with it")
    try:
        json.loads(payload)
    except json.JSONDecodeError:  # the text of a proxy
        yield payload
    except (ValueError, RecursionError):  # numbers or levels that no SDK expects
        yield b""
    else:
        yield payload


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


def _too_much(amount: str) -> provider.RejectedError:
    return provider.RejectedError(f"the server sent more than {amount}", code="too_much")

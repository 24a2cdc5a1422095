"""Messages of an MCP server: their bounds, their parser, and the base of our transports for `mcp.Client`.

All transports parse messages here. The SDK's parser quotes the beginning and the end of an unparsable text in errors
and in its log, and masking cannot find a secret that is cut in this way. It also leaves the request unanswered.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import TypeAlias

import anyio
import httpx2
import mcp
import pydantic
from anyio.streams import memory
from mcp import types
from mcp.shared import message

from tarsy import rawjson
from tarsy.tools.transports import progress
from tarsy.transcript import messages

MESSAGE_MAX = 8 * 1024 * 1024
"""Bytes of one message from a server."""
TOO_LARGE = f"it sent more than {MESSAGE_MAX // 2**20} MiB in one message"
VALUES_MAX = 250_000
"""JSON values in one message: 8 MiB of `[]` would take 900 MB of memory and block the loop for seconds."""
TOO_MANY = f"it sent more than {VALUES_MAX} values in one message"
PARTS_MAX = 1000
"""Parts of one result: the SDK tries five models for each, and reports the errors of all."""
TOO_MANY_PARTS = f"it sent a result of more than {PARTS_MAX} parts"
TOOLS_MAX = 1000
"""Tools of one server; a model could not choose among more."""
UNREADABLE = "its answer is not valid JSON-RPC"
LIST_BYTES = "tarsy.dev/bytes"
"""The key in `_meta` of a page of tools that has the size of its message in bytes."""

_LOCATION_MAX = 4
"""Parts of the location of a validation error that are shown."""
_ID = rb'"id"\s*:\s*(-?[0-9]{1,19}|"[^"\\]{0,256}")\s*'
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"\s*'
_ID_AT_BEGINNING = re.compile(rb"\s*\{\s*(?:%b,\s*)?%b[,}]" % (_VERSION, _ID))
_ID_AT_END = re.compile(rb",\s*%b(?:,\s*%b)?\}\s*\Z" % (_ID, _VERSION))
"""SDKs write the id before the result or after it."""
_METHOD_AT_BEGINNING = re.compile(rb'\s*\{\s*(?:%b,\s*)?(?:%b,\s*)?"method"' % (_VERSION, _ID))
_END = 512
"""The last bytes of a message, which are searched for the id."""

Received: TypeAlias = message.SessionMessage | Exception
Receiving: TypeAlias = memory.MemoryObjectSendStream[Received]
"""The stream that a transport puts received messages into."""
Sending: TypeAlias = memory.MemoryObjectReceiveStream[message.SessionMessage]
"""The stream that a transport takes messages to the server from."""
Streams: TypeAlias = tuple[
    memory.MemoryObjectReceiveStream[Received], memory.MemoryObjectSendStream[message.SessionMessage]
]


class UnreadableError(httpx2.StreamError, httpx2.SSEError):
    """A body that is not read to its end. The base classes make the SDK fail the call, in JSON and in events."""

    def __init__(self, reason: str) -> None:
        httpx2.SSEError.__init__(self, reason)


def parse(raw: str | bytes) -> types.JSONRPCMessage:
    """Parse a message; what is not Unicode becomes U+FFFD. Raises UnreadableError, which does not quote the message."""
    try:
        parsed = types.jsonrpc_message_adapter.validate_json(raw, by_name=False)
    except ValueError:
        repaired = rawjson.repair(_bytes(raw))
        try:
            parsed = types.jsonrpc_message_adapter.validate_json(repaired, by_name=False)
        except ValueError:
            parsed = None
    if parsed is None:  # outside of the handler, so that the error has no context that quotes the message
        raise UnreadableError(UNREADABLE)
    if isinstance(parsed, types.JSONRPCResponse) and "tools" in parsed.result:
        meta = parsed.result.setdefault("_meta", {})
        if isinstance(meta, dict):
            meta[LIST_BYTES] = len(raw)
    return parsed


def _bytes(raw: str | bytes) -> bytes:
    return raw.encode("utf-8", "replace") if isinstance(raw, str) else raw


def bounded(received: Received) -> Received:
    """The message, or an error in its place if it has too many parts; a list of tools is cut to its first tools."""
    if not isinstance(received, message.SessionMessage) or not isinstance(received.message, types.JSONRPCResponse):
        return received
    answer = received.message
    if isinstance(tools := answer.result.get("tools"), list):
        answer.result["tools"] = tools[: TOOLS_MAX + 1]  # one more than are used shows that there are more
    if any(isinstance(part, list) and len(part) > max(PARTS_MAX, TOOLS_MAX + 1) for part in answer.result.values()):
        error = types.ErrorData(code=types.INTERNAL_ERROR, message=TOO_MANY_PARTS)
        return message.SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=answer.id, error=error))
    return received


class Requests:
    """The requests of one connection that have no answer yet."""

    def __init__(self) -> None:
        self._ids: set[types.RequestId] = set()

    def sent(self, outgoing: types.JSONRPCMessage) -> None:
        """Record a message to the server."""
        if isinstance(outgoing, types.JSONRPCRequest):
            self._ids.add(outgoing.id)
        elif isinstance(outgoing, types.JSONRPCNotification) and outgoing.method == "notifications/cancelled":
            self._ids.discard((outgoing.params or {}).get("requestId", ""))

    def read(self, raw: str | bytes) -> Received:
        """The message in `raw`, or for an unreadable answer an error for its request.

        Return an UnreadableError if `raw` is unreadable and answers no request.
        """
        try:
            received = parse(raw)
        except UnreadableError as error:
            request = self._request_of(_bytes(raw))
            if request is None:
                return error
            failed = types.ErrorData(code=types.PARSE_ERROR, message=UNREADABLE)
            received = types.JSONRPCError(jsonrpc="2.0", id=request, error=failed)
        if isinstance(received, types.JSONRPCResponse | types.JSONRPCError) and received.id is not None:
            self._ids.discard(received.id)
        return message.SessionMessage(received)

    def _request_of(self, raw: bytes) -> types.RequestId | None:
        """The id of the request that an unreadable message answers.

        A message without an id answers the only open request; if there are several, it answers none.
        """
        if b'"jsonrpc"' not in raw or not raw.lstrip().startswith(b"{"):
            return None  # a line that a program has printed among its messages
        if _METHOD_AT_BEGINNING.match(raw):
            return None  # a request or a notification of the server
        match = _ID_AT_BEGINNING.match(raw) or _ID_AT_END.search(raw, max(0, len(raw) - _END))
        if match is None:
            return next(iter(self._ids)) if len(self._ids) == 1 else None
        try:
            request: types.RequestId = json.loads(match[1])
        except ValueError:
            return None
        return request if request in self._ids else None


class Wire(ABC):
    """A transport for `mcp.Client`, which enters and leaves it. It reports when and why the connection has ended."""

    def __init__(self, *, reports: progress.Reports, ended: Callable[[], None]) -> None:
        """`ended` is called once no further message can come from the server."""
        self.problem = ""
        """The reason why we ended the connection, set before its end; "" if the server closed it."""
        self.ended = ended
        self.requests = Requests()
        self._reports = reports
        self._opened = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Streams:
        """Connect."""
        return await self._opened.enter_async_context(self._open())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """End the connection, with all tasks and processes that were started for it."""
        return await self._opened.__aexit__(kind, error, trace)

    @abstractmethod
    def _open(self) -> contextlib.AbstractAsyncContextManager[Streams]:
        """Connect until the context is left."""

    @contextlib.asynccontextmanager
    async def _streams(
        self,
        receive: Callable[[Receiving], Awaitable[None]],
        send: Callable[[Sending, Receiving], Awaitable[None]],
    ) -> AsyncIterator[Streams]:
        """The client's streams, while `receive` and `send` serve their other ends."""
        received, reads = anyio.create_memory_object_stream[Received](0)
        writes, sending = anyio.create_memory_object_stream[message.SessionMessage](0)
        bridges = [asyncio.ensure_future(receive(received)), asyncio.ensure_future(send(sending, received))]
        try:
            yield reads, writes
        finally:
            for stream in (reads, writes, received, sending):
                stream.close()
            for bridge in bridges:
                bridge.cancel()
            await asyncio.gather(*bridges, return_exceptions=True)

    async def _deliver(self, raw: str | bytes, received: Receiving) -> Received:
        """Parse a message and pass it on, unless it is a progress report."""
        incoming = bounded(self.requests.read(raw))
        if self._reports.takes(incoming):
            await asyncio.sleep(0)  # there may be many more reports
        else:
            await received.send(incoming)
        return incoming


def closing_reason(client: mcp.Client) -> str:
    """The reason why we ended the connection of `client`; "" if the server closed it, or none is known."""
    return client.server.problem if isinstance(client.server, Wire) else ""


def first_error(error: BaseException) -> BaseException:
    """`error`, or the first error in its groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def error_text(error: BaseException) -> str:
    """The message of the first error; of validation errors their number and the first of them."""
    error = first_error(error)
    if isinstance(error, TimeoutError) and not str(error):
        return "it does not answer"
    if not isinstance(error, pydantic.ValidationError):
        return str(error) or type(error).__name__
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    location = ".".join(map(str, first["loc"][:_LOCATION_MAX]))
    return f"{error.error_count()} problems, the first: {location}: {first['msg']}"


def on_one_line(text: str) -> str:
    """`text` without unprintable characters and line breaks, for logs, statuses and events."""
    return " ".join("".join(char if char.isprintable() else " " for char in messages.storable(text)).split())

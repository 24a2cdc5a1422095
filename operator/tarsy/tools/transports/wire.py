"""The connection to an MCP server, as `mcp.Client` needs it, where the SDK's own falls short.

Messages are parsed here, over every transport. The SDK's parser quotes the beginning and the end of unparsable text, in
errors and in its log; a mask cannot find a secret that is cut so. And it leaves the request unanswered.
"""

from __future__ import annotations

import contextlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import TypeAlias

import httpx2
import mcp
from anyio.streams import memory
from mcp import types
from mcp.shared import message

from tarsy import rawjson

Received: TypeAlias = message.SessionMessage | Exception
Streams: TypeAlias = tuple[
    memory.MemoryObjectReceiveStream[Received], memory.MemoryObjectSendStream[message.SessionMessage]
]


UNREADABLE = "its answer is not valid JSON-RPC"
LIST_BYTES = "tarsy.dev/bytes"
"""The key in `_meta` of a page of tools that has the size of its message in bytes."""
_ID = rb'"id"\s*:\s*(-?[0-9]{1,19}|"[^"\\]{0,256}")\s*'
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"\s*'
_ID_AT_BEGINNING = re.compile(rb"\s*\{\s*(?:%b,\s*)?%b[,}]" % (_VERSION, _ID))
_ID_AT_END = re.compile(rb",\s*%b(?:,\s*%b)?\}\s*\Z" % (_ID, _VERSION))
"""SDKs write the id before the result or after it."""
_METHOD_AT_BEGINNING = re.compile(rb'\s*\{\s*(?:%b,\s*)?(?:%b,\s*)?"method"' % (_VERSION, _ID))
_END = 512
"""Bytes from the end in which that id stands."""


class UnreadableError(httpx2.StreamError, httpx2.SSEError):
    """A body that is not read on: of both kinds that the SDK makes the call's error, for JSON and for events."""

    def __init__(self, why: str) -> None:
        httpx2.SSEError.__init__(self, why)


def parse(line: str | bytes) -> types.JSONRPCMessage:
    """Return the message that `line` is, with U+FFFD for what is not Unicode; an UnreadableError quotes none of it."""
    try:
        message = _parsed(line)
    except ValueError:
        raw = line.encode("utf-8", "replace") if isinstance(line, str) else line
        try:
            message = _parsed(rawjson.repair(raw))
        except ValueError:
            message = None
    if message is None:
        raise UnreadableError(UNREADABLE)
    if isinstance(message, types.JSONRPCResponse) and "tools" in message.result:
        about = message.result.setdefault("_meta", {})
        if isinstance(about, dict):
            about[LIST_BYTES] = len(line)
    return message


def _parsed(raw: str | bytes) -> types.JSONRPCMessage:
    return types.jsonrpc_message_adapter.validate_json(raw, by_name=False)


class Requests:
    """The requests of one connection that have no answer yet."""

    def __init__(self) -> None:
        self._ids: set[types.RequestId] = set()

    def sent(self, request: types.JSONRPCMessage) -> None:
        """Take note of a message to the server."""
        if isinstance(request, types.JSONRPCRequest):
            self._ids.add(request.id)
        elif isinstance(request, types.JSONRPCNotification) and request.method == "notifications/cancelled":
            self._ids.discard((request.params or {}).get("requestId", ""))

    def read(self, raw: str | bytes) -> Received:
        """Return the message in `raw`; for an unreadable answer, the error of its request.

        Raises UnreadableError if it is no answer, or the answer to no request.
        """
        try:
            received = parse(raw)
        except UnreadableError as error:
            request = self._request_of(raw.encode("utf-8", "replace") if isinstance(raw, str) else raw)
            if request is None:
                return error
            failed = types.ErrorData(code=types.PARSE_ERROR, message=UNREADABLE)
            received = types.JSONRPCError(jsonrpc="2.0", id=request, error=failed)
        if isinstance(received, types.JSONRPCResponse | types.JSONRPCError) and received.id is not None:
            self._ids.discard(received.id)
        return message.SessionMessage(received)

    def _request_of(self, raw: bytes) -> types.RequestId | None:
        """The id of the request that an unreadable message answers.

        Where the message does not say it, that of the only request; of several none, which wait on.
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
    """A transport for `mcp.Client`, which says when it has ended, and why."""

    def __init__(self, *, ended: Callable[[], None]) -> None:
        """`ended` is called once nothing more comes from the server."""
        self.problem = ""
        """Why the connection ended, where the server did not close it; known at its end at the latest."""
        self.ended = ended
        self._opened = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Streams:
        """Connect."""
        return await self._opened.enter_async_context(self._open())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """End the connection, and what was started for it."""
        return await self._opened.__aexit__(kind, error, trace)

    @abstractmethod
    def _open(self) -> contextlib.AbstractAsyncContextManager[Streams]:
        """The connection, while it is entered."""


def why_closed(client: mcp.Client) -> str:
    """Why the connection of `client` ended, where the server did not close it, and that is known; else ""."""
    return client.server.problem if isinstance(client.server, Wire) else ""

"""Calls of the API inside the process, with the credentials of the request that they serve.

So a tool has the identity, the rights, the limits and the audit of the API's route, and its checks of parameters.
"""

from __future__ import annotations

import asyncio
import json
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeAlias

from starlette import types
from starlette.requests import Request

ANSWER_MAX = 4 * 1024 * 1024
"""Bytes of an answer."""
DEPTH = "tarsy-depth"
"""The header with the number of investigations in a row that led to a request (`resources.investigations.Spec`)."""
_NOT_PASSED_ON = frozenset(
    {
        *("accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect"),
        *("idempotency-key", "last-event-id", "mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id"),
        *("transfer-encoding", DEPTH),
    }
)
"""The headers that belong to one request, and do not name its caller."""

Parameter: TypeAlias = str | int | bool | Sequence[str] | None
"""A query parameter; a list is repeated, None is left out."""


class RefusedError(Exception):
    """The API refused a call; the message is for its caller."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class TooLargeError(RefusedError):
    """An answer has over ANSWER_MAX bytes."""

    def __init__(self) -> None:
        remedy = "read its events in pages with investigation_get, or use the REST API"
        super().__init__(f"the answer has more than {ANSWER_MAX} bytes: {remedy}", status=HTTPStatus.OK)


class Api:
    """The API, for the caller of one request."""

    def __init__(self, application: types.ASGIApp, request: Request) -> None:
        self._application = application
        self._outer = request.scope

    async def get(self, path: str, **parameters: Parameter) -> Any:
        """Return the JSON of an answer. Raises RefusedError."""
        return json.loads(await self.send("GET", path, parameters=parameters))

    async def post(
        self, path: str, body: Mapping[str, Any], *, headers: Mapping[str, str | None], **parameters: Parameter
    ) -> Any:
        """Send JSON, and return that of the answer. Headers that are None are left out. Raises RefusedError."""
        return json.loads(
            await self.send("POST", path, parameters=parameters, body=json.dumps(body).encode(), headers=headers)
        )

    async def send(
        self,
        method: str,
        path: str,
        *,
        parameters: Mapping[str, Parameter],
        body: bytes = b"",
        headers: Mapping[str, str | None] | None = None,
    ) -> bytes:
        """Return the body of an answer. Raises RefusedError if it is no success, TooLargeError if it is too large."""
        own_headers = {**(headers or {}), **({"content-type": "application/json"} if body else {})}
        scope = {
            **{name: self._outer[name] for name in ("type", "asgi", "http_version", "scheme", "client", "server")},
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": _query(parameters).encode(),
            "headers": [
                *((name, value) for name, value in self._outer["headers"] if name.decode() not in _NOT_PASSED_ON),
                *((name.encode(), value.encode()) for name, value in own_headers.items() if value is not None),
                (b"content-length", b"%d" % len(body)),
            ],
        }
        exchange = _Exchange(body)
        # A task of its own, as each request has: what the API holds for it is released at its end.
        task = asyncio.ensure_future(self._application(scope, exchange.receive, exchange.send))
        exchange.on_too_large = task.cancel
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        if exchange.is_too_large:
            raise TooLargeError
        task.result()  # raises a defect
        if exchange.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise RefusedError(json.loads(exchange.answer)["detail"], status=exchange.status)
        return bytes(exchange.answer)


class _Exchange:
    """A request and its answer."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.status = 0
        self.answer = bytearray()
        self.is_too_large = False
        self.on_too_large: Callable[[], object] = lambda: None

    async def receive(self) -> types.Message:
        """Return the body; after it the client is there until the end."""
        if self._body is None:
            await asyncio.Event().wait()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: types.Message) -> None:
        """Take a part of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        self.answer += message.get("body", b"")
        if len(self.answer) > ANSWER_MAX:
            self.is_too_large = True
            self.on_too_large()


def _query(parameters: Mapping[str, Parameter]) -> str:
    """Return the query of a URL."""
    repeated = {
        name: [str(value).lower() if isinstance(value, bool) else value]
        if isinstance(value, str | int)
        else list(value)
        for name, value in parameters.items()
        if value is not None
    }
    return urllib.parse.urlencode(repeated, doseq=True)

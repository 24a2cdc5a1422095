"""MCP servers over HTTP with server-sent events, the transport before streamable HTTP.

One stream of events carries all messages of the server; our messages go by POST to an address that the server names
first. The SDK's own client is not used: it accepts no message of more than 1 MiB, and leaves the call of a failed POST
without an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import urllib.parse
from collections.abc import AsyncIterator, Callable

import anyio
import httpx2
from mcp import types
from mcp.shared import message

from tarsy import rawjson, transport
from tarsy.config.model import server_transports
from tarsy.tools.transports import progress, remote, wire

_SESSION_ENDED = (404, 410)
_OK = range(200, 300)

log = logging.getLogger(__name__)


class SSE(wire.Wire):
    """A connection to one server."""

    def __init__(
        self, settings: server_transports.SSETransport, *, reports: progress.Reports, ended: Callable[[], None]
    ) -> None:
        super().__init__(reports=reports, ended=ended)
        self._settings = settings

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncIterator[wire.Streams]:
        async with (
            remote.client(self._settings, streams=True) as http,
            http.stream(
                "GET",
                self._settings.url,
                headers={"Accept": "text/event-stream", "Cache-Control": "no-store"},
                timeout=httpx2.Timeout(http.timeout.connect, read=None),  # a server may be silent for hours
                follow_redirects=True,  # within its origin
            ) as response,
        ):
            if response.status_code not in _OK:
                raise ConnectionError(f"it answered with status {response.status_code}")
            events = aiter(httpx2.EventSource(response, max_event_size=wire.MESSAGE_MAX))
            address = await self._post_address(events)
            receive = functools.partial(self._receive, events)
            async with self._streams(receive, functools.partial(self._send, http, address)) as streams:
                yield streams

    async def _post_address(self, events: AsyncIterator[httpx2.ServerSentEvent]) -> str:
        """The address for our messages, which the first event names."""
        first = await anext(events, None)
        if first is None or first.event != "endpoint":
            raise ConnectionError("its first event does not name an address for messages: this is another protocol")
        address = urllib.parse.urljoin(self._settings.url, first.data)
        if transport.origin(httpx2.URL(address)) != transport.origin(httpx2.URL(self._settings.url)):
            raise ConnectionError("its address for messages has another origin")
        return address

    async def _receive(self, events: AsyncIterator[httpx2.ServerSentEvent], received: wire.Receiving) -> None:
        with received, contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            try:
                async for event in events:
                    if event.event != "message" or not event.data:  # a sign of life
                        continue
                    if rawjson.has_more_values(event.data.encode(), wire.VALUES_MAX):
                        self.problem = wire.TOO_MANY
                        break
                    await self._deliver(event.data, received)
            except httpx2.SSEError:
                self.problem = wire.TOO_LARGE
            except httpx2.HTTPError as error:
                self.problem = f"its stream broke off: {error}"
        self.ended()

    async def _send(
        self, http: httpx2.AsyncClient, address: str, sending: wire.Sending, received: wire.Receiving
    ) -> None:
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with sending, asyncio.TaskGroup() as posts:
                async for outgoing in sending:
                    self.requests.sent(outgoing.message)
                    posting = self._post(http, address, outgoing.message, received)
                    if (
                        getattr(outgoing.message, "method", "") == "notifications/initialized"
                    ):  # accepted before all else
                        await posting
                    else:  # a hanging POST delays no other message
                        posts.create_task(posting)

    async def _post(
        self, http: httpx2.AsyncClient, address: str, outgoing: types.JSONRPCMessage, received: wire.Receiving
    ) -> None:
        """Send a message; if the server refuses a request, answer the request with an error."""
        body = outgoing.model_dump_json(by_alias=True, exclude_unset=True)
        try:
            response = await http.post(address, content=body, headers={"Content-Type": "application/json"})
        except (httpx2.HTTPError, wire.UnreadableError) as error:
            self._end(received, f"a message could not be sent: {error}")
            return
        if response.status_code in _OK:
            return
        problem = f"a message was answered with status {response.status_code}"
        if response.status_code in _SESSION_ENDED:
            self._end(received, problem)
        elif isinstance(outgoing, types.JSONRPCRequest):
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                refusal = types.ErrorData(code=types.INTERNAL_ERROR, message=problem)
                answer = types.JSONRPCError(jsonrpc="2.0", id=outgoing.id, error=refusal)
                await received.send(message.SessionMessage(answer))
        else:
            log.info("%s", problem, extra={"action": "mcp_not_taken"})

    def _end(self, received: wire.Receiving, problem: str) -> None:
        self.problem = problem
        received.close()
        self.ended()

"""MCP servers that run elsewhere, over HTTP with server-sent events, as it was before streamable HTTP.

One stream of events brings all that a server says; what it is told goes by POST to an address that it names first. Not
the SDK's own client: it takes no message of more than 1 MiB, and after one POST that failed no call is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import urllib.parse
from collections.abc import AsyncIterator, Callable

import anyio
import httpx2
from anyio.streams import memory
from mcp import types
from mcp.shared import message

from tarsy import rawjson, transport
from tarsy.config.model import platforms
from tarsy.tools.transports import bounds, progress, remote, wire

_GONE = (404, 410)
"""The statuses of a session that has ended."""
_OK = range(200, 300)

log = logging.getLogger(__name__)


class SSE(wire.Wire):
    """Opens the stream, and closes it when it is left."""

    def __init__(
        self, settings: platforms.SSETransport, *, reports: progress.Reports, ended: Callable[[], None]
    ) -> None:
        super().__init__(ended=ended)
        self._reports = reports
        self._requests = wire.Requests()
        self._settings = settings

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncIterator[wire.Streams]:
        async with (
            remote.client(self._settings, streams=True) as http,
            http.stream(
                "GET",
                self._settings.url,
                headers={"Accept": "text/event-stream", "Cache-Control": "no-store"},
                timeout=httpx2.Timeout(http.timeout.connect, read=None),  # it may have nothing to say for hours
                follow_redirects=True,  # within its origin
            ) as response,
        ):
            if response.status_code not in _OK:
                raise ConnectionError(f"it answered with status {response.status_code}")
            events = aiter(httpx2.EventSource(response, max_event_size=bounds.MESSAGE_MAX))
            address = await self._address(events)
            received, reads = anyio.create_memory_object_stream[wire.Received](0)
            writes, sent = anyio.create_memory_object_stream[message.SessionMessage](0)
            bridges = [
                asyncio.create_task(self._receive(events, received)),
                asyncio.create_task(self._send(http, address, sent, received)),
            ]
            try:
                yield reads, writes
            finally:
                for stream in (reads, writes, received, sent):
                    stream.close()
                for bridge in bridges:
                    bridge.cancel()
                await asyncio.gather(*bridges, return_exceptions=True)

    async def _address(self, events: AsyncIterator[httpx2.ServerSentEvent]) -> str:
        """Where messages go."""
        first = await anext(events, None)
        if first is None or first.event != "endpoint":
            raise ConnectionError("its first event does not say where messages go: it does not speak this protocol")
        address = urllib.parse.urljoin(self._settings.url, first.data)
        if transport.origin(httpx2.URL(address)) != transport.origin(httpx2.URL(self._settings.url)):
            raise ConnectionError("it wants messages to go to another origin")
        return address

    async def _receive(
        self,
        events: AsyncIterator[httpx2.ServerSentEvent],
        received: memory.MemoryObjectSendStream[wire.Received],
    ) -> None:
        with received, contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            try:
                async for event in events:
                    if event.event != "message" or not event.data:  # a sign of life
                        continue
                    if rawjson.has_more_values(event.data.encode(), bounds.VALUES_MAX):
                        self.problem = bounds.TOO_MANY
                        break
                    checked = bounds.checked(self._requests.read(event.data))
                    if self._reports.takes(checked):
                        await asyncio.sleep(0)  # there may be many more of these
                    else:
                        await received.send(checked)
            except httpx2.SSEError:
                self.problem = bounds.TOO_LARGE
            except httpx2.HTTPError as error:
                self.problem = f"its stream broke off: {error}"
        self.ended()

    async def _send(
        self,
        http: httpx2.AsyncClient,
        address: str,
        sent: memory.MemoryObjectReceiveStream[message.SessionMessage],
        received: memory.MemoryObjectSendStream[wire.Received],
    ) -> None:
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with sent, asyncio.TaskGroup() as posts:
                async for outgoing in sent:
                    self._requests.sent(outgoing.message)
                    posting = self._post(http, address, outgoing.message, received)
                    if _comes_first(outgoing.message):
                        await posting
                    else:  # one that hangs delays no other
                        posts.create_task(posting)

    async def _post(
        self,
        http: httpx2.AsyncClient,
        address: str,
        request: types.JSONRPCMessage,
        received: memory.MemoryObjectSendStream[wire.Received],
    ) -> None:
        """Tell the server something; a request that it does not take is answered for it."""
        body = request.model_dump_json(by_alias=True, exclude_unset=True)
        try:
            response = await http.post(address, content=body, headers={"Content-Type": "application/json"})
        except (httpx2.HTTPError, wire.UnreadableError) as error:
            self._end(received, f"a message could not be sent: {error}")
            return
        if response.status_code in _OK:
            return
        problem = f"a message was answered with status {response.status_code}"
        if response.status_code in _GONE:
            self._end(received, problem)
        elif isinstance(request, types.JSONRPCRequest):
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                refused = types.ErrorData(code=types.INTERNAL_ERROR, message=problem)
                answer = types.JSONRPCError(jsonrpc="2.0", id=request.id, error=refused)
                await received.send(message.SessionMessage(answer))
        else:
            log.info("%s", problem, extra={"action": "mcp_not_taken"})

    def _end(self, received: memory.MemoryObjectSendStream[wire.Received], why: str) -> None:
        self.problem = why
        received.close()
        self.ended()


def _comes_first(request: types.JSONRPCMessage) -> bool:
    """Whether a server has to have it before it takes anything else."""
    return isinstance(request, types.JSONRPCNotification) and request.method == "notifications/initialized"

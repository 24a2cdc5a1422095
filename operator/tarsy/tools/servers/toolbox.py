"""The tools of one execution, and its calls. The steps of a call: arguments, slot, lease, request, result, mask, cut.

A toolbox returns errors as results and does not raise them: the model has to learn about a tool that fails, a server
that cannot be reached, and a call with wrong arguments.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import time
from collections.abc import Sequence
from typing import Self

import mcp
from mcp import types

from tarsy.config.model import platforms
from tarsy.resources import investigations
from tarsy.telemetry import metrics
from tarsy.tools.calls import arguments, results
from tarsy.tools.servers import connection, health, listing
from tarsy.tools.transports import wire
from tarsy.transcript import messages, ports, tool_names

log = logging.getLogger(__name__)

_CLOSED = {(-32000, "Connection closed"), (-32600, "Session terminated")}
"""The SDK's own errors, as code and message, for a closed client. A server may use the same codes."""


class PoolToolbox:
    """The tools of some servers of a pool."""

    def __init__(
        self, servers: Sequence[connection.Server], *, limits: platforms.Limits, selection: listing.ToolSelection
    ) -> None:
        self._servers = {server.name: server for server in servers}
        self._limits = limits
        self._away_wait = health.AwayWait()
        self._selection = selection

    async def __aenter__(self) -> Self:
        """Acquire the servers, and wait a while for those that cannot be reached."""
        for server in self._servers.values():
            server.acquire()
        try:
            await asyncio.gather(*map(self._client, self._servers.values()))
        except asyncio.CancelledError:
            self._release()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Release the servers; the pool closes their connections."""
        self._release()

    def _release(self) -> None:
        for server in self._servers.values():
            server.release()

    async def _client(self, server: connection.Server) -> mcp.Client | None:
        """The client of a server; None if the server cannot be reached."""
        return await self._away_wait.wait(server.name, server.client)

    @property
    def specs(self) -> Sequence[messages.ToolSpec]:
        """The tools of the execution, by server and in the server's order."""
        return tuple(
            _spec(server.name, tool)
            for server in self._servers.values()
            for tool in server.tools
            if self._selection.has(server.name, tool)
        )

    @property
    def problems(self) -> Sequence[str]:
        """The problems of servers that cannot be called now, and of tools that are left out."""
        return tuple(
            f"MCP server '{server.name}' {problem}"
            for server in self._servers.values()
            for problem in (server.problem, server.tools_problem)
            if problem
        )

    @property
    def away(self) -> Sequence[str]:
        """The names of the servers that cannot be called now."""
        return tuple(server.name for server in self._servers.values() if server.problem)

    async def call(self, call: messages.ToolCall, scope: ports.Scope) -> ports.ToolOutput:
        """Call a tool within its time limit."""
        server_name, tool_name = tool_names.split(call.name)
        server = self._servers.get(server_name)
        is_known = server is not None and any(tool.name == tool_name for tool in server.tools)
        labels = (server_name if server else metrics.UNKNOWN, tool_name if is_known else metrics.UNKNOWN)
        began, outcome = time.monotonic(), "cancelled"
        try:
            output = await self._output(call, scope, server, tool_name)
            outcome = "away" if output.away else "failed" if output.failed else "answered"
        finally:
            metrics.TOOL_CALLS.add(*labels, outcome)
            metrics.TOOL_CALL_SECONDS.observe(time.monotonic() - began, *labels)
        return output

    async def _output(
        self, call: messages.ToolCall, scope: ports.Scope, server: connection.Server | None, tool_name: str
    ) -> ports.ToolOutput:
        """Do the work of `call`; `server` is None if the execution has none of the call's name."""
        if server is not None and await self._client(server) is None:  # before it takes a slot
            return _away(call.name, server)
        if server and (stopped := server.stopped.get(tool_name)):
            return _failed(f"'{call.name}' was not called: {stopped.reason}")
        tool = self._tool(server, tool_name) if server else None
        if server is None or tool is None:
            available = ", ".join(spec.name for spec in self.specs) or "none"
            return _failed(f"There is no tool '{call.name}'. Available tools: {available}")
        if scope.only_reads and not _spec(server.name, tool).idempotent:
            return _failed(f"'{call.name}' was not called: it is not the same tool any more, and may write now")
        try:
            tool_arguments = arguments.resolve(call.arguments, tool.input_schema, is_child=server.is_child)
        except arguments.UnfitError as error:
            return _failed(f"The arguments of '{call.name}' cannot be used: {error}")
        mask = functools.partial(server.mask, investigation=scope.investigation)
        show = functools.partial(scope.stream.tool, call.id)
        with server.reports.during_call(execution=scope.execution, mask=mask, show=show) as meta:
            meta[investigations.DEPTH_META] = scope.depth + 1
            request = types.CallToolRequestParams(name=tool_name, arguments=tool_arguments, meta=meta)
            output = await self._call_in_slot(server, tool, request, scope)
        return await results.mask_and_cut(output, mask=mask)

    def _tool(self, server: connection.Server, name: str) -> types.Tool | None:
        """The tool of that name, if the execution gets it."""
        return next(
            (tool for tool in server.tools if tool.name == name and self._selection.has(server.name, tool)), None
        )

    async def _call_in_slot(
        self, server: connection.Server, tool: types.Tool, request: types.CallToolRequestParams, scope: ports.Scope
    ) -> ports.ToolOutput:
        """Send a call once one of the server's slots is free."""
        name = f"{server.name}.{tool.name}"
        seconds = min(self._limits.tool_call.total_seconds(), server.timeout or math.inf)
        began = time.monotonic()
        try:
            await server.calls.acquire(server.slots, seconds)
        except TimeoutError:
            if server.problem:
                return _away(name, server)
            return _failed(f"'{name}' was not called: '{server.name}' was busy with other calls for {seconds:g} s")
        finally:
            metrics.TOOL_SLOT_WAIT.observe(time.monotonic() - began, server.name)
        try:
            return await self._call_with_retry(server, tool, request, scope, seconds)
        finally:
            server.slots.release()

    async def _call_with_retry(
        self,
        server: connection.Server,
        tool: types.Tool,
        request: types.CallToolRequestParams,
        scope: ports.Scope,
        seconds: float,
    ) -> ports.ToolOutput:
        """Send a call. After a broken connection, repeat it once if the tool is read-only and has not changed."""
        name = f"{server.name}.{tool.name}"
        clock = asyncio.get_running_loop().time
        until = math.inf
        broken: _BrokenError | None = None
        while True:
            if (client := await self._client(server)) is None:
                return _failed(str(broken), away=True) if broken else _away(name, server)
            await scope.ensure_lease()
            again = " again" if broken else ""
            if stopped := server.stopped.get(tool.name):  # the tools may have been listed again since `call`
                return _failed(f"'{name}' was not called{again}: {stopped.reason}")
            if self._tool(server, tool.name) != tool:
                return _failed(f"'{name}' was not called{again}: it is not the same tool any more")
            until = until if broken else clock() + seconds
            try:
                with server.calls.track():
                    async with asyncio.timeout_at(until):
                        return await self._send(server, client, request)
            except TimeoutError:
                problem = f": MCP server '{server.name}' {server.problem}" if server.problem else ""
                return _failed(f"'{name}' did not answer within {seconds:g} s{problem}", away=bool(problem))
            except _BrokenError as error:
                if broken or error.is_ours or not listing.is_read_only(tool):
                    return _failed(str(error), away=not error.is_ours)
                broken = error
                log.info("%s is called again: %s", name, error, extra={"action": "mcp_again", "server": server.name})

    async def _send(
        self, server: connection.Server, client: mcp.Client, request: types.CallToolRequestParams
    ) -> ports.ToolOutput:
        """Send a call over the client's connection."""
        try:
            # Not `client.call_tool`: it repeats some calls, and checks results against the tool's own schema. That may
            # have slow patterns, and `re` blocks all other threads meanwhile.
            result = await client.session.send_request(types.CallToolRequest(params=request), types.CallToolResult)
        except mcp.MCPError as error:
            for reason in (wire.TOO_LARGE, wire.TOO_MANY, wire.TOO_MANY_PARTS):
                if reason in error.message:  # over HTTP, where it costs only this call
                    return _failed(f"'{server.name}' gave an answer that cannot be used: {reason}; ask for less")
            if wire.UNREADABLE in error.message:
                return _failed(f"'{server.name}' gave an answer that cannot be used: {wire.UNREADABLE}")
            if (error.code, error.message) not in _CLOSED:
                return _failed(f"'{server.name}' refused the call: {error.message}")
            server.report_broken(client)
            raise _BrokenError(server.name, wire.closing_reason(client)) from error
        except (RuntimeError, ValueError) as error:  # the SDK's errors for an answer that breaks the protocol
            return _failed(f"'{server.name}' gave an answer that cannot be used: {wire.error_text(error)}")
        return results.to_output(result)


class _BrokenError(Exception):
    """A connection closed during a call."""

    def __init__(self, server: str, reason: str) -> None:
        """`reason` is that of our own end of the connection, or ""."""
        because = f", because {reason}" if reason else ""
        super().__init__(f"The connection to '{server}' closed during the call{because}; its outcome is unknown")
        self.is_ours = reason in (wire.TOO_LARGE, wire.TOO_MANY)
        """Whether we closed the connection because of the answer; the same answer would close it again."""


def _spec(server: str, tool: types.Tool) -> messages.ToolSpec:
    hints = tool.annotations
    return messages.ToolSpec(
        name=messages.storable(f"{server}.{tool.name}"),
        description=messages.storable(tool.description or ""),
        parameters=tool.input_schema,
        # A tool without hints may not be repeated: some writing tools have none.
        idempotent=bool(hints and (hints.read_only_hint or hints.idempotent_hint)),
    )


def _away(name: str, server: connection.Server) -> ports.ToolOutput:
    problem = server.problem or "was away"  # it may be back by now
    return _failed(f"'{name}' was not called: MCP server '{server.name}' {problem}", away=True)


def _failed(text: str, *, away: bool = False) -> ports.ToolOutput:
    return ports.ToolOutput(text=messages.storable(text), failed=True, away=away)

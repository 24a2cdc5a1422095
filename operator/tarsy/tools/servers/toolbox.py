"""The tools of one execution: what it is shown of its servers, and its calls.

A toolbox answers and does not raise: a tool that fails, a server that is away and a call that makes no sense are things
that the model has to know about.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Protocol, Self

import mcp
from mcp import types

from tarsy.config.model import platforms
from tarsy.tools import pins
from tarsy.tools.calls import arguments, offered_tools, results, server_wait
from tarsy.tools.servers import health
from tarsy.tools.transports import bounds, progress, wire
from tarsy.transcript import messages, ports, tool_names

log = logging.getLogger(__name__)

_CLOSED = {(-32000, "Connection closed"), (-32600, "Session terminated")}
"""The SDK's own answers, as code and message, of a client that is closed. A server may use the same codes."""


class Mask(Protocol):
    """See `masker.Masker.text`."""

    def __call__(self, text: str, *, investigation: str = "") -> str:
        """`text` masked, with fingerprints of that investigation if there are to be some."""
        ...


class Server(Protocol):
    """A connected MCP server, or one that is not (see `pool.Server`)."""

    name: str
    tools: Sequence[types.Tool]
    problem: str
    missing: str
    """The problem with its tools, or ""."""
    stopped: Mapping[str, pins.Stopped]
    """Its tools that are not what was pinned, by their names."""
    mask: Mask
    timeout: float | None
    """Seconds that one request to it may take; None is no limit of its own."""
    is_child: bool
    """Whether it is a program that we started."""
    reports: progress.Reports
    """The progress reports of calls under way."""
    calls: health.Calls
    """Those over this connection."""

    @property
    def slots(self) -> asyncio.Semaphore:
        """One for each call that may be made at once."""
        ...

    async def client(self) -> mcp.Client:
        """The client, once there is one."""
        ...

    def broke(self, client: mcp.Client) -> None:
        """Say that a client is broken."""
        ...

    def hold(self) -> None:
        """Have it there until it is let go."""
        ...

    def let_go(self) -> None:
        """Need it no longer."""
        ...


class PoolToolbox:
    """The tools of some servers."""

    def __init__(self, servers: Sequence[Server], *, limits: platforms.Limits, offered: offered_tools.Offered) -> None:
        self._servers = {server.name: server for server in servers}
        self._limits = limits
        self._patience = server_wait.Patience()
        self._offered = offered

    async def __aenter__(self) -> Self:
        """Hold the servers: their connections are the pool's. Those that are away are waited for, a while."""
        for server in self._servers.values():
            server.hold()
        try:
            await asyncio.gather(*map(self._client, self._servers.values()))
        except asyncio.CancelledError:
            self._let_go()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let them go."""
        self._let_go()

    def _let_go(self) -> None:
        for server in self._servers.values():
            server.let_go()

    async def _client(self, server: Server) -> mcp.Client | None:
        """The client of a server, None where it is away."""
        return await self._patience.wait(server.name, server.client)

    @property
    def specs(self) -> Sequence[messages.ToolSpec]:
        """The tools that are offered, by server and in the server's order."""
        return tuple(
            _spec(server.name, tool)
            for server in self._servers.values()
            for tool in server.tools
            if self._offered.has(server.name, tool)
        )

    @property
    def problems(self) -> Sequence[str]:
        """The servers that cannot be called now, and those of whose tools some are left out."""
        return tuple(
            f"MCP server '{server.name}' {problem}"
            for server in self._servers.values()
            for problem in (server.problem, server.missing)
            if problem
        )

    @property
    def away(self) -> Sequence[str]:
        """The servers that cannot be called now."""
        return tuple(server.name for server in self._servers.values() if server.problem)

    async def call(self, call: messages.ToolCall, scope: ports.Scope) -> ports.ToolOutput:
        """Call a tool within the time that a call may take."""
        server_name, tool = tool_names.split(call.name)
        server = self._servers.get(server_name)
        if server is not None and await self._client(server) is None:  # before a place of others is taken
            return _away(call.name, server)
        if server and (stopped := server.stopped.get(tool)):
            return _failed(f"'{call.name}' was not called: {stopped.why}")
        tool_known = self._tool(server, tool) if server else None
        if server is None or tool_known is None:
            there = ", ".join(spec.name for spec in self.specs) or "none"
            return _failed(f"There is no tool '{call.name}'. Available tools: {there}")
        if scope.only_reads and not _spec(server.name, tool_known).idempotent:
            return _failed(f"'{call.name}' was not called: it is not the same tool any more, and may write now")
        try:
            tool_arguments = arguments.resolve(call.arguments, tool_known.input_schema, is_child=server.is_child)
        except arguments.UnfitError as error:
            return _failed(f"The arguments of '{call.name}' cannot be used: {error}")
        mask = functools.partial(server.mask, investigation=scope.investigation)
        say = functools.partial(scope.stream.tool, call.id)
        with server.reports.under_way(execution=scope.execution, mask=mask, say=say) as meta:
            asked = types.CallToolRequestParams(name=tool, arguments=tool_arguments, meta=meta)
            output = await self._in_turn(server, tool_known, asked, scope)
        return await results.cleaned(output, mask=mask)

    def _tool(self, server: Server, name: str) -> types.Tool | None:
        """The tool of that name, if the execution is offered it."""
        return next((tool for tool in server.tools if tool.name == name and self._offered.has(server.name, tool)), None)

    async def _in_turn(
        self, server: Server, tool: types.Tool, asked: types.CallToolRequestParams, scope: ports.Scope
    ) -> ports.ToolOutput:
        """Send a call once there is a place for it among those to its server."""
        name, seconds = f"{server.name}.{tool.name}", self._seconds(server)
        try:
            await server.calls.turn(server.slots, seconds)
        except TimeoutError:
            if server.problem:
                return _away(name, server)
            return _failed(f"'{name}' was not called: '{server.name}' was busy with other calls for {seconds:g} s")
        try:
            return await self._sent(server, tool, asked, scope)
        finally:
            server.slots.release()

    def _seconds(self, server: Server) -> float:
        """How long one call to it may take, and may wait for its turn before."""
        return min(self._limits.tool_call.total_seconds(), server.timeout or math.inf)

    async def _sent(
        self, server: Server, tool: types.Tool, asked: types.CallToolRequestParams, scope: ports.Scope
    ) -> ports.ToolOutput:
        """Send a call; once more where its connection broke, if the tool only reads and is still what it was."""
        name = f"{server.name}.{tool.name}"
        seconds = self._seconds(server)
        clock = asyncio.get_running_loop().time
        until = math.inf
        broken: _BrokenError | None = None
        while True:
            if (client := await self._client(server)) is None:
                return _failed(str(broken), away=True) if broken else _away(name, server)
            await scope.ensure_lease()
            again = " again" if broken else ""
            if stopped := server.stopped.get(tool.name):  # since it was looked at: the server may be another by now
                return _failed(f"'{name}' was not called{again}: {stopped.why}")
            if self._tool(server, tool.name) != tool:
                return _failed(f"'{name}' was not called{again}: it is not the same tool any more")
            until = until if broken else clock() + seconds
            try:
                with server.calls.one():
                    async with asyncio.timeout_at(until):
                        return await self._send(server, client, asked)
            except TimeoutError:
                problem = f": MCP server '{server.name}' {server.problem}" if server.problem else ""
                return _failed(f"'{name}' did not answer within {seconds:g} s{problem}", away=bool(problem))
            except _BrokenError as error:
                if broken or error.is_ours or not offered_tools.reads_only(tool):
                    return _failed(str(error), away=not error.is_ours)
                broken = error
                log.info("%s is called again: %s", name, error, extra={"action": "mcp_again", "server": server.name})

    async def _send(self, server: Server, client: mcp.Client, asked: types.CallToolRequestParams) -> ports.ToolOutput:
        try:
            # Not `client.call_tool`: it would hold results against the tool's own schema, whose patterns are the
            # server's, and `re` keeps the interpreter from all other threads; and it sends some calls again.
            result = await client.session.send_request(types.CallToolRequest(params=asked), types.CallToolResult)
        except mcp.MCPError as error:
            for reason in (bounds.TOO_LARGE, bounds.TOO_MANY, bounds.TOO_MANY_ITEMS):
                if reason in error.message:  # over HTTP, where it costs only this call
                    return _failed(f"'{server.name}' gave an answer that cannot be used: {reason}; ask for less")
            if wire.UNREADABLE in error.message:
                return _failed(f"'{server.name}' gave an answer that cannot be used: {wire.UNREADABLE}")
            if (error.code, error.message) not in _CLOSED:
                return _failed(f"'{server.name}' refused the call: {error.message}")
            server.broke(client)
            raise _BrokenError(server.name, wire.why_closed(client)) from error
        except (RuntimeError, ValueError) as error:  # the SDK's word for an answer that breaks the protocol
            return _failed(f"'{server.name}' gave an answer that cannot be used: {bounds.error_text(error)}")
        return results.output(result)


class _BrokenError(Exception):
    """A connection closed under a call."""

    def __init__(self, server: str, why: str) -> None:
        """`why`, where it was us who closed it."""
        because = f", because {why}" if why else ""
        super().__init__(f"The connection to '{server}' closed during the call{because}; its outcome is unknown")
        self.is_ours = why in (bounds.TOO_LARGE, bounds.TOO_MANY)
        """Whether it would be closed again, for the same answer."""


def _spec(server: str, tool: types.Tool) -> messages.ToolSpec:
    hints = tool.annotations
    return messages.ToolSpec(
        name=messages.storable(f"{server}.{tool.name}"),
        description=messages.storable(tool.description or ""),
        parameters=tool.input_schema,
        # What says neither may not be repeated: some writing tools carry no hint at all.
        idempotent=bool(hints and (hints.read_only_hint or hints.idempotent_hint)),
    )


def _away(name: str, server: Server) -> ports.ToolOutput:
    problem = server.problem or "was away"  # it may be back by now
    return _failed(f"'{name}' was not called: MCP server '{server.name}' {problem}", away=True)


def _failed(text: str, *, away: bool = False) -> ports.ToolOutput:
    return ports.ToolOutput(text=messages.storable(text), failed=True, away=away)

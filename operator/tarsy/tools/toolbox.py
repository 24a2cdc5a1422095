"""The tools of one execution: what it is shown of its servers, and its calls.

A toolbox answers and does not raise: a tool that fails, a server that is away and a call that makes no sense are things
that the model has to know about.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, Self

import mcp
from mcp import types

from tarsy.config import platform
from tarsy.masking import masker
from tarsy.tools import arguments, bounds, progress, results, stdio
from tarsy.transcript import messages, ports

log = logging.getLogger(__name__)

_CLOSED = {(-32000, "Connection closed"), (-32600, "Session terminated")}
"""What the SDK answers itself, as code and message, once a client is of no more use. A server may use the codes too."""


MASKED_AT_ONCE = 4 * 1024
"""Characters; masking more goes to a thread. A hostile text of so many takes 50 ms."""
MASKED_BEYOND = 64 * 1024
"""Characters that are masked beyond those that are kept, so that no secret stands half before the cut."""


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
    """What is missing of its tools, or ""."""
    mask: Mask
    is_child: bool
    """Whether it is a program that we started."""
    reports: progress.Reports
    """What it says of calls that are under way."""

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

    def __init__(self, servers: Sequence[Server], *, limits: platform.Limits) -> None:
        self._servers = {server.name: server for server in servers}
        self._limits = limits

    async def __aenter__(self) -> Self:
        """Hold the servers: their connections are the pool's, and shared."""
        for server in self._servers.values():
            server.hold()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let them go."""
        for server in self._servers.values():
            server.let_go()

    @property
    def specs(self) -> Sequence[messages.ToolSpec]:
        """The tools, by server and in the server's order."""
        return tuple(_spec(server.name, tool) for server in self._servers.values() for tool in server.tools)

    @property
    def problems(self) -> Sequence[str]:
        """The servers that cannot be called now, and those of whose tools some are left out."""
        return tuple(
            f"MCP server '{server.name}' {problem}"
            for server in self._servers.values()
            for problem in (server.problem, server.missing)
            if problem
        )

    async def call(self, call: messages.ToolCall, scope: ports.Scope) -> ports.ToolOutput:
        """Call a tool within the time that a call may take; as much time is given to its server to be there."""
        server_name, _, tool = call.name.partition(".")
        server = self._servers.get(server_name)
        known = _tool(server, tool) if server else None
        if server is None or known is None:
            there = ", ".join(spec.name for spec in self.specs) or "none"
            return _failed(f"There is no tool '{call.name}'. Available tools: {there}")
        try:
            given = arguments.of(call.arguments, known.input_schema, is_child=server.is_child)
        except arguments.UnfitError as error:
            return _failed(f"The arguments of '{call.name}' cannot be used: {error}")
        mask = functools.partial(server.mask, investigation=scope.investigation)
        say = functools.partial(scope.stream.tool, call.id)
        with server.reports.under_way(execution=scope.execution, mask=mask, say=say) as meta:
            asked = types.CallToolRequestParams(name=tool, arguments=given, meta=meta)
            async with server.slots:
                output = await self._sent(server, known, asked, scope)
        return await self._cleaned(output, mask=mask)

    async def _sent(
        self, server: Server, tool: types.Tool, asked: types.CallToolRequestParams, scope: ports.Scope
    ) -> ports.ToolOutput:
        """Send a call; once more where its connection broke, if the tool only reads and is still what it was."""
        name = f"{server.name}.{tool.name}"
        seconds = self._limits.tool_call.total_seconds()
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        broken: _BrokenError | None = None
        while True:
            try:
                async with asyncio.timeout_at(until):
                    client = await server.client()
            except TimeoutError:
                why = f"'{name}' was not called: MCP server '{server.name}' {server.problem}"
                return _failed(str(broken or why))
            await scope.ensure_lease()
            if _tool(server, tool.name) != tool:
                return _failed(f"'{name}' was not called{' again' if broken else ''}: it is not the same tool any more")
            until = until if broken else clock() + seconds
            try:
                async with asyncio.timeout_at(until):
                    return await self._send(server, client, asked)
            except TimeoutError:
                problem = f": MCP server '{server.name}' {server.problem}" if server.problem else ""
                return _failed(f"'{name}' did not answer within {seconds:g} s{problem}")
            except _BrokenError as error:
                if broken or error.is_ours or not (tool.annotations and tool.annotations.read_only_hint):
                    return _failed(str(error))
                broken = error
                log.info("%s is called again: %s", name, error, extra={"action": "mcp_again", "server": server.name})

    async def _cleaned(self, output: ports.ToolOutput, *, mask: Callable[[str], str]) -> ports.ToolOutput:
        """Masked, then cut: a cut could take the head off a secret and leave its body unknown."""
        limit = self._limits.tool_output
        text = output.text[: limit + MASKED_BEYOND]
        if len(text) > MASKED_AT_ONCE:
            masked = await asyncio.to_thread(masker.or_withheld, mask, text)
        else:
            masked = masker.or_withheld(mask, text)
        if masked == masker.WITHHELD:
            return ports.ToolOutput(text=masked, failed=True)
        shown = results.bounded(masked, limit=limit, of=max(len(masked), len(output.text)))
        return replace(output, text=shown)

    async def _send(self, server: Server, client: mcp.Client, asked: types.CallToolRequestParams) -> ports.ToolOutput:
        try:
            # Not `client.call_tool`: it would hold results against the tool's own schema, whose patterns are the
            # server's, and `re` keeps the interpreter from all other threads; and it sends some calls again.
            result = await client.session.send_request(types.CallToolRequest(params=asked), types.CallToolResult)
        except mcp.MCPError as error:
            for reason in (bounds.TOO_LARGE, bounds.TOO_MANY, bounds.TOO_MANY_ITEMS):
                if reason in error.message:  # over HTTP, where it costs only this call
                    return _failed(f"'{server.name}' gave an answer that cannot be used: {reason}; ask for less")
            if (error.code, error.message) not in _CLOSED:
                return _failed(f"'{server.name}' refused the call: {error.message}")
            server.broke(client)
            raise _BrokenError(server.name, stdio.why_closed(client)) from error
        except (RuntimeError, ValueError) as error:  # the SDK's word for an answer that breaks the protocol
            return _failed(f"'{server.name}' gave an answer that cannot be used: {bounds.told(error)}")
        return results.output(result)


class _BrokenError(Exception):
    """A connection closed under a call."""

    def __init__(self, server: str, why: str) -> None:
        """`why`, where it was us who closed it."""
        because = f", because {why}" if why else ""
        super().__init__(f"The connection to '{server}' closed during the call{because}; its outcome is unknown")
        self.is_ours = why in (bounds.TOO_LARGE, bounds.TOO_MANY)
        """Whether it would be closed again, for the same answer."""


def _tool(server: Server, name: str) -> types.Tool | None:
    return next((tool for tool in server.tools if tool.name == name), None)


def _spec(server: str, tool: types.Tool) -> messages.ToolSpec:
    hints = tool.annotations
    return messages.ToolSpec(
        name=messages.storable(f"{server}.{tool.name}"),
        description=messages.storable(tool.description or ""),
        parameters=tool.input_schema,
        # What does not say that it is harmless is taken for the opposite: some writing tools carry no hint at all.
        idempotent=bool(hints and (hints.read_only_hint or hints.idempotent_hint)),
    )


def _failed(text: str) -> ports.ToolOutput:
    return ports.ToolOutput(text=messages.storable(text), failed=True)

"""The tools of one execution: what it is shown of its servers, and its calls.

A toolbox answers and does not raise: a tool that fails, a server that is away and a call that makes no sense are things
that the model has to know about.
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, Self

import mcp
from mcp import types

from tarsy.config import platform
from tarsy.masking import masker
from tarsy.tools import bounds, patience, results, wire
from tarsy.transcript import messages, ports

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
    timeout: float | None
    """Seconds that one request to it may take; None is no limit of its own."""

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
        self._patience = patience.Patience()

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
        """Call a tool within the time that a call may take."""
        server_name, _, tool = call.name.partition(".")
        server = self._servers.get(server_name)
        if server is not None and await self._client(server) is None:  # before a place of others is taken
            return _away(call, server)
        if server is None or tool not in {known.name for known in server.tools}:
            known = ", ".join(spec.name for spec in self.specs) or "none"
            return _failed(f"There is no tool '{call.name}'. Available tools: {known}")
        try:
            arguments = _arguments(call.arguments)
        except (ValueError, RecursionError) as error:
            return _failed(f"The arguments of '{call.name}' cannot be used: {error}")
        seconds = min(self._limits.tool_call.total_seconds(), server.timeout or math.inf)
        async with server.slots:
            if (client := await self._client(server)) is None:
                return _away(call, server)
            await scope.ensure_lease()
            try:
                async with asyncio.timeout(seconds):
                    output = await self._send(server, client, tool, arguments)
            except TimeoutError:
                problem = f": MCP server '{server.name}' {server.problem}" if server.problem else ""
                return _failed(f"'{call.name}' did not answer within {seconds:g} s{problem}")
        return await self._cleaned(output, mask=functools.partial(server.mask, investigation=scope.investigation))

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

    async def _send(self, server: Server, client: mcp.Client, tool: str, arguments: dict[str, Any]) -> ports.ToolOutput:
        try:
            # Not `client.call_tool`: it would hold results against the tool's own schema, whose patterns are the
            # server's, and `re` keeps the interpreter from all other threads; and it sends some calls again.
            asked = types.CallToolRequest(params=types.CallToolRequestParams(name=tool, arguments=arguments))
            result = await client.session.send_request(asked, types.CallToolResult)
        except mcp.MCPError as error:
            for reason in (bounds.TOO_LARGE, bounds.TOO_MANY, bounds.TOO_MANY_ITEMS):
                if reason in error.message:  # over HTTP, where it costs only this call
                    return _failed(f"'{server.name}' gave an answer that cannot be used: {reason}; ask for less")
            if (error.code, error.message) not in _CLOSED:
                return _failed(f"'{server.name}' refused the call: {error.message}")
            server.broke(client)
            why = f", because {reason}" if (reason := wire.why_closed(client)) else ""
            return _failed(f"The connection to '{server.name}' closed during the call{why}; its outcome is unknown")
        except (RuntimeError, ValueError) as error:  # the SDK's word for an answer that breaks the protocol
            return _failed(f"'{server.name}' gave an answer that cannot be used: {bounds.told(error)}")
        return results.output(result)


def _spec(server: str, tool: types.Tool) -> messages.ToolSpec:
    hints = tool.annotations
    return messages.ToolSpec(
        name=messages.storable(f"{server}.{tool.name}"),
        description=messages.storable(tool.description or ""),
        parameters=tool.input_schema,
        # What does not say that it is harmless is taken for the opposite: some writing tools carry no hint at all.
        idempotent=bool(hints and (hints.read_only_hint or hints.idempotent_hint)),
    )


def _arguments(text: str) -> dict[str, Any]:
    loaded = json.loads(text or "{}")
    if not isinstance(loaded, dict):
        raise ValueError(f"expected a JSON object, not {type(loaded).__name__}")  # noqa: TRY004 - a value from outside
    arguments: dict[str, Any] = messages.storable_json(loaded)  # a lone surrogate would break the shared connection
    return arguments


def _away(call: messages.ToolCall, server: Server) -> ports.ToolOutput:
    problem = server.problem or "was away"  # it may be back by now
    return _failed(f"'{call.name}' was not called: MCP server '{server.name}' {problem}")


def _failed(text: str) -> ports.ToolOutput:
    return ports.ToolOutput(text=messages.storable(text), failed=True)

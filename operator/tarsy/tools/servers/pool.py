"""The connections to MCP servers: one for each server and process, shared by all investigations.

A new platform file has its own set of servers. Servers with unchanged settings stay. A server with changed settings is
a new one beside the former one, which is closed once no configuration version has it.

A `stateful` server has a separate connection for each toolbox, with an owner of its own; its shared connection only
lists its tools and checks that it answers. Owners start with an empty context: in an investigation's context, the end
of the investigation would end the connection for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass

from tarsy import slots
from tarsy.config.model import platforms
from tarsy.masking import known_secrets
from tarsy.telemetry import component_states
from tarsy.tools import pins
from tarsy.tools.servers import connection, listing, toolbox
from tarsy.transcript import ports


@dataclass(frozen=True, kw_only=True)
class Tools:
    """The MCP servers of one platform file, and the limits of calls to them."""

    servers: Mapping[str, connection.Server]
    settings: Mapping[str, platforms.MCPServer]
    limits: platforms.Limits
    start: Callable[[connection.Server], object]
    """Starts the owner of a connection."""

    def toolbox(self, servers: Sequence[str], is_allowed: ports.ToolPredicate) -> toolbox.PoolToolbox:
        """A toolbox with the allowed tools of `servers`, without those that the platform file no longer has."""
        connections = [self.servers[name].for_toolbox(self.start) for name in servers if name in self.servers]
        selection = listing.ToolSelection(self.settings, is_allowed)
        return toolbox.PoolToolbox(connections, limits=self.limits, selection=selection)

    async def wait_tried(self) -> None:
        """Return after the first attempt to connect to each server."""
        for server in self.servers.values():
            await server.tried.wait()


class Pool:
    """All MCP servers of the platform file in force, and the servers of earlier files that are still used."""

    def __init__(
        self,
        settings: platforms.Platform,
        *,
        secrets: known_secrets.KnownSecrets,
        pin_store: pins.PinStore | None = None,
    ) -> None:
        """Without a `pin_store`, only this pool has the pins."""
        self._secrets = secrets
        self._pin_store = pin_store or pins.MemoryPins()
        self._servers: list[connection.Server] = []
        """All servers that are not closed."""
        self._owners: asyncio.TaskGroup | None = None
        self.tools = Tools(servers={}, settings={}, limits=settings.limits, start=self._start)
        """The tools in force."""
        self.exchange(self.prepare(settings))

    def prepare(self, settings: platforms.Platform) -> Tools:
        """Begin to connect to the servers of a platform file; the result is for `exchange`."""
        servers = {name: self._server(name, own, settings.limits) for name, own in settings.mcp_servers.items()}
        for server in servers.values():
            if server not in self._servers:
                self._servers.append(server)
                self._begin(server)
        return Tools(servers=servers, settings=settings.mcp_servers, limits=settings.limits, start=self._start)

    def exchange(self, tools: Tools) -> None:
        """Put these tools in force."""
        self.tools = tools
        for server in tools.servers.values():
            server.slots.set_limit(tools.limits.server_calls)

    async def run(self) -> None:
        """Keep all servers connected until cancelled."""
        async with asyncio.TaskGroup() as self._owners:
            for server in self._servers:
                self._begin(server)
            await asyncio.Event().wait()

    def facts(self) -> Iterator[component_states.ComponentState]:
        """The states and tools of the servers in force."""
        for server in self.tools.servers.values():
            yield from server.facts()

    def relist(self) -> None:
        """List the tools of all servers again, because an admin may have accepted a change."""
        for server in self._servers:
            server.relist()

    def _server(self, name: str, settings: platforms.MCPServer, limits: platforms.Limits) -> connection.Server:
        """The server with these settings, or a new one that shares the limit of calls with those of its name."""
        same_name = [server for server in self._servers if server.name == name]
        if unchanged := next((server for server in same_name if server.is_unchanged(settings)), None):
            return unchanged
        limit = same_name[-1].slots if same_name else slots.Slots(limits.server_calls)
        return connection.Server(name, settings, limit=limit, secrets=self._secrets, pin_store=self._pin_store)

    def _begin(self, server: connection.Server) -> None:
        if (serving := self._start(server)) is not None:
            serving.add_done_callback(lambda _: self._servers.remove(server))

    def _start(self, server: connection.Server) -> asyncio.Task[None] | None:
        """Start the owner of a connection, if the pool runs."""
        if self._owners is None:
            return None
        return self._owners.create_task(server.serve(), name=f"mcp {server.name}", context=Context())

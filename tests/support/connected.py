"""An MCP server of the pool that is connected within the process, for tests of toolboxes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import mcp
from mcp import types
from tarsy import slots
from tarsy.masking import masker
from tarsy.tools import pins
from tarsy.tools.servers import connection, health
from tarsy.tools.transports import progress


class Connected(connection.Server):
    """A server with these tools and `client`, or without a client and not connected yet."""

    def __init__(self, name: str, client: mcp.Client | None, tools: Sequence[types.Tool]) -> None:
        self.name = name
        self.tools = tools
        self.problem = "" if client else "is not connected yet"
        self.tools_problem = ""
        self.timeout: float | None = None
        self.is_child = True
        self.stopped: Mapping[str, pins.Stopped] = {}
        self.reports = progress.Reports()
        self.broken: list[mcp.Client] = []
        self.slots = slots.Slots(2)
        self.calls = health.Calls()
        self.mask = masker.Masker(groups=["security"]).text
        self._client = client

    async def client(self) -> mcp.Client:
        if self._client is None:
            await asyncio.Event().wait()
        assert self._client is not None
        return self._client

    def report_broken(self, client: mcp.Client) -> None:
        self.broken.append(client)

    def acquire(self) -> None:
        """It stays."""

    def release(self) -> None:
        """It stays."""

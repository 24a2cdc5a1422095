"""Which tools of its servers one execution is offered: what is shown to it, and what a call of it is held to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mcp import types

from tarsy.config.model import platforms, tool_filters
from tarsy.transcript import ports


@dataclass(frozen=True)
class Offered:
    """The platform file's word on servers, and the execution's own."""

    servers: Mapping[str, platforms.MCPServer]
    admits: ports.ToolPredicate

    def has(self, server: str, tool: types.Tool) -> bool:
        """Whether the execution has this tool of that server; of a server that is not known it has none."""
        settings = self.servers.get(server)
        described = tool_filters.Tool(name=tool.name, read_only=reads_only(tool))
        return (
            settings is not None
            and tool_filters.is_offered(described, settings)
            and self.admits(f"{server}.{tool.name}")
        )


def reads_only(tool: types.Tool) -> bool:
    """Whether its server says that it only reads; what says nothing, or something else, counts as writing."""
    return tool.annotations is not None and tool.annotations.read_only_hint is True

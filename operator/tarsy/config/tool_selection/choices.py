"""The MCP servers and tools among which an alert of a chain may choose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tarsy.config import resolve
from tarsy.config.model import platforms, tool_filters
from tarsy.config.tool_selection import grants
from tarsy.resources import chains, investigations


@dataclass(frozen=True, kw_only=True)
class ServerChoice:
    """An MCP server that an alert may select."""

    name: str
    is_own: bool
    """Whether an agent of the chain has it without a selection."""
    tools: tuple[str, ...] | None
    """The tools that an agent gets if the alert selects the server; None if no worker has connected to it yet."""


def choices(
    platform: platforms.Platform, catalogue: tool_filters.Catalogue, *, chain_name: str, chain: chains.Spec
) -> Iterator[ServerChoice]:
    """Yield the servers that an alert of a ready chain may select, by name."""
    own = {server for agent in grants.agents(platform, chain_name=chain_name, chain=chain) for server in agent.servers}
    for name in sorted(resolve.selectable(platform, chain) & platform.mcp_servers.keys()):
        mcp = investigations.MCP(servers=[investigations.MCPServer(name=name)])
        agents = grants.agents(platform, chain_name=chain_name, chain=chain, mcp=mcp)
        granted = {tool for agent in agents for tool in grants.granted(agent, platform, catalogue)}
        tools = tuple(sorted(tool.removeprefix(f"{name}.") for tool in granted))
        yield ServerChoice(name=name, is_own=name in own, tools=tools if name in catalogue else None)

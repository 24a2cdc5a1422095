"""`tarsy config check --servers`: connect once to each MCP server of a platform file."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from tarsy.config.model import platforms, tool_filters
from tarsy.config.tool_selection import grants, ineffective
from tarsy.masking import known_secrets
from tarsy.telemetry import component_states


@dataclass(frozen=True, kw_only=True)
class ServerReport:
    """The result of one connection to an MCP server."""

    name: str
    problem: str
    """The reason why it cannot be used, or its missing tools; "" if there is no problem."""
    is_connected: bool
    tools: tuple[str, ...]
    not_offered: tuple[str, ...]
    """Sentences on the groups of tools that no agent gets."""
    warnings: tuple[str, ...] = ()
    """Sentences on tools that differ from the platform file, or are missing."""


async def servers(loaded: platforms.Platform) -> tuple[list[ServerReport], list[str]]:
    """Connect once to each MCP server of the platform file, as a worker does, and list its tools.

    Return the reports, and a sentence for each tool selection of the file's agents that matches no tool.
    """
    from tarsy.tools.servers import pool

    tools = pool.Pool(loaded, secrets=known_secrets.KnownSecrets())
    async with asyncio.TaskGroup() as group:
        connecting = group.create_task(tools.run())
        await tools.tools.wait_tried()
        facts = list(tools.facts())
        connecting.cancel()
    tools_by_server = {
        fact.name: tool_filters.tools_from_detail(fact.detail)
        for fact in facts
        if isinstance(fact.detail, component_states.Tools)
    }
    reports = [
        _report(fact, tools_by_server.get(fact.name, ()), loaded.mcp_servers[fact.name])
        for fact in facts
        if fact.kind == "server"
    ]
    return reports, list(ineffective.unfit_in_file(loaded, tools_by_server))


def _report(
    fact: component_states.ComponentState, tools: Sequence[tool_filters.Tool], settings: platforms.MCPServer
) -> ServerReport:
    assert isinstance(fact.detail, component_states.Server)  # noqa: S101 - its kind
    stopped, is_connected = fact.detail.stopped, fact.state == "connected"
    names = {*(tool.name for tool in tools), *(stopped_tool.tool for stopped_tool in stopped)}
    differing = (
        tool_filters.differs(stopped_tool.written, says=stopped_tool.pinned, offered=stopped_tool.offered)
        for stopped_tool in stopped
    )
    return ServerReport(
        name=fact.name,
        problem=fact.detail.problem or fact.detail.missing,
        is_connected=is_connected,
        tools=tuple(tool.name for tool in tools),
        not_offered=tuple(grants.withheld_tools(tools, settings, server=fact.name)),
        warnings=(*differing, *(grants.unknown_names(names, settings, server=fact.name) if is_connected else ())),
    )

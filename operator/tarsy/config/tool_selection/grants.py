"""The tools that the agents of a chain get, computed from the known tools of their servers before anything runs.

An execution's tools are decided by the same two functions when it starts: `ResolvedAgent.admits` and
`tool_filters.is_offered`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from tarsy.config import resolve
from tarsy.config.model import platforms, tool_filters
from tarsy.resources import chains, investigations, tool_patterns


def agents(
    platform: platforms.Platform, *, chain_name: str, chain: chains.Spec, mcp: investigations.MCP | None = None
) -> list[resolve.ResolvedAgent]:
    """Return the agents of all stages. Raises UnresolvedError with the missing name."""
    return [
        resolve.agent_for(platform, chain_name=chain_name, chain=chain, stage=stage, member=member, mcp=mcp)
        for stage in chain.stages
        for member in stage.members
    ]


def not_offered(
    platform: platforms.Platform, catalogue: tool_filters.Catalogue, resolved_agents: Iterable[resolve.ResolvedAgent]
) -> str:
    """Return a message about the tools that only the platform file keeps from these agents; "" if there are none."""
    reasons = []
    agents_by_server: dict[str, list[resolve.ResolvedAgent]] = {}
    for agent in resolved_agents:
        for server in agent.servers:
            agents_by_server.setdefault(server, []).append(agent)
    for server, server_agents in agents_by_server.items():
        settings = platform.mcp_servers[server]
        admitted = [
            tool
            for tool in catalogue.get(server, ())
            if any(agent.admits(f"{server}.{tool.name}") for agent in server_agents)
        ]
        reasons += [f"MCP server '{server}' {why}" for why in withheld_tools(admitted, settings, server=server)]
    return "; ".join(reasons)


def withheld_tools(tools: Sequence[tool_filters.Tool], settings: platforms.MCPServer, *, server: str) -> Iterator[str]:
    """Yield a message for the tools of a server that no agent gets."""
    if names := tool_filters.writing(tools, settings):
        why = f"they may write, and mcp_servers.{server}.write_tools does not name them"
        yield f"has tools that are not offered, because {why}: {tool_filters.listed(names)}"
    if names := tool_filters.excluded(tools, settings):
        why = f"mcp_servers.{server}.tools leaves them out"
        yield f"has tools that are not offered, because {why}: {tool_filters.listed(names)}"


def unknown_names(names: Collection[str], settings: platforms.MCPServer, *, server: str) -> Iterator[str]:
    """Yield a message for each setting with names that no tool of the server has."""
    for key, missing in tool_filters.unknown(names, settings):
        why = f"mcp_servers.{server}.{key} names tools that it does not have: {tool_filters.listed(missing)}"
        yield f"{why}. It has: {tool_filters.listed(sorted(names))}"


def selection_problem(
    mcp: investigations.MCP,
    platform: platforms.Platform,
    catalogue: tool_filters.Catalogue,
    *,
    chain_name: str,
    chain: chains.Spec,
) -> str | None:
    """Return the problem of an alert that selects tools its agents cannot get, with the alternatives; else None.

    A server that is not in `catalogue` was never connected, so it may have any tool.
    """
    for what, prefix, pattern, _ in _patterns(mcp):
        if why := tool_patterns.own_misfit(pattern) if prefix else tool_patterns.misfit(pattern):
            return f"{what.partition(':')[0]}: {why}"
    servers = (
        None if mcp.servers is None else [investigations.MCPServer(name=selected.name) for selected in mcp.servers]
    )
    try:
        resolved_agents = agents(platform, chain_name=chain_name, chain=chain, mcp=investigations.MCP(servers=servers))
    except resolve.UnresolvedError as error:
        return str(error)
    available_servers = {server for agent in resolved_agents for server in agent.servers}
    granted_names = sorted({name for agent in resolved_agents for name in granted(agent, platform, catalogue)})
    all_names = [f"{server}.{tool.name}" for server in available_servers for tool in catalogue.get(server, ())]
    for what, prefix, pattern, is_denied in _patterns(mcp):
        pattern = prefix + pattern
        # An alert may deny a tool that no agent gets anyway, and anything if there are no servers.
        if (is_denied and not available_servers) or tool_filters.matches(
            pattern,
            [*all_names, *tool_patterns.RESULT_TOOLS] if is_denied else granted_names,
            available_servers - catalogue.keys(),
        ):
            continue
        why = _exclusion(pattern, available_servers, platform, catalogue)
        available = tool_filters.listed(
            [name.removeprefix(prefix) for name in granted_names if name.startswith(prefix)]
        )
        that_they_get = f"that the agents of chain '{chain_name}' get{why and f': {why}'}"
        return f"{what} {that_they_get}. Available tools: {available or 'none'}"
    return None


def _patterns(mcp: investigations.MCP) -> Iterator[tuple[str, str, str, bool]]:
    """Yield the patterns of an alert: the message if none matches, server and pattern, and whether it denies."""
    for number, server in enumerate(mcp.servers or ()):
        for index, pattern in enumerate(server.tools or ()):
            what = f"mcp.servers.{number}.tools.{index}: MCP server '{server.name}' has no tool '{pattern}'"
            yield what, f"{server.name}.", pattern, False
    tools = mcp.tools or chains.Tools()
    for key, choice in (("allow", tools.allow), ("deny", tools.deny)):
        for index, pattern in enumerate(choice or ()):
            yield f"mcp.tools.{key}.{index}: '{pattern}' is no tool", "", pattern, key == "deny"


def _exclusion(
    pattern: str, servers: Iterable[str], platform: platforms.Platform, catalogue: tool_filters.Catalogue
) -> str:
    """Return why no agent gets the first tool of these servers that matches the pattern; "" if none matches."""
    for server in servers:
        for tool in catalogue.get(server, ()):
            if tool_filters.Filter(allow=(pattern,)).admits(f"{server}.{tool.name}"):
                why = tool_filters.exclusion(tool, platform.mcp_servers[server], server=server)
                return f"'{tool.name}' {why or 'is left out by the tools of the chain or of its agents'}"
    return ""


def granted(
    agent: resolve.ResolvedAgent, platform: platforms.Platform, catalogue: tool_filters.Catalogue
) -> Iterator[str]:
    """Yield the tools that an agent gets, as `server.tool`."""
    for server in agent.servers:
        for tool in catalogue.get(server, ()):
            name = f"{server}.{tool.name}"
            if agent.admits(name) and tool_filters.is_offered(tool, platform.mcp_servers[server]):
                yield name

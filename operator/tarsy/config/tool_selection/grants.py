"""Which tools the agents of a chain get, by what their servers are known to have: for chains and alerts, beforehand.

What an execution is offered when it starts is decided by the same two words, `ResolvedAgent.admits` and
`offers.is_offered`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from tarsy.config import resolve
from tarsy.config.model import platforms, tool_filters
from tarsy.resources import chains, investigations, tool_patterns


def agents(
    platform: platforms.Platform, *, chain_name: str, chain: chains.Spec, mcp: investigations.MCP | None = None
) -> list[resolve.ResolvedAgent]:
    """The agents of all stages; an UnresolvedError names what is missing."""
    return [
        resolve.agent_for(platform, chain_name=chain_name, chain=chain, stage=stage, member=member, mcp=mcp)
        for stage in chain.stages
        for member in stage.members
    ]


def not_offered(
    platform: platforms.Platform, catalogue: tool_filters.Catalogue, resolved_agents: Iterable[resolve.ResolvedAgent]
) -> str:
    """The tools that these agents would have, had the platform file no word in it; "" where there are none."""
    reasons = []
    of_server: dict[str, list[resolve.ResolvedAgent]] = {}
    for agent in resolved_agents:
        for server in agent.servers:
            of_server.setdefault(server, []).append(agent)
    for server, having in of_server.items():
        settings = platform.mcp_servers[server]
        wanted = [
            tool for tool in catalogue.get(server, ()) if any(agent.admits(f"{server}.{tool.name}") for agent in having)
        ]
        reasons += [f"MCP server '{server}' {why}" for why in of_tools(wanted, settings, server=server)]
    return "; ".join(reasons)


def of_tools(tools: Sequence[tool_filters.Tool], settings: platforms.MCPServer, *, server: str) -> Iterator[str]:
    """Yield a message for the tools of a server that no agent is offered."""
    if names := tool_filters.writing(tools, settings):
        why = f"they may write, and mcp_servers.{server}.write_tools does not name them"
        yield f"has tools that are not offered, because {why}: {tool_filters.listed(names)}"
    if names := tool_filters.left_out(tools, settings):
        why = f"mcp_servers.{server}.tools leaves them out"
        yield f"has tools that are not offered, because {why}: {tool_filters.listed(names)}"


def of_names(names: Collection[str], settings: platforms.MCPServer, *, server: str) -> Iterator[str]:
    """Yield a message for names in the platform file that match no tool of a server."""
    for key, missing in tool_filters.unknown(names, settings):
        why = f"mcp_servers.{server}.{key} names tools that it does not have: {tool_filters.listed(missing)}"
        yield f"{why}. It has: {tool_filters.listed(sorted(names))}"


def problem_of(
    mcp: investigations.MCP,
    platform: platforms.Platform,
    catalogue: tool_filters.Catalogue,
    *,
    chain_name: str,
    chain: chains.Spec,
) -> str | None:
    """Return the problem of an alert that selects tools its agents cannot have, with the alternatives; else None.

    A server outside `catalogue` may have any tool: it has not been connected to yet.
    """
    for what, prefix, pattern, _ in _named(mcp):
        if why := tool_patterns.own_misfit(pattern) if prefix else tool_patterns.misfit(pattern):
            return f"{what.partition(':')[0]}: {why}"
    servers = (
        None if mcp.servers is None else [investigations.MCPServer(name=selected.name) for selected in mcp.servers]
    )
    try:
        resolved_agents = agents(platform, chain_name=chain_name, chain=chain, mcp=investigations.MCP(servers=servers))
    except resolve.UnresolvedError as error:
        return str(error)
    servers_there = {server for agent in resolved_agents for server in agent.servers}
    has = sorted({name for agent in resolved_agents for name in granted(agent, platform, catalogue)})
    every = [f"{server}.{tool.name}" for server in servers_there for tool in catalogue.get(server, ())]
    for what, prefix, pattern, is_denied in _named(mcp):
        pattern = prefix + pattern
        # What is kept back anyway may be denied, too, and of no server anything.
        if (is_denied and not servers_there) or tool_filters.matches(
            pattern, every if is_denied else has, servers_there - catalogue.keys()
        ):
            continue
        why = _kept_back(pattern, servers_there, platform, catalogue)
        available = tool_filters.listed([name.removeprefix(prefix) for name in has if name.startswith(prefix)])
        got = f"that the agents of chain '{chain_name}' get{why and f': {why}'}"
        return f"{what} {got}. Available tools: {available or 'none'}"
    return None


def _named(mcp: investigations.MCP) -> Iterator[tuple[str, str, str, bool]]:
    """Yield the patterns of an alert: the message if none matches, server and pattern, and whether it denies."""
    for number, server in enumerate(mcp.servers or ()):
        for index, pattern in enumerate(server.tools or ()):
            what = f"mcp.servers.{number}.tools.{index}: MCP server '{server.name}' has no tool '{pattern}'"
            yield what, f"{server.name}.", pattern, False
    tools = mcp.tools or chains.Tools()
    for key, choice in (("allow", tools.allow), ("deny", tools.deny)):
        for index, pattern in enumerate(choice or ()):
            yield f"mcp.tools.{key}.{index}: '{pattern}' is no tool", "", pattern, key == "deny"


def _kept_back(
    pattern: str, servers: Iterable[str], platform: platforms.Platform, catalogue: tool_filters.Catalogue
) -> str:
    """Return why the first tool of these servers that a pattern matches is offered to no agent; "" if there is none."""
    for server in servers:
        for tool in catalogue.get(server, ()):
            if tool_filters.Filter(allow=(pattern,)).admits(f"{server}.{tool.name}"):
                why = tool_filters.kept_back(tool, platform.mcp_servers[server], server=server)
                return f"'{tool.name}' {why or 'is left out by the tools of the chain or of its agents'}"
    return ""


def granted(
    agent: resolve.ResolvedAgent, platform: platforms.Platform, catalogue: tool_filters.Catalogue
) -> Iterator[str]:
    """The tools that an agent gets, as `server.tool`."""
    for server in agent.servers:
        for tool in catalogue.get(server, ()):
            name = f"{server}.{tool.name}"
            if agent.admits(name) and tool_filters.is_offered(tool, platform.mcp_servers[server]):
                yield name

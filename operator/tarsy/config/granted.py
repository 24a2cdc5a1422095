"""Which tools the agents of a chain get, by what their servers are known to have: for chains and alerts, beforehand.

What an execution is offered when it starts is decided by the same two words, `ResolvedAgent.admits` and
`offers.is_offered`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from tarsy.config import offers, resolve
from tarsy.config import platform as platforms
from tarsy.resources import chain as chains
from tarsy.resources import investigation


def agents(
    platform: platforms.Platform, *, chain_name: str, chain: chains.Spec, mcp: investigation.MCP | None = None
) -> list[resolve.ResolvedAgent]:
    """The agents of all stages; an UnresolvedError names what is missing."""
    return [
        resolve.agent_for(platform, chain_name=chain_name, chain=chain, stage=stage, member=member, mcp=mcp)
        for stage in chain.stages
        for member in stage.members
    ]


def not_offered(
    platform: platforms.Platform, catalogue: offers.Catalogue, found: Iterable[resolve.ResolvedAgent]
) -> str:
    """The tools that these agents would have, had the platform file no word in it; "" where there are none."""
    told = []
    of_server: dict[str, list[resolve.ResolvedAgent]] = {}
    for agent in found:
        for server in agent.servers:
            of_server.setdefault(server, []).append(agent)
    for server, having in of_server.items():
        settings = platform.mcp_servers[server]
        wanted = [
            tool for tool in catalogue.get(server, ()) if any(agent.admits(f"{server}.{tool.name}") for agent in having)
        ]
        told += [f"MCP server '{server}' {why}" for why in of_tools(wanted, settings, server=server)]
    return "; ".join(told)


def of_tools(tools: Sequence[offers.Tool], settings: platforms.MCPServer, *, server: str) -> Iterator[str]:
    """What is to be said of those of a server's tools that nobody is offered."""
    if names := offers.writing(tools, settings):
        why = f"they may write, and mcp_servers.{server}.write_tools does not name them"
        yield f"has tools that are not offered, because {why}: {offers.listed(names)}"
    if names := offers.left_out(tools, settings):
        why = f"mcp_servers.{server}.tools leaves them out"
        yield f"has tools that are not offered, because {why}: {offers.listed(names)}"


def of_names(names: Collection[str], settings: platforms.MCPServer, *, server: str) -> Iterator[str]:
    """What is to be said of names that the platform file writes out, and that no tool of a server has."""
    for key, missing in offers.unknown(names, settings):
        why = f"mcp_servers.{server}.{key} names tools that it does not have: {offers.listed(missing)}"
        yield f"{why}. It has: {_listed(sorted(names))}"


def problem_of(
    mcp: investigation.MCP,
    platform: platforms.Platform,
    catalogue: offers.Catalogue,
    *,
    chain_name: str,
    chain: chains.Spec,
) -> str | None:
    """What an alert of this chain names that its agents cannot have, with what there is; None where there is nothing.

    Of servers that are not in `catalogue` any tool may be there: nobody has been connected to them yet.
    """
    servers = None if mcp.servers is None else [investigation.MCPServer(name=one.name) for one in mcp.servers]
    try:
        found = agents(platform, chain_name=chain_name, chain=chain, mcp=investigation.MCP(servers=servers))
    except resolve.UnresolvedError as error:
        return str(error)
    there = {server for agent in found for server in agent.servers}
    has = sorted({name for agent in found for name in granted(agent, platform, catalogue)})
    for number, server in enumerate(mcp.servers or ()):
        own = [name.removeprefix(f"{server.name}.") for name in has if name.startswith(f"{server.name}.")]
        for index, pattern in enumerate(server.tools or ()):
            if server.name in catalogue and not any(offers.Filter(allow=(pattern,)).admits(name) for name in own):
                where = f"mcp.servers.{number}.tools.{index}: MCP server '{server.name}' has no tool '{pattern}'"
                return f"{where} that the agents of chain '{chain_name}' get. Available tools: {_listed(own)}"
    allow = (mcp.tools and mcp.tools.allow) or ()
    for index, pattern in enumerate(allow):
        if there <= catalogue.keys() and not any(offers.Filter(allow=(pattern,)).admits(name) for name in has):
            where = f"mcp.tools.allow.{index}: '{pattern}' is no tool"
            return f"{where} that the agents of chain '{chain_name}' get. Available tools: {_listed(has)}"
    return None


def granted(agent: resolve.ResolvedAgent, platform: platforms.Platform, catalogue: offers.Catalogue) -> Iterator[str]:
    """The tools that an agent gets, as `server.tool`."""
    for server in agent.servers:
        for tool in catalogue.get(server, ()):
            name = f"{server}.{tool.name}"
            if agent.admits(name) and offers.is_offered(tool, platform.mcp_servers[server]):
                yield name


def _listed(names: Sequence[str]) -> str:
    return offers.listed(names) or "none"

"""Tool selections without effect: patterns that match no tool, and agents that get no tool.

Tools come and go with their servers, so such a pattern may match later. A pattern that cannot match any server of the
platform file never will. That is all that can be checked before the servers are connected.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeAlias

from tarsy.config import resolve
from tarsy.config.model import platforms, tool_filters
from tarsy.resources import chains, files, tool_patterns

Path: TypeAlias = tuple[int | str, ...]
Tools: TypeAlias = chains.Tools | platforms.Tools
_Agents: TypeAlias = Mapping[tuple[int, int], resolve.ResolvedAgent]
"""Agents by (number of the stage, number in the stage)."""


def chain_patterns(chain: chains.Spec) -> Iterator[tuple[Path, str]]:
    """Yield the patterns of a chain, with their paths in its spec."""
    for at, tools in _selections(chain):
        yield from selection_patterns(tools, at=at)


def selection_patterns(tools: Tools | None, *, at: Path) -> Iterator[tuple[Path, str]]:
    """Yield the patterns of a tool selection, with their paths; `at` is its own path."""
    for key in ("allow", "deny") if tools else ():
        for index, pattern in enumerate(getattr(tools, key) or ()):
            yield (*at, key, index), pattern


def example(servers: Iterable[str]) -> str:
    """Return a correct pattern as an example."""
    return f"patterns are over server.tool, such as {min(servers, default='kubernetes-server')}.pods_log"


def misfits(chain: chains.Spec) -> Iterator[str]:
    """Yield the refusals of a stored chain's patterns, which may be older than the API server's rule against them."""
    for at, pattern in chain_patterns(chain):
        if why := tool_patterns.misfit(pattern):
            yield f"{files.path_text(('spec', *at))}: {why}"


def never_matches(pattern: str, servers: Collection[str]) -> bool:
    """Return whether the pattern can match no tool of these servers, even a future one, and none of TARSy's own."""
    return not any(tool_filters.may_fit(pattern, server) for server in (*servers, tool_patterns.RESULT_SERVER))


def unfit_in_chain(
    platform: platforms.Platform, catalogue: tool_filters.Catalogue, *, chain_name: str, chain: chains.Spec
) -> Iterator[str]:
    """Yield the patterns without effect in a chain whose names are all known, by the known tools of its servers."""
    agents = {
        (number, index): resolve.agent_for(platform, chain_name=chain_name, chain=chain, stage=stage, member=member)
        for number, stage in enumerate(chain.stages)
        for index, member in enumerate(stage.members)
    }
    for at, tools in _selections(chain):
        yield from _unmatched_patterns(tools, _servers(at, chain, agents), platform, catalogue, at=("spec", *at))
    own = {agent.name for agent in chain.agents or ()}
    for name in dict.fromkeys(agent.name for agent in agents.values() if agent.name not in own):
        servers = {*_servers_of_agent(name, chain, agents), *platform.agents[name].mcp_servers}
        at = ("agents", name, "tools")
        problems = _unmatched_patterns(platform.agents[name].tools, servers, platform, catalogue, at=at)
        yield from (f"platform file: {problem}" for problem in problems)
    for (number, _), agent in agents.items():
        where = f"stage '{chain.stages[number].name}' agent '{agent.name}'"
        if agent.strategy not in resolve.WITHOUT_TOOLS:
            yield from _toolless(where, agent.servers, agent.tools, platform, catalogue)


def unfit_in_file(platform: platforms.Platform, catalogue: tool_filters.Catalogue) -> Iterator[str]:
    """Yield the patterns without effect in the agents of the platform file, a sentence each."""
    for name, agent in platform.agents.items():
        at = ("agents", name, "tools")
        yield from _unmatched_patterns(
            agent.tools, agent.mcp_servers or platform.mcp_servers, platform, catalogue, at=at
        )
        yield from _toolless(
            f"agents.{name}", agent.mcp_servers, tool_filters.filters(agent.tools), platform, catalogue
        )


def _selections(chain: chains.Spec) -> Iterator[tuple[Path, chains.Tools]]:
    for number, agent in enumerate(chain.agents or ()):
        if agent.tools:
            yield ("agents", number, "tools"), agent.tools
    for number, stage in enumerate(chain.stages):
        if stage.tools:
            yield ("stages", number, "tools"), stage.tools
        for index, member in enumerate(stage.agents or ()):
            if member.tools:
                yield ("stages", number, "agents", index, "tools"), member.tools


def _servers(at: Path, chain: chains.Spec, agents: _Agents) -> set[str]:
    """Return the servers of the agents that the tool selection at this path applies to."""
    if at[0] == "agents":
        agent = (chain.agents or [])[int(at[1])]
        return {*_servers_of_agent(agent.name, chain, agents), *agent.mcp_servers}
    return {
        server
        for (number, index), agent in agents.items()
        if at[1] == number and (at[2] != "agents" or at[3] == index)
        for server in agent.servers
    }


def _servers_of_agent(name: str, chain: chains.Spec, agents: _Agents) -> set[str]:
    """Return the servers of an agent in this chain; the chat agent has those of all agents."""
    is_chat = name == ((chain.chat and chain.chat.agent) or resolve.CHAT_AGENT)
    return {server for agent in agents.values() if is_chat or agent.name == name for server in agent.servers}


def _unmatched_patterns(
    tools: Tools,
    servers: Collection[str],
    platform: platforms.Platform,
    catalogue: tool_filters.Catalogue,
    *,
    at: Path,
) -> Iterator[str]:
    """Yield the patterns that match no tool of these servers, nor of the servers that an alert may select.

    Only the last message lists the available tools: a condition holds 1,024 characters.
    """
    if not servers:
        return
    all_servers = {*servers, *(name for name, server in platform.mcp_servers.items() if server.selectable)}
    names = [f"{server}.{tool.name}" for server in sorted(all_servers) for tool in catalogue.get(server, ())]
    unknown = all_servers - catalogue.keys()
    unfit = [
        f"{files.path_text(location)}: '{pattern}' matches no tool"
        for location, pattern in selection_patterns(tools, at=at)
        if not tool_filters.matches(pattern, [*names, *tool_patterns.RESULT_TOOLS], unknown)
    ]
    yield from unfit[:-1]
    yield from (f"{last}. Available tools: {tool_filters.listed(names) or 'none'}" for last in unfit[-1:])


def _toolless(
    where: str,
    servers: Collection[str],
    choices: Collection[tool_filters.Filter],
    platform: platforms.Platform,
    catalogue: tool_filters.Catalogue,
) -> Iterator[str]:
    """Yield a message if an agent gets no tool although all its servers are known, unless `allow: []` is set."""
    if (
        not servers
        or any(server not in catalogue for server in servers)
        or any(choice.allow == () for choice in choices)
    ):
        return
    offered = (
        f"{server}.{tool.name}"
        for server in servers
        for tool in catalogue[server]
        if tool_filters.is_offered(tool, platform.mcp_servers[server])
    )
    if not any(all(choice.admits(name) for choice in choices) for name in offered):
        yield f"{where} gets no tool of its MCP servers ({', '.join(servers)})"

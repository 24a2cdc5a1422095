"""From names to settings: what one agent of one stage really runs with.

Order, later wins: defaults, agent, chain, stage, agent of the stage. Lists replace; an empty list clears.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from tarsy.config import platform as platforms
from tarsy.resources import chain as chains

T = TypeVar("T")


class UnresolvedError(Exception):
    """A name that nothing answers to; the message says which, where, and what there is."""


@dataclass(frozen=True, kw_only=True)
class ResolvedAgent:
    """What one execution runs with, fixed when it starts."""

    name: str
    provider: str
    strategy: chains.IterationStrategy
    max_iterations: int
    servers: tuple[str, ...]
    custom_instructions: str
    server_instructions: tuple[tuple[str, str], ...]
    """(server, instructions) of those servers that have any."""
    problems: tuple[str, ...] = ()
    """What it lacks, one sentence each: servers that could not be reached when it started."""


def agent_for(
    platform: platforms.Platform,
    *,
    chain_name: str,
    chain: chains.Spec,
    stage: chains.Stage,
    member: chains.StageAgent,
) -> ResolvedAgent:
    """The settings of `member` of `stage`; an UnresolvedError names what is missing, with what there is."""
    where = f"Chain '{chain_name}' stage '{stage.name}'"
    own = {agent.name: agent for agent in chain.agents or ()}
    agents: dict[str, platforms.Agent | chains.Agent] = {**platform.agents, **own}
    agent = _named(member.name, agents, where=where, kind="agent")
    if member.name in own:
        check_agent(own[member.name], platform, chain_name=chain_name)
    defaults = platform.defaults
    provider = _last(
        defaults.llm_provider, agent.llm_provider, chain.llm_provider, stage.llm_provider, member.llm_provider
    )
    if provider is None:
        raise UnresolvedError(f"{where} has no LLM provider: set llmProvider there or defaults.llm_provider")
    _named(provider, platform.llm_providers, where=where, kind="LLM provider")
    servers = _last(agent.mcp_servers, chain.mcp_servers, stage.mcp_servers, member.mcp_servers) or []
    found = {name: _named(name, platform.mcp_servers, where=where, kind="MCP server") for name in servers}
    return ResolvedAgent(
        name=member.name,
        provider=provider,
        strategy=_last(agent.iteration_strategy, chain.iteration_strategy, stage.iteration_strategy)
        or defaults.iteration_strategy,
        max_iterations=_last(agent.max_iterations, chain.max_iterations, stage.max_iterations, member.max_iterations)
        or defaults.max_iterations,
        servers=tuple(found),
        custom_instructions=agent.custom_instructions,
        server_instructions=tuple((name, server.instructions) for name, server in found.items() if server.instructions),
    )


def check_agent(agent: chains.Agent, platform: platforms.Platform, *, chain_name: str) -> None:
    """Raise an UnresolvedError if an agent of a chain's own names what is not there, even if a stage overrides it."""
    where = f"Chain '{chain_name}' agent '{agent.name}'"
    if agent.llm_provider is not None:
        _named(agent.llm_provider, platform.llm_providers, where=where, kind="LLM provider")
    for server in agent.mcp_servers:
        _named(server, platform.mcp_servers, where=where, kind="MCP server")


def _last(*values: T | None) -> T | None:
    return next((value for value in reversed(values) if value is not None), None)


def _named(name: str, mapping: dict[str, T], *, where: str, kind: str) -> T:
    if name not in mapping:
        raise UnresolvedError(
            f"{where} references unknown {kind} '{name}'. Available {kind}s: {', '.join(sorted(mapping)) or 'none'}"
        )
    return mapping[name]

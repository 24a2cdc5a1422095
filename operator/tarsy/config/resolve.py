"""From names to settings: what one execution really runs with.

Order, later wins: defaults, agent, chain, stage, agent of the stage. Lists replace; an empty list clears.

What brings a stage's analyses together, sums up and answers questions is settled by defaults, agent and its own block
alone: a chain that gives its agents a fast provider has not chosen one for what is made of their work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from tarsy.config import platform as platforms
from tarsy.resources import chain as chains

T = TypeVar("T")

SYNTHESIS_AGENT = "SynthesisAgent"
CHAT_AGENT = "ChatAgent"
"""The agents where a chain names none; built in (`config.builtin`), for a chain or the platform file to replace."""
SUMMARY = "ExecutiveSummary"
"""What the summary's execution is called; no agent stands behind it."""
_SYNTHESES: dict[chains.IterationStrategy, chains.SynthesisStrategy] = {
    "react": "synthesis",
    "react-stage": "synthesis",
    "react-final-analysis": "synthesis",
    "native-thinking": "synthesis-native-thinking",
    "synthesis": "synthesis",
    "synthesis-native-thinking": "synthesis-native-thinking",
}
"""To each strategy the one that brings together what there is in the same dialect."""


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


def place(chain_name: str, *, stage: str = "", block: str = "") -> str:
    """Where in a chain something stands, as messages say it: `Chain 'a' stage 'b' synthesis`."""
    return f"Chain '{chain_name}'" + (f" stage '{stage}'" if stage else "") + (f" {block}" if block else "")


def agent_for(
    platform: platforms.Platform,
    *,
    chain_name: str,
    chain: chains.Spec,
    stage: chains.Stage,
    member: chains.StageAgent,
) -> ResolvedAgent:
    """The settings of `member` of `stage`; an UnresolvedError names what is missing, with what there is."""
    where = place(chain_name, stage=stage.name)
    agent = _agent(member.name, platform, chain_name=chain_name, chain=chain, where=where)
    levels = (agent, chain, stage, member)
    servers = _last(*(level.mcp_servers for level in levels)) or []
    found = {name: _named(name, platform.mcp_servers, where=where, kind="MCP server") for name in servers}
    return ResolvedAgent(
        name=member.name,
        provider=_provider(platform, *(level.llm_provider for level in levels), where=where),
        strategy=_last(*(level.iteration_strategy for level in levels)) or platform.defaults.iteration_strategy,
        max_iterations=_last(*(level.max_iterations for level in levels)) or platform.defaults.max_iterations,
        servers=tuple(found),
        custom_instructions=agent.custom_instructions,
        server_instructions=tuple((name, server.instructions) for name, server in found.items() if server.instructions),
    )


def synthesis_for(
    platform: platforms.Platform, *, chain_name: str, chain: chains.Spec, stage: chains.Stage
) -> ResolvedAgent:
    """The settings of what makes one analysis of those of `stage`: one model call, without tools."""
    where = place(chain_name, stage=stage.name, block="synthesis")
    block = stage.synthesis or chains.Synthesis()
    name = block.agent or SYNTHESIS_AGENT
    agent = _agent(name, platform, chain_name=chain_name, chain=chain, where=where)
    strategy: chains.IterationStrategy = (
        block.iteration_strategy or agent.iteration_strategy or platform.defaults.iteration_strategy
    )
    return ResolvedAgent(
        name=name,
        provider=_provider(platform, agent.llm_provider, block.llm_provider, where=where),
        strategy=_SYNTHESES[strategy],
        max_iterations=1,
        servers=(),
        custom_instructions=agent.custom_instructions,
        server_instructions=(),
    )


def chat_for(platform: platforms.Platform, *, chain_name: str, chain: chains.Spec) -> ResolvedAgent:
    """The settings of what answers questions afterwards, but for its servers: those that the investigation's had."""
    where = place(chain_name, block="chat")
    block = chain.chat or chains.Chat()
    name = block.agent or CHAT_AGENT
    agent = _agent(name, platform, chain_name=chain_name, chain=chain, where=where)
    return ResolvedAgent(
        name=name,
        provider=_provider(platform, agent.llm_provider, block.llm_provider, where=where),
        strategy=agent.iteration_strategy or platform.defaults.iteration_strategy,
        max_iterations=_last(agent.max_iterations, block.max_iterations) or platform.defaults.max_iterations,
        servers=(),
        custom_instructions=agent.custom_instructions,
        server_instructions=(),
    )


def summary_for(platform: platforms.Platform, *, chain_name: str, chain: chains.Spec) -> ResolvedAgent:
    """The settings of what writes the executive summary: one model call, without tools or an agent's instructions."""
    block = chain.executive_summary or chains.ExecutiveSummary()
    return ResolvedAgent(
        name=SUMMARY,
        provider=_provider(platform, block.llm_provider, where=place(chain_name, block="executiveSummary")),
        strategy="synthesis",
        max_iterations=1,
        servers=(),
        custom_instructions="",
        server_instructions=(),
    )


def check_agent(agent: chains.Agent, platform: platforms.Platform, *, chain_name: str) -> None:
    """Raise an UnresolvedError if an agent of a chain's own names what is not there, even if a stage overrides it."""
    where = f"Chain '{chain_name}' agent '{agent.name}'"
    if agent.llm_provider is not None:
        _named(agent.llm_provider, platform.llm_providers, where=where, kind="LLM provider")
    for server in agent.mcp_servers:
        _named(server, platform.mcp_servers, where=where, kind="MCP server")


def check_unused(
    block: chains.Synthesis | chains.ExecutiveSummary | chains.Chat | None,
    platform: platforms.Platform,
    *,
    chain: chains.Spec,
    where: str,
) -> None:
    """Raise an UnresolvedError if a block without effect names what is not there: it may have one tomorrow."""
    if block is None:
        return
    if not isinstance(block, chains.ExecutiveSummary) and block.agent is not None:
        _named(block.agent, _agents(platform, chain), where=where, kind="agent")
    if block.llm_provider is not None:
        _named(block.llm_provider, platform.llm_providers, where=where, kind="LLM provider")


def _agents(platform: platforms.Platform, chain: chains.Spec) -> dict[str, platforms.Agent | chains.Agent]:
    return {**platform.agents, **{agent.name: agent for agent in chain.agents or ()}}


def _agent(
    name: str, platform: platforms.Platform, *, chain_name: str, chain: chains.Spec, where: str
) -> platforms.Agent | chains.Agent:
    agent = _named(name, _agents(platform, chain), where=where, kind="agent")
    if isinstance(agent, chains.Agent):
        check_agent(agent, platform, chain_name=chain_name)
    return agent


def _provider(platform: platforms.Platform, *named: str | None, where: str) -> str:
    provider = _last(platform.defaults.llm_provider, *named)
    if provider is None:
        raise UnresolvedError(f"{where} has no LLM provider: set llmProvider there or defaults.llm_provider")
    _named(provider, platform.llm_providers, where=where, kind="LLM provider")
    return provider


def _last(*values: T | None) -> T | None:
    return next((value for value in reversed(values) if value is not None), None)


def _named(name: str, mapping: dict[str, T], *, where: str, kind: str) -> T:
    if name not in mapping:
        raise UnresolvedError(
            f"{where} references unknown {kind} '{name}'. Available {kind}s: {', '.join(sorted(mapping)) or 'none'}"
        )
    return mapping[name]

"""From names to settings: what one execution really runs with.

Order, later wins: defaults, agent, chain, stage, agent of the stage, the alert. Lists replace; an empty list clears. An
agent has no fallback providers of its own. Of tools each only takes away (`offers`), and an alert can do nothing else:
who creates an investigation is given no server, and no way out, that neither chain nor platform file have given.

What brings a stage's analyses together, sums up and answers questions is settled by defaults, agent and its own block
alone: a chain that gives its agents a fast provider has not chosen one for what is made of their work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tarsy.config.model import platforms, tool_filters
from tarsy.resources import chains, investigations

T = TypeVar("T")

SYNTHESIS_AGENT = "SynthesisAgent"
CHAT_AGENT = "ChatAgent"
"""The agents where a chain names none. They are built in (`config.load.builtin`), and may be replaced."""
SUMMARY = "ExecutiveSummary"
"""The name of the summary's execution, which has no agent."""
WITHOUT_TOOLS = ("react-final-analysis", "synthesis", "synthesis-native-thinking")
"""The strategies that have no use for tools."""
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
class NativeTools:
    """Tools of a provider's own."""

    offered: tuple[chains.NativeTool, ...] = ()
    left_out: tuple[chains.NativeTool, ...] = ()
    """Wanted, and not offered, because the provider does not take them beside those of MCP servers."""
    mixes: bool = True
    """Whether it does."""

    def beside_tools(self) -> NativeTools:
        """Return the native tools that can be used beside tools of MCP servers."""
        return self if self.mixes else replace(self, offered=(), left_out=self.offered)

    def narrowed(self, mcp: investigations.MCP | None) -> NativeTools:
        """Return the native tools that an alert leaves."""
        switches = (mcp and mcp.native_tools) or {}
        return replace(self, offered=tuple(tool for tool in self.offered if switches.get(tool, True)))


@dataclass(frozen=True, kw_only=True)
class Fallback:
    """A provider that is asked where those before it give no answer."""

    provider: str
    native: NativeTools = field(default_factory=NativeTools)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How many tool calls an execution may ask for. Beyond that it may only conclude."""

    at_once: int
    calls: int
    """In all."""
    of_one_tool: int
    failed: int
    """In a row, in more than one answer."""


def budget(platform: platforms.Platform) -> Budget:
    """Return an execution's limits by the platform file."""
    limits = platform.limits
    return Budget(
        at_once=limits.execution_calls,
        calls=limits.tool_calls,
        of_one_tool=limits.one_tool_calls,
        failed=limits.failed_calls,
    )


@dataclass(frozen=True, kw_only=True)
class ResolvedAgent:
    """The settings of one execution, fixed at its start."""

    name: str
    provider: str
    strategy: chains.IterationStrategy
    max_iterations: int
    servers: tuple[str, ...]
    custom_instructions: str
    server_instructions: tuple[tuple[str, str], ...]
    """(server, instructions) of those servers that have any."""
    problems: tuple[str, ...] = ()
    """The things it lacks, one sentence each: servers that were unreachable when it started."""
    native: NativeTools = field(default_factory=NativeTools)
    fallbacks: tuple[Fallback, ...] = ()
    """In the order in which they are asked; its provider is none of them."""
    tools: tuple[tool_filters.Filter, ...] = ()
    """Which tools of its servers it gets: those that all of them admit."""
    budget: Budget | None = None
    """None of those that started before there was any."""

    def admits(self, tool: str) -> bool:
        """Whether it gets the tool of this name (`server.tool`)."""
        return all(tool_filter.admits(tool) for tool_filter in self.tools)

    def beside_tools(self) -> ResolvedAgent:
        """The same, where there are tools of MCP servers."""
        fallbacks = tuple(replace(fallback, native=fallback.native.beside_tools()) for fallback in self.fallbacks)
        return replace(self, native=self.native.beside_tools(), fallbacks=fallbacks)

    def without_tools(self) -> ResolvedAgent:
        """The same, for what has no use for any."""
        fallbacks = tuple(Fallback(provider=fallback.provider) for fallback in self.fallbacks)
        return replace(self, servers=(), server_instructions=(), native=NativeTools(), fallbacks=fallbacks, tools=())

    def narrowed(self, mcp: investigations.MCP | None) -> ResolvedAgent:
        """The same with the tools that an alert leaves it, of MCP servers and of providers."""
        fallbacks = tuple(replace(fallback, native=fallback.native.narrowed(mcp)) for fallback in self.fallbacks)
        tools = (*self.tools, *tool_filters.of_alert(mcp))
        return replace(self, native=self.native.narrowed(mcp), fallbacks=fallbacks, tools=tools)


def place(chain_name: str, *, stage: str = "", block: str = "") -> str:
    """Return where in a chain something stands, as messages say it: `Chain 'a' stage 'b' synthesis`.

    Without a name of the chain, only where in the chain.
    """
    parts = (chain_name and f"Chain '{chain_name}'", stage and f"stage '{stage}'", block)
    return " ".join(filter(None, parts))


def agent_for(
    platform: platforms.Platform,
    *,
    chain_name: str,
    chain: chains.Spec,
    stage: chains.Stage,
    member: chains.StageAgent,
    mcp: investigations.MCP | None = None,
) -> ResolvedAgent:
    """The settings of `member` of `stage`, as an alert narrows them by its `mcp`.

    An UnresolvedError names what is missing, with what there is.
    """
    where = place(chain_name, stage=stage.name)
    agent = _agent(member.name, platform, chain_name=chain_name, chain=chain, where=where)
    levels = (agent, chain, stage, member)
    servers = _last(*(level.mcp_servers for level in levels)) or []
    own = {name: _named(name, platform.mcp_servers, where=where, kind="MCP server") for name in servers}
    selected = _selected(platform, own, mcp, chain_name=chain_name, chain=chain)
    provider = _provider(platform, *(level.llm_provider for level in levels), where=where)
    named = _last(platform.defaults.fallback_providers, *(level.fallback_providers for level in (chain, stage, member)))
    return ResolvedAgent(
        name=member.name,
        provider=provider,
        native=_native(platform, provider, wanted=agent.native_tools, where=where),
        fallbacks=_fallbacks(platform, named, provider=provider, wanted=agent.native_tools, where=where),
        strategy=_last(*(level.iteration_strategy for level in levels)) or platform.defaults.iteration_strategy,
        max_iterations=_last(*(level.max_iterations for level in levels)) or platform.defaults.max_iterations,
        servers=tuple(selected),
        custom_instructions=agent.custom_instructions,
        server_instructions=tuple(
            (name, server.instructions) for name, server in selected.items() if server.instructions
        ),
        tools=tool_filters.filters(agent.tools, stage.tools, member.tools),
    ).narrowed(mcp)


def own_provider(
    platform: platforms.Platform, *, chain: chains.Spec, stage: chains.Stage, member: chains.StageAgent
) -> str | None:
    """The name of the provider that `member` of `stage` asks first, whether the platform has it or not.

    None where none is named, or there is no such agent: `agent_for` says what is missing.
    """
    agent = _agents(platform, chain).get(member.name)
    if agent is None:
        return None
    return _last(platform.defaults.llm_provider, *(level.llm_provider for level in (agent, chain, stage, member)))


def _selected(
    platform: platforms.Platform,
    own: Mapping[str, platforms.MCPServer],
    mcp: investigations.MCP | None,
    *,
    chain_name: str,
    chain: chains.Spec,
) -> Mapping[str, platforms.MCPServer]:
    """An agent's servers: its own, or of those that an alert names in their place its own and the selectable ones."""
    if mcp is None or mcp.servers is None:
        return own
    there = selectable(platform, chain)
    selected = {}
    for index, server in enumerate(mcp.servers):
        if server.name not in there:
            raise UnresolvedError(
                f"mcp.servers.{index} references MCP server '{server.name}', which no agent of chain '{chain_name}' "
                f"has and which is not selectable. Available MCP servers: {', '.join(sorted(there)) or 'none'}"
            )
        settings = platform.mcp_servers.get(server.name)
        if settings and (server.name in own or settings.selectable):
            selected[server.name] = settings
    return selected


def selectable(platform: platforms.Platform, chain: chains.Spec) -> set[str]:
    """The servers that an alert of this chain may name: those of its agents, and those that any alert may name."""
    agents = _agents(platform, chain)
    names = {name for name, server in platform.mcp_servers.items() if server.selectable}
    for stage in chain.stages:
        for member in stage.members:
            agent = agents.get(member.name)
            of_agent = agent.mcp_servers if agent else None
            names.update(_last(of_agent, chain.mcp_servers, stage.mcp_servers, member.mcp_servers) or ())
    return names


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
    provider = _provider(platform, agent.llm_provider, block.llm_provider, where=where)
    return ResolvedAgent(
        name=name,
        provider=provider,
        fallbacks=_default_fallbacks(platform, provider=provider),
        strategy=_SYNTHESES[strategy],
        max_iterations=1,
        servers=(),
        custom_instructions=agent.custom_instructions,
        server_instructions=(),
    )


def chat_for(
    platform: platforms.Platform,
    *,
    chain_name: str,
    chain: chains.Spec,
    mcp: investigations.MCP | None = None,
) -> ResolvedAgent:
    """The settings of what answers questions afterwards, but for its servers: those that the investigation's had."""
    where = place(chain_name, block="chat")
    block = chain.chat or chains.Chat()
    name = block.agent or CHAT_AGENT
    agent = _agent(name, platform, chain_name=chain_name, chain=chain, where=where)
    provider = _provider(platform, agent.llm_provider, block.llm_provider, where=where)
    return ResolvedAgent(
        name=name,
        provider=provider,
        native=_native(platform, provider, wanted=agent.native_tools, where=where),
        fallbacks=_default_fallbacks(platform, provider=provider, wanted=agent.native_tools),
        strategy=agent.iteration_strategy or platform.defaults.iteration_strategy,
        max_iterations=_last(agent.max_iterations, block.max_iterations) or platform.defaults.max_iterations,
        servers=(),
        custom_instructions=agent.custom_instructions,
        server_instructions=(),
        tools=tool_filters.filters(agent.tools),
    ).narrowed(mcp)


def summary_for(platform: platforms.Platform, *, chain_name: str, chain: chains.Spec) -> ResolvedAgent:
    """The settings of what writes the executive summary: one model call, without tools or an agent's instructions."""
    block = chain.executive_summary or chains.ExecutiveSummary()
    provider = _provider(platform, block.llm_provider, where=place(chain_name, block="executiveSummary"))
    return ResolvedAgent(
        name=SUMMARY,
        provider=provider,
        fallbacks=_default_fallbacks(platform, provider=provider),
        strategy="synthesis",
        max_iterations=1,
        servers=(),
        custom_instructions="",
        server_instructions=(),
    )


def check_agent(agent: chains.Agent, platform: platforms.Platform, *, chain_name: str) -> None:
    """Raise an UnresolvedError if an agent of a chain's own names what is not there, even if a stage overrides it."""
    where = place(chain_name, block=f"agent '{agent.name}'")
    if agent.llm_provider is not None:
        _named(agent.llm_provider, platform.llm_providers, where=where, kind="LLM provider")
        _native(platform, agent.llm_provider, wanted=agent.native_tools, where=where)
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


def _default_fallbacks(
    platform: platforms.Platform, *, provider: str, wanted: Sequence[chains.NativeTool] | None = ()
) -> tuple[Fallback, ...]:
    named = platform.defaults.fallback_providers
    return _fallbacks(platform, named, provider=provider, wanted=wanted, where="defaults")


def _fallbacks(
    platform: platforms.Platform,
    named: Sequence[str] | None,
    *,
    provider: str,
    wanted: Sequence[chains.NativeTool] | None,
    where: str,
) -> tuple[Fallback, ...]:
    """The providers that are asked behind `provider`, each once; they give of the native tools what they have."""
    fallbacks = []
    for name in dict.fromkeys(named or ()):
        settings = _named(name, platform.llm_providers, where=f"{where} fallbackProviders", kind="LLM provider")
        if name != provider:
            offered = settings.own_native_tools if wanted is None else _common(wanted, settings.has_native_tools)
            fallbacks.append(Fallback(provider=name, native=NativeTools(offered=offered, mixes=settings.mixes_tools)))
    return tuple(fallbacks)


def _native(
    platform: platforms.Platform, provider: str, *, wanted: Sequence[chains.NativeTool] | None, where: str
) -> NativeTools:
    """The native tools that `provider` is to offer: an agent's choice replaces its own."""
    settings = platform.llm_providers[provider]
    offered = settings.own_native_tools if wanted is None else _common(wanted, settings.has_native_tools)
    if missing := [tool for tool in wanted or () if tool not in offered]:
        has = ", ".join(settings.has_native_tools) or "none"
        raise UnresolvedError(f"{where}: LLM provider '{provider}' has no native tool '{missing[0]}'. It has: {has}")
    return NativeTools(offered=offered, mixes=settings.mixes_tools)


def _common(wanted: Sequence[chains.NativeTool], there: Sequence[chains.NativeTool]) -> tuple[chains.NativeTool, ...]:
    return tuple(tool for tool in dict.fromkeys(wanted) if tool in there)


def _last(*values: T | None) -> T | None:
    return next((value for value in reversed(values) if value is not None), None)


def _named(name: str, mapping: dict[str, T], *, where: str, kind: str) -> T:
    if name not in mapping:
        raise UnresolvedError(
            f"{where} references unknown {kind} '{name}'. Available {kind}s: {', '.join(sorted(mapping)) or 'none'}"
        )
    return mapping[name]

"""Resolves names to settings: the agent, provider, servers and limits of one execution.

Order, later wins: defaults, agent, chain, stage, agent of the stage, the alert. Lists replace; an empty list clears. An
agent has no fallback providers of its own. For tools, each level can only remove some (`tool_filters`). An alert can do
nothing else: it gets no server that neither the chain nor the platform file allows. A platform that is restricted to
what some namespaces may use (`model.reach`) lacks all else; the message then says why.

Synthesis, executive summary and chat are resolved from defaults, agent and their own block only: a chain that sets a
fast provider for its agents does not set it for these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tarsy.config.model import platforms, providers, tool_filters
from tarsy.resources import chains, investigations

T = TypeVar("T")

SYNTHESIS_AGENT = "SynthesisAgent"
CHAT_AGENT = "ChatAgent"
"""The agents of synthesis and chat if a chain names none. They are built in (`config.load.builtin`)."""
SUMMARY = "ExecutiveSummary"
"""The name of the execution of the executive summary, which has no agent."""
WITHOUT_TOOLS = ("react-final-analysis", "synthesis", "synthesis-native-thinking")
"""The strategies that use no tools."""
_SYNTHESES: dict[chains.IterationStrategy, chains.SynthesisStrategy] = {
    "react": "synthesis",
    "react-stage": "synthesis",
    "react-final-analysis": "synthesis",
    "native-thinking": "synthesis-native-thinking",
    "synthesis": "synthesis",
    "synthesis-native-thinking": "synthesis-native-thinking",
}
"""The synthesis strategy that uses the same dialect as a strategy."""


class UnresolvedError(Exception):
    """An unknown name; the message has the name, its location and the available names."""


class NotAllowedError(UnresolvedError):
    """A provider or server that a namespace may not use; the message has it, its location and the allowed ones."""


@dataclass(frozen=True, kw_only=True)
class NativeTools:
    """The native tools of a provider."""

    offered: tuple[chains.NativeTool, ...] = ()
    left_out: tuple[chains.NativeTool, ...] = ()
    """The tools that are not offered because the provider does not take them together with those of MCP servers."""
    mixes: bool = True
    """Whether the provider takes native tools together with those of MCP servers."""

    def beside_tools(self) -> NativeTools:
        """Return the native tools that can be used together with tools of MCP servers."""
        return self if self.mixes else replace(self, offered=(), left_out=self.offered)

    def narrowed(self, mcp: investigations.MCP | None) -> NativeTools:
        """Return the native tools that an alert leaves."""
        switches = (mcp and mcp.native_tools) or {}
        return replace(self, offered=tuple(tool for tool in self.offered if switches.get(tool, True)))


@dataclass(frozen=True, kw_only=True)
class Fallback:
    """A provider that is used if those before it give no answer."""

    provider: str
    native: NativeTools = field(default_factory=NativeTools)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The limits of an execution's tool calls. Beyond them it may only conclude."""

    at_once: int
    """Concurrent calls."""
    calls: int
    """Calls in total."""
    of_one_tool: int
    """Calls of the same tool."""
    failed: int
    """Consecutive failed calls, in more than one answer."""


def budget(platform: platforms.Platform) -> Budget:
    """Return the limits of the platform file."""
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
    """(server, instructions) of the servers that have instructions."""
    problems: tuple[str, ...] = ()
    """The problems at its start, one sentence each: servers that were unreachable."""
    native: NativeTools = field(default_factory=NativeTools)
    fallbacks: tuple[Fallback, ...] = ()
    """The fallback providers in their order; `provider` is not among them."""
    tools: tuple[tool_filters.Filter, ...] = ()
    """The filters of tools: the agent gets the tools of its servers that all filters admit."""
    budget: Budget | None = None
    """None for an execution that was started by a version without budgets."""

    def admits(self, tool: str) -> bool:
        """Return whether the agent gets the tool of this name (`server.tool`)."""
        return all(tool_filter.admits(tool) for tool_filter in self.tools)

    def beside_tools(self) -> ResolvedAgent:
        """Return the settings for an execution that has tools of MCP servers."""
        fallbacks = tuple(replace(fallback, native=fallback.native.beside_tools()) for fallback in self.fallbacks)
        return replace(self, native=self.native.beside_tools(), fallbacks=fallbacks)

    def without_tools(self) -> ResolvedAgent:
        """Return the settings for an execution without any tools."""
        fallbacks = tuple(Fallback(provider=fallback.provider) for fallback in self.fallbacks)
        return replace(self, servers=(), server_instructions=(), native=NativeTools(), fallbacks=fallbacks, tools=())

    def narrowed(self, mcp: investigations.MCP | None) -> ResolvedAgent:
        """Return the settings with the tools that an alert selects, of MCP servers and of providers."""
        fallbacks = tuple(replace(fallback, native=fallback.native.narrowed(mcp)) for fallback in self.fallbacks)
        tools = (*self.tools, *tool_filters.alert_filters(mcp))
        return replace(self, native=self.native.narrowed(mcp), fallbacks=fallbacks, tools=tools)


def location(chain_name: str, *, stage: str = "", block: str = "") -> str:
    """Return the text for a location in a chain: `Chain 'a' stage 'b' synthesis`.

    If the chain's name is "", the text has no `Chain ...` part.
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
    """Return the settings of `member` of `stage`, with the tool selection `mcp` of an alert.

    Raises UnresolvedError with the unknown name and the available names.
    """
    where = location(chain_name, stage=stage.name)
    agent = _agent(member.name, platform, chain_name=chain_name, chain=chain, where=where)
    levels = (agent, chain, stage, member)
    servers = _last(*(level.mcp_servers for level in levels)) or []
    agent_servers = {name: _server(name, platform, where=where) for name in servers}
    selected = _selected(platform, agent_servers, mcp, chain_name=chain_name, chain=chain)
    provider = _provider(platform, *(level.llm_provider for level in levels), where=where)
    fallbacks = _last(
        platform.defaults.fallback_providers, *(level.fallback_providers for level in (chain, stage, member))
    )
    return ResolvedAgent(
        name=member.name,
        provider=provider,
        native=_native(platform, provider, selected=agent.native_tools, where=where),
        fallbacks=_fallbacks(platform, fallbacks, provider=provider, selected=agent.native_tools, where=where),
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
    """Return the name of the first provider of `member` of `stage`, which may be unknown to the platform.

    None if no provider is set or the agent is unknown; `agent_for` raises an error for these.
    """
    agent = _agents(platform, chain).get(member.name)
    if agent is None:
        return None
    return _last(platform.defaults.llm_provider, *(level.llm_provider for level in (agent, chain, stage, member)))


def _selected(
    platform: platforms.Platform,
    agent_servers: Mapping[str, platforms.MCPServer],
    mcp: investigations.MCP | None,
    *,
    chain_name: str,
    chain: chains.Spec,
) -> Mapping[str, platforms.MCPServer]:
    """Return the servers of an agent: its own, or those of the alert's selection that it has or that are selectable."""
    if mcp is None or mcp.servers is None:
        return agent_servers
    available = selectable(platform, chain)
    selected = {}
    for index, server in enumerate(mcp.servers):
        where = f"mcp.servers.{index}"
        if platform.not_allowed("MCP server", server.name):
            _server(server.name, platform, where=where)
        if server.name not in available:
            raise UnresolvedError(
                f"{where} references MCP server '{server.name}', which no agent of chain '{chain_name}' "
                f"has and which is not selectable. Available MCP servers: {', '.join(sorted(available)) or 'none'}"
            )
        settings = platform.mcp_servers.get(server.name)
        if settings and (server.name in agent_servers or settings.selectable):
            selected[server.name] = settings
    return selected


def selectable(platform: platforms.Platform, chain: chains.Spec) -> set[str]:
    """Return the servers that an alert of this chain may select: those of its agents, and the selectable ones."""
    agents = _agents(platform, chain)
    names = {name for name, server in platform.mcp_servers.items() if server.selectable}
    for stage in chain.stages:
        for member in stage.members:
            agent = agents.get(member.name)
            agent_servers = agent.mcp_servers if agent else None
            names.update(_last(agent_servers, chain.mcp_servers, stage.mcp_servers, member.mcp_servers) or ())
    return names


def synthesis_for(
    platform: platforms.Platform, *, chain_name: str, chain: chains.Spec, stage: chains.Stage
) -> ResolvedAgent:
    """Return the settings of the synthesis of a stage's analyses: one model call, without tools."""
    where = location(chain_name, stage=stage.name, block="synthesis")
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
    """Return the settings of the chat agent, without servers: those of the investigation's agents are added later."""
    where = location(chain_name, block="chat")
    block = chain.chat or chains.Chat()
    name = block.agent or CHAT_AGENT
    agent = _agent(name, platform, chain_name=chain_name, chain=chain, where=where)
    provider = _provider(platform, agent.llm_provider, block.llm_provider, where=where)
    return ResolvedAgent(
        name=name,
        provider=provider,
        native=_native(platform, provider, selected=agent.native_tools, where=where),
        fallbacks=_default_fallbacks(platform, provider=provider, selected=agent.native_tools),
        strategy=agent.iteration_strategy or platform.defaults.iteration_strategy,
        max_iterations=_last(agent.max_iterations, block.max_iterations) or platform.defaults.max_iterations,
        servers=(),
        custom_instructions=agent.custom_instructions,
        server_instructions=(),
        tools=tool_filters.filters(agent.tools),
    ).narrowed(mcp)


def summary_for(platform: platforms.Platform, *, chain_name: str, chain: chains.Spec) -> ResolvedAgent:
    """Return the settings of the executive summary: one model call, without tools and without instructions."""
    block = chain.executive_summary or chains.ExecutiveSummary()
    provider = _provider(platform, block.llm_provider, where=location(chain_name, block="executiveSummary"))
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


def check_servers(names: Iterable[str], platform: platforms.Platform, *, where: str) -> None:
    """Raise a NotAllowedError if a namespace may not use one of these servers. Unknown ones are no error."""
    for name in names:
        if platform.not_allowed("MCP server", name):
            _server(name, platform, where=where)


def check_agent(agent: chains.Agent, platform: platforms.Platform, *, chain_name: str) -> None:
    """Raise an UnresolvedError if an agent of the chain names something unknown, even if a stage overrides it."""
    where = location(chain_name, block=f"agent '{agent.name}'")
    if agent.llm_provider is not None:
        _provider_settings(agent.llm_provider, platform, where=where)
        _native(platform, agent.llm_provider, selected=agent.native_tools, where=where)
    for server in agent.mcp_servers:
        _server(server, platform, where=where)


def check_unused(
    block: chains.Synthesis | chains.ExecutiveSummary | chains.Chat | None,
    platform: platforms.Platform,
    *,
    chain: chains.Spec,
    where: str,
) -> None:
    """Raise an UnresolvedError if a block without effect names something unknown: it may take effect later."""
    if block is None:
        return
    if not isinstance(block, chains.ExecutiveSummary) and block.agent is not None:
        _lookup(block.agent, _agents(platform, chain), platform, where=where, kind="agent")
    if block.llm_provider is not None:
        _provider_settings(block.llm_provider, platform, where=where)


def _agents(platform: platforms.Platform, chain: chains.Spec) -> dict[str, platforms.Agent | chains.Agent]:
    return {**platform.agents, **{agent.name: agent for agent in chain.agents or ()}}


def _agent(
    name: str, platform: platforms.Platform, *, chain_name: str, chain: chains.Spec, where: str
) -> platforms.Agent | chains.Agent:
    agent = _lookup(name, _agents(platform, chain), platform, where=where, kind="agent")
    if isinstance(agent, chains.Agent):
        check_agent(agent, platform, chain_name=chain_name)
    return agent


def _provider(platform: platforms.Platform, *levels: str | None, where: str) -> str:
    provider = _last(platform.defaults.llm_provider, *levels)
    if provider is None:
        raise UnresolvedError(f"{where} has no LLM provider: set llmProvider there or defaults.llm_provider")
    _provider_settings(provider, platform, where=where)
    return provider


def _default_fallbacks(
    platform: platforms.Platform, *, provider: str, selected: Sequence[chains.NativeTool] | None = ()
) -> tuple[Fallback, ...]:
    names = platform.defaults.fallback_providers
    return _fallbacks(platform, names, provider=provider, selected=selected, where="defaults")


def _fallbacks(
    platform: platforms.Platform,
    names: Sequence[str] | None,
    *,
    provider: str,
    selected: Sequence[chains.NativeTool] | None,
    where: str,
) -> tuple[Fallback, ...]:
    """Return the fallbacks of `provider`, each once, with those of the selected native tools that they support."""
    fallbacks = []
    for name in dict.fromkeys(names or ()):
        settings = _provider_settings(name, platform, where=f"{where} fallbackProviders")
        if name != provider:
            offered = settings.own_native_tools if selected is None else _common(selected, settings.has_native_tools)
            fallbacks.append(Fallback(provider=name, native=NativeTools(offered=offered, mixes=settings.mixes_tools)))
    return tuple(fallbacks)


def _native(
    platform: platforms.Platform, provider: str, *, selected: Sequence[chains.NativeTool] | None, where: str
) -> NativeTools:
    """Return the native tools of `provider`: the agent's selection replaces that of the provider."""
    settings = platform.llm_providers[provider]
    offered = settings.own_native_tools if selected is None else _common(selected, settings.has_native_tools)
    if missing := [tool for tool in selected or () if tool not in offered]:
        available = ", ".join(settings.has_native_tools) or "none"
        raise UnresolvedError(
            f"{where}: LLM provider '{provider}' has no native tool '{missing[0]}'. It has: {available}"
        )
    return NativeTools(offered=offered, mixes=settings.mixes_tools)


def _common(
    selected: Sequence[chains.NativeTool], available: Sequence[chains.NativeTool]
) -> tuple[chains.NativeTool, ...]:
    return tuple(tool for tool in dict.fromkeys(selected) if tool in available)


def _last(*values: T | None) -> T | None:
    return next((value for value in reversed(values) if value is not None), None)


def _provider_settings(name: str, platform: platforms.Platform, *, where: str) -> providers.Provider:
    return _lookup(name, platform.llm_providers, platform, where=where, kind="LLM provider")


def _server(name: str, platform: platforms.Platform, *, where: str) -> platforms.MCPServer:
    return _lookup(name, platform.mcp_servers, platform, where=where, kind="MCP server")


def _lookup(
    name: str, mapping: Mapping[str, T], platform: platforms.Platform, *, where: str, kind: platforms.Kind
) -> T:
    if name not in mapping:
        message, is_known = missing(name, mapping, platform, kind=kind)
        raise (NotAllowedError if is_known else UnresolvedError)(f"{where} references {message}")
    return mapping[name]


def missing(
    name: str, available: Iterable[str], platform: platforms.Platform, *, kind: platforms.Kind
) -> tuple[str, bool]:
    """Return why a name is not among the `available` ones, and whether it is known but not allowed."""
    if why := platform.not_allowed(kind, name):
        return f"{kind} '{name}', {why}", True
    return f"unknown {kind} '{name}'. Available {kind}s: {', '.join(sorted(available)) or 'none'}", False

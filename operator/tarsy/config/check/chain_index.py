"""An index of the chains of a namespace: which chain takes an alert type, and whether its references can be used.

An investigation may use the chains of its own namespace and those of the operator's. The chain of its own namespace
comes first, by name and by alert type, also if it is not ready: another one must not take its place unnoticed.

Pure. The conditions of a chain, the refusal of an investigation and the answer to a webhook follow from it, so they
never differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tarsy.config import resolve
from tarsy.config.model import budgets, platforms, reach, tool_filters
from tarsy.config.tool_selection import choices, grants, ineffective
from tarsy.resources import chains, investigations

NOT_OFFERED = "ToolsNotOffered"
"""The reason of the warning that agents are not offered all tools of their servers, which is normal."""
PATTERN = "PatternInvalid"
"""The reason if a pattern of a chain can match no tool: a tool that it should deny would stay allowed."""
NOT_ALLOWED = "ReferenceNotPermitted"
"""The reason if a chain needs a provider or server that a namespace may not use. Gateway API: RefNotPermitted."""
UNBOUNDED = "BudgetCannotBeKept"
"""The reason if a budget covers requests of which no maximum is known: they would be refused."""
OWNERS = "OwnersNotLookedUp"
"""The reason of the warning that alerts are investigated alone because their owners are not looked up."""
SELECTION = "MCPSelectionInvalid"
"""The reason if an investigation selects servers or tools that its agents cannot have."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A problem: a CamelCase reason for conditions, and a message that names the location and the alternatives."""

    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class ChainStatus:
    """The status of one chain. None means no problem."""

    acceptance: Problem | None
    references: Problem | None
    warning: Problem | None = None
    """The problems with which it is ready: unusable fallback providers, receivers that hear nothing, owners that are
    not looked up, patterns that match no tool, tools not offered."""
    servers: tuple[str, ...] = ()
    """The names of its agents' MCP servers, sorted."""
    providers: tuple[str, ...] = ()
    """The names of its agents' LLM providers without fallbacks, sorted."""

    @property
    def problem(self) -> Problem | None:
        """The problem because of which the chain is not ready."""
        return self.acceptance or self.references


class UnservedError(Exception):
    """No chain can serve an investigation."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class ChainIndex:
    """The chains that investigations of one namespace may use, checked once against the platform of this process."""

    def __init__(
        self,
        listed: Iterable[chains.AgentChain],
        *,
        platform: platforms.Platform,
        unusable_providers: Mapping[str, str],
        namespace: str,
        own: str,
    ) -> None:
        """`listed` are the chains of `namespace`, that of the investigations, and of `own`, the operator's.

        `unusable_providers` are those that no worker can use, with reasons (`worker_reports.Workers.unusable`).
        """
        self._namespace, self._own = namespace, own
        self._unusable_providers = unusable_providers
        self._chains = sorted(listed, key=lambda chain: (chain.metadata.namespace != namespace, *_precedence(chain)))
        self._platforms = {
            name: reach.platform_for(platform, [name, namespace], own=own)
            for name in {chain.metadata.namespace for chain in self._chains}
        }
        """The part of the platform that chains of a namespace may use for these investigations."""
        self._takers: dict[str, chains.AgentChain] = {}
        self.statuses: dict[str, ChainStatus] = {}
        """The statuses by the chains' uids."""
        owners: dict[tuple[str, str], str] = {}
        for chain in self._chains:
            keys = [(chain.metadata.namespace, name) for name in chain.spec.alert_types]
            conflict = next((key for key in keys if key in owners), None)
            acceptance = None if conflict is None else conflict_of(conflict[1], owner=owners[conflict])
            if acceptance is None:
                owners |= dict.fromkeys(keys, chain.metadata.name)
                self._takers = dict.fromkeys(chain.spec.alert_types, chain) | self._takers
            self.statuses[chain.metadata.uid] = replace(self._check(chain), acceptance=acceptance)

    @property
    def chains_by_alert_type(self) -> Mapping[str, chains.AgentChain]:
        """Each alert type that a chain names, with the chain that takes it, or would take it if it were accepted."""
        named = {name: chain for chain in reversed(self._chains) for name in chain.spec.alert_types}
        return named | self._takers

    def chain_for(self, alert_type: str) -> chains.AgentChain:
        """Return the accepted and ready chain that takes `alert_type`. Raise UnservedError if there is none."""
        if alert_type not in self._takers:
            raise self._not_found(alert_type)
        return self._ready(self._takers[alert_type])

    def _not_found(self, alert_type: str) -> UnservedError:
        types = ", ".join(sorted(self._takers)) or "none"
        message = f"No chain found for alert type '{alert_type}'. Available alert types: {types}"
        if rejected := next((chain for chain in self._chains if alert_type in chain.spec.alert_types), None):
            problem = self.statuses[rejected.metadata.uid].problem
            why = problem.message if problem else ""
            message += f". Chain '{rejected.metadata.name}' has it and is not accepted: {why}"
        return UnservedError(Problem(reason="ChainNotFound", message=message))

    def effective_type(self, alert_type: str, *, default: str | None) -> str:
        """Return the type under which alerts of a type are investigated: that type, or else the `default` type.

        An accepted chain has it, ready or not. If none has either, raise UnservedError.
        """
        for candidate in (alert_type, default):
            if candidate in self._takers:
                return str(candidate)
        raise self._not_found(alert_type)

    def takes(self, alert_type: str, *, default: str | None) -> bool:
        """Return whether an accepted chain, ready or not, takes alerts of a type, by its name or as `default`."""
        return alert_type in self._takers or default in self._takers

    def chain_named(self, name: str) -> chains.AgentChain:
        """Return the chain of that name, if it is ready. Raise UnservedError if it is not, or does not exist."""
        candidates = {chain.metadata.name: chain for chain in reversed(self._chains)}
        if name not in candidates:
            message = f"No chain is named '{name}'. Available chains: {', '.join(sorted(candidates)) or 'none'}"
            raise UnservedError(Problem(reason="ChainNotFound", message=message))
        return self._ready(candidates[name])

    def check_tool_selection(
        self, chain: chains.AgentChain, mcp: investigations.MCP | None, catalogue: tool_filters.Catalogue
    ) -> None:
        """Raise UnservedError if `mcp` selects servers or tools that the agents of `chain` cannot have.

        Any tool is accepted of a server that is not in `catalogue`.
        """
        name, spec = chain.metadata.name, chain.spec
        if mcp and (
            message := grants.selection_problem(mcp, self._reach(chain), catalogue, chain_name=name, chain=spec)
        ):
            raise UnservedError(Problem(reason=SELECTION, message=message))

    def selectable_servers(
        self, chain: chains.AgentChain, *, catalogue: tool_filters.Catalogue
    ) -> Iterator[choices.ServerChoice]:
        """Yield the MCP servers that an alert of a ready chain may select, with their tools."""
        return choices.choices(self._reach(chain), catalogue, chain_name=chain.metadata.name, chain=chain.spec)

    def status(
        self, chain: chains.AgentChain, catalogue: tool_filters.Catalogue, *, refused_owners: Collection[str] = ()
    ) -> ChainStatus:
        """Return the status of a chain of this index, with warnings on its tools, patterns and owners.

        `refused_owners` are the kinds of owners of alerts that the API lacks the right to get.
        """
        checked = self.statuses[chain.metadata.uid]
        if checked.references:
            return checked
        platform = self._reach(chain)
        agents = grants.agents(platform, chain_name=chain.metadata.name, chain=chain.spec)
        warnings = [checked.warning] if checked.warning else []
        if refused_owners and chain.spec.grouping and chain.spec.grouping.by == "Owner":
            kinds = ", ".join(f"{kind}s" for kind in sorted(refused_owners))
            message = (
                f"Chain '{chain.metadata.name}' groups alerts by owner, but the API lacks the right to get {kinds}: "
                "alerts about them are investigated alone: set rbac.owners of the chart"
            )
            warnings.append(Problem(reason=OWNERS, message=message))
        unfit = ineffective.unfit_in_chain(platform, catalogue, chain_name=chain.metadata.name, chain=chain.spec)
        warnings += [Problem(reason="PatternsMatchNothing", message=message) for message in unfit]
        if message := grants.not_offered(platform, catalogue, agents):
            warnings.append(Problem(reason=NOT_OFFERED, message=message))
        return replace(checked, warning=_joined(warnings))

    def _ready(self, chain: chains.AgentChain) -> chains.AgentChain:
        if problem := self.statuses[chain.metadata.uid].problem:
            metadata = chain.metadata
            of = f" of namespace '{metadata.namespace}'" if metadata.namespace != self._namespace else ""
            message = f"Chain '{metadata.name}'{of} is not ready{of and ' here'}: {problem.message}"
            raise UnservedError(Problem(reason="ChainNotReady", message=message))
        return chain

    def _reach(self, chain: chains.AgentChain) -> platforms.Platform:
        """Return the part of the platform that the chain may use for these investigations."""
        return self._platforms[chain.metadata.namespace]

    def _check(self, chain: chains.AgentChain) -> ChainStatus:
        """Return the status of the chain, apart from conflicts of alert types."""
        problems = [Problem(reason=PATTERN, message=message) for message in ineffective.misfits(chain.spec)]
        unusable: set[str] = set()
        fallback_problems: dict[str, Problem] = {}
        servers: set[str] = set()
        providers: set[str] = set()
        for reference in references(chain, self._reach(chain)):
            try:
                agent = reference.resolve_agent()
            except resolve.UnresolvedError as error:
                reason = NOT_ALLOWED if isinstance(error, resolve.NotAllowedError) else "ReferenceNotFound"
                problems.append(Problem(reason=reason, message=str(error)))
                continue
            if agent is None:
                continue
            providers.add(agent.provider)
            if agent.strategy not in resolve.WITHOUT_TOOLS:
                servers.update(agent.servers)
            why = self._unusable_providers.get(agent.provider)
            # A provider that stages cannot use is not reported again for synthesis, summary and chat.
            if why is not None and not (reference.is_derived and agent.provider in unusable):
                unusable.add(agent.provider)
                message = f"{reference.location}: LLM provider '{agent.provider}' cannot be used: {why}"
                problems.append(Problem(reason="ProviderUnusable", message=message))
            unbounded = unbounded_providers(agent, self._reach(chain), chain=chain, namespace=self._namespace)
            if agent.provider in unbounded:
                message = f"{reference.location}: {unbounded[agent.provider]}"
                problems.append(Problem(reason=UNBOUNDED, message=message))
            for name in (fallback.provider for fallback in agent.fallbacks):
                if why := self._unusable_providers.get(name) or unbounded.get(name):
                    message = f"{reference.location}: fallback LLM provider '{name}' cannot be used: {why}"
                    fallback_problems.setdefault(name, Problem(reason="FallbackUnusable", message=message))
        receivers = self._reach(chain).deliveries
        unknown_receivers = [
            Problem(
                reason="ReceiverNotFound",
                message=(
                    f"Chain '{chain.metadata.name}' notifies unknown receiver '{name}'. "
                    f"Available receivers: {', '.join(sorted(receivers)) or 'none'}"
                ),
            )
            for name in chain.spec.notify or ()
            if name not in receivers
        ]
        deaf_receivers = [
            Problem(
                reason="ReceiverNotAllowed",
                message=(
                    f"Chain '{chain.metadata.name}' notifies receiver '{name}', which may not hear of namespace "
                    f"'{self._namespace}': add it to deliveries.{name}.allowed_namespaces of the platform file"
                ),
            )
            for name in chain.spec.notify or ()
            if name in receivers and not receivers[name].may_hear_of(self._namespace, own=self._own)
        ]
        grouping = chain.spec.grouping
        warnings = [*fallback_problems.values(), *unknown_receivers, *deaf_receivers]
        if grouping and grouping.by == "Owner" and self._reach(chain).ingest.this_cluster is None:
            message = (
                f"Chain '{chain.metadata.name}' groups alerts by owner, but the platform file does not say which are "
                "of this cluster (ingest.this_cluster): alerts of Pods and Jobs are investigated alone"
            )
            warnings.append(Problem(reason=OWNERS, message=message))
        return ChainStatus(
            acceptance=None,
            references=_joined(problems),
            warning=_joined(warnings),
            servers=tuple(sorted(servers)),
            providers=tuple(sorted(providers)),
        )


def _joined(problems: Sequence[Problem]) -> Problem | None:
    """Join problems into one with the reason of the first, without repeated messages; None if there are none."""
    if not problems:
        return None
    messages = dict.fromkeys(problem.message for problem in problems)
    return Problem(reason=problems[0].reason, message="; ".join(messages))


def unbounded_providers(
    agent: resolve.ResolvedAgent, platform: platforms.Platform, *, chain: chains.AgentChain, namespace: str
) -> dict[str, str]:
    """Return those of an agent's providers of whose requests no maximum is known, and the budgets that need one.

    `namespace` is that of the investigations.
    """
    own = f"{chain.metadata.namespace}/{chain.metadata.name}"
    runs = agent.without_tools() if agent.strategy in resolve.WITHOUT_TOOLS else agent
    natives = {fallback.provider: fallback.native for fallback in runs.fallbacks} | {runs.provider: runs.native}
    unbounded = {}
    for provider, native in natives.items():
        try:
            budgets.charges(
                platform.budgets,
                budgets.Subject(namespace=namespace, chain=own),
                provider=provider,
                settings=platform.llm_providers.get(provider),
                request_bytes=0,
                native_tools=bool(native.offered),
            )
        except budgets.UnboundedError as error:
            unbounded[provider] = str(error)
    return unbounded


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A part of a chain that names agents, LLM providers or MCP servers."""

    path: tuple[int | str, ...]
    """The part's path in the chain's spec."""
    location: str
    """The part's name in messages."""
    resolve_agent: Callable[[], resolve.ResolvedAgent | None]
    """Return the agent that would run, or None if none would. Raise UnresolvedError for an unknown name."""
    is_derived: bool = False
    """Whether the agent works on the results of the stages' agents: synthesis, summary, chat."""


def references(chain: chains.AgentChain, platform: platforms.Platform) -> Iterator[Reference]:
    """Yield the references of a chain, those of the stages' agents first.

    A summary and a chat that are on by default are not checked: the chain takes alerts without them.
    """
    name, spec = chain.metadata.name, chain.spec
    for index, agent in enumerate(spec.agents or ()):
        check = functools.partial(resolve.check_agent, agent, platform, chain_name=name)
        yield Reference(path=("agents", index), location=resolve.location(name), resolve_agent=check)
    for number, stage in enumerate(spec.stages):
        for index, member in enumerate(stage.members):
            yield Reference(
                path=("stages", number, "agents", index) if stage.agents else ("stages", number),
                location=resolve.location(name, stage=stage.name),
                resolve_agent=functools.partial(
                    resolve.agent_for, platform, chain_name=name, chain=spec, stage=stage, member=member
                ),
            )
    derived = functools.partial(_derived, chain, platform)
    resolver: Callable[..., resolve.ResolvedAgent | None] | None
    for number, stage in enumerate(spec.stages):
        resolver = functools.partial(resolve.synthesis_for, stage=stage) if len(stage.members) > 1 else None
        yield derived(("stages", number, "synthesis"), stage.synthesis, resolver, stage=stage.name)
    if spec.executive_summary:
        resolver = resolve.summary_for if spec.is_summarised else None
        yield derived(("executiveSummary",), spec.executive_summary, resolver)
    if spec.chat:
        yield derived(("chat",), spec.chat, resolve.chat_for if spec.takes_questions else None)


def _derived(
    chain: chains.AgentChain,
    platform: platforms.Platform,
    path: tuple[int | str, ...],
    block: chains.Synthesis | chains.ExecutiveSummary | chains.Chat | None,
    resolver: Callable[..., resolve.ResolvedAgent | None] | None,
    *,
    stage: str = "",
) -> Reference:
    """Return the reference of a block. Without a `resolver` the block is not in use, and only its names are checked."""
    name = chain.metadata.name
    location = resolve.location(name, stage=stage, block=str(path[-1]))
    resolve_agent: Callable[[], resolve.ResolvedAgent | None]
    if resolver:
        resolve_agent = functools.partial(resolver, platform, chain_name=name, chain=chain.spec)
    else:
        resolve_agent = functools.partial(resolve.check_unused, block, platform, chain=chain.spec, where=location)
    return Reference(path=path, location=location, resolve_agent=resolve_agent, is_derived=True)


class Indexer(Protocol):
    """Builds an index of chains for the platform file of this process."""

    def __call__(
        self,
        listed: Iterable[chains.AgentChain],
        /,
        *,
        unusable_providers: Mapping[str, str],
        namespace: str,
        own: str,
    ) -> ChainIndex:
        """Return the index of `listed`; see `ChainIndex` for the parameters."""
        ...


def _precedence(chain: chains.AgentChain) -> tuple[str, int, str, str]:
    """Return the key by which chains are sorted that name one alert type: age, former acceptance, name.

    Of two chains of one second, the one that has the type keeps it: timestamps have seconds, so the order of names
    alone could give the type to a chain that was applied a moment later. Source: Gateway API, "Conflicts".
    """
    metadata = chain.metadata
    return metadata.creation_timestamp or "", _newness(chain), metadata.namespace, metadata.name


def _newness(chain: chains.AgentChain) -> int:
    """Return 0 if accepted, 1 if accepted before its last change, which may have added the type, 2 if not accepted."""
    conditions = chain.status.conditions if chain.status else []
    accepted = next(
        (condition for condition in conditions if condition.type == "Accepted" and condition.status == "True"), None
    )
    if accepted is None:
        return 2
    return 0 if accepted.observed_generation == chain.metadata.generation else 1


def conflict_of(alert_type: str, *, owner: str) -> Problem:
    """Return the problem of a chain that names an alert type of another one, the `owner`."""
    return Problem(
        reason="AlertTypeConflict",
        message=(
            f"Alert type '{alert_type}' conflict: chain '{owner}' has it; an alert type belongs to one "
            "chain of a namespace, the oldest"
        ),
    )

"""The chains of a namespace: which take which alert types, and whether what they name is there and can be used.

Pure, so that the conditions on a chain, the refusal of an investigation and the answer to a webhook can never differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from tarsy.config import resolve
from tarsy.config.model import platforms, tool_filters
from tarsy.config.tool_selection import grants, ineffective
from tarsy.resources import chains, investigations

NOT_OFFERED = "ToolsNotOffered"
"""The reason if agents are not offered all tools of their servers: that is normal."""
PATTERN = "PatternInvalid"
"""A pattern of a chain can match no tool: what its author means to deny would stay open."""
SELECTION = "MCPSelectionInvalid"
"""Why an investigation is refused that names servers or tools that its agents cannot have."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A problem: a CamelCase reason for conditions, and a message that names the place and the alternatives."""

    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class ChainStatus:
    """The status of one chain; None is good."""

    acceptance: Problem | None
    references: Problem | None
    warning: Problem | None = None
    """The things it can do without: unusable fallback providers, patterns that match no tool, tools not offered."""
    servers: tuple[str, ...] = ()
    """The MCP servers that its agents have, by their names in alphabetical order."""
    providers: tuple[str, ...] = ()
    """The LLM providers that it asks first (no fallbacks), in alphabetical order."""

    @property
    def problem(self) -> Problem | None:
        """Why the chain is not ready."""
        return self.acceptance or self.references


class UnservedError(Exception):
    """No chain can serve an investigation."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class ChainIndex:
    """All chains of one namespace, checked once against the platform of this process."""

    def __init__(
        self,
        listed: Iterable[chains.AgentChain],
        *,
        platform: platforms.Platform,
        unusable_providers: Mapping[str, str],
    ) -> None:
        """`unusable_providers` are those that no worker can use, with why (`workers.Workers.unusable`)."""
        self._platform = platform
        self._unusable_providers = unusable_providers
        self._chains = sorted(listed, key=_precedence)
        self._takers: dict[str, chains.AgentChain] = {}
        self.statuses: dict[str, ChainStatus] = {}
        """By the chains' uids."""
        for chain in self._chains:
            conflict = next((name for name in chain.spec.alert_types if name in self._takers), None)
            acceptance = None if conflict is None else conflict_of(conflict, owner=self._takers[conflict].metadata.name)
            if acceptance is None:
                self._takers |= dict.fromkeys(chain.spec.alert_types, chain)
            self.statuses[chain.metadata.uid] = replace(self._references(chain), acceptance=acceptance)

    @property
    def claims(self) -> Mapping[str, chains.AgentChain]:
        """Each alert type that a chain names, with the chain that takes it, or that would if it were accepted."""
        named = {name: chain for chain in reversed(self._chains) for name in chain.spec.alert_types}
        return named | self._takers

    def taking(self, alert_type: str) -> chains.AgentChain:
        """The one accepted chain that takes `alert_type`, if it is ready; an UnservedError says why there is none."""
        if alert_type not in self._takers:
            raise self._not_found(alert_type)
        return self._ready(self._takers[alert_type])

    def _not_found(self, alert_type: str) -> UnservedError:
        types = ", ".join(sorted(self._takers)) or "none"
        message = f"No chain found for alert type '{alert_type}'. Available alert types: {types}"
        if rejected := next((chain for chain in self._chains if alert_type in chain.spec.alert_types), None):
            why = self.statuses[rejected.metadata.uid].problem
            message += f". Chain '{rejected.metadata.name}' has it and is not accepted: {why.message if why else ''}"
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
        """Whether an accepted chain, ready or not, takes alerts of a type: as its own, or as the `default` type."""
        return alert_type in self._takers or default in self._takers

    def named(self, name: str) -> chains.AgentChain:
        """The chain of that name, if it is ready; an UnservedError says why it cannot be had."""
        candidates = {chain.metadata.name: chain for chain in self._chains}
        if name not in candidates:
            message = f"No chain is named '{name}'. Available chains: {', '.join(sorted(candidates)) or 'none'}"
            raise UnservedError(Problem(reason="ChainNotFound", message=message))
        return self._ready(candidates[name])

    def check_selection(
        self, chain: chains.AgentChain, mcp: investigations.MCP | None, catalogue: tool_filters.Catalogue
    ) -> None:
        """Raise an UnservedError if an alert of this chain names what its agents cannot have, with what there is.

        Of servers that are not in `catalogue` every tool may be there.
        """
        name, spec = chain.metadata.name, chain.spec
        if mcp and (why := grants.problem_of(mcp, self._platform, catalogue, chain_name=name, chain=spec)):
            raise UnservedError(Problem(reason=SELECTION, message=why))

    def status(self, chain: chains.AgentChain, catalogue: tool_filters.Catalogue) -> ChainStatus:
        """Return the status of one of these chains, with tools that its agents lack, and patterns without a match."""
        own_status = self.statuses[chain.metadata.uid]
        if own_status.references:
            return own_status
        agents = grants.agents(self._platform, chain_name=chain.metadata.name, chain=chain.spec)
        warnings = [own_status.warning] if own_status.warning else []
        unfit = ineffective.unfit_in_chain(self._platform, catalogue, chain_name=chain.metadata.name, chain=chain.spec)
        warnings += [Problem(reason="PatternsMatchNothing", message=warning_text) for warning_text in unfit]
        if warning_text := grants.not_offered(self._platform, catalogue, agents):
            warnings.append(Problem(reason=NOT_OFFERED, message=warning_text))
        return replace(own_status, warning=_joined(warnings))

    def _ready(self, chain: chains.AgentChain) -> chains.AgentChain:
        if problem := self.statuses[chain.metadata.uid].problem:
            message = f"Chain '{chain.metadata.name}' is not ready: {problem.message}"
            raise UnservedError(Problem(reason="ChainNotReady", message=message))
        return chain

    def _references(self, chain: chains.AgentChain) -> ChainStatus:
        """The status of the chain by what it names, as if its alert types were its own."""
        problems = [Problem(reason=PATTERN, message=why) for why in ineffective.misfits(chain.spec)]
        unusable: set[str] = set()
        lacks: dict[str, Problem] = {}
        servers: set[str] = set()
        providers: set[str] = set()
        for use in uses(chain, self._platform):
            try:
                agent = use.settle()
            except resolve.UnresolvedError as error:
                problems.append(Problem(reason="ReferenceNotFound", message=str(error)))
                continue
            if agent:
                providers.add(agent.provider)
            if agent and agent.strategy not in resolve.WITHOUT_TOOLS:
                servers.update(agent.servers)
            why = self._unusable_providers.get(agent.provider) if agent else None
            # A key that is missing is told where the stages miss it: who else would miss it is of no help then.
            if agent and why is not None and not (use.follows and agent.provider in unusable):
                unusable.add(agent.provider)
                message = f"{use.where}: LLM provider '{agent.provider}' cannot be used: {why}"
                problems.append(Problem(reason="ProviderUnusable", message=message))
            for name in (fallback.provider for fallback in (agent.fallbacks if agent else ())):
                if why := self._unusable_providers.get(name):
                    message = f"{use.where}: fallback LLM provider '{name}' cannot be used: {why}"
                    lacks.setdefault(name, Problem(reason="FallbackUnusable", message=message))
        return ChainStatus(
            acceptance=None,
            references=_joined(problems),
            warning=_joined(list(lacks.values())),
            servers=tuple(sorted(servers)),
            providers=tuple(sorted(providers)),
        )


def _joined(problems: Sequence[Problem]) -> Problem | None:
    """Several as one, each said once; None where there are none."""
    if not problems:
        return None
    messages = dict.fromkeys(problem.message for problem in problems)
    return Problem(reason=problems[0].reason, message="; ".join(messages))


@dataclass(frozen=True, kw_only=True)
class Use:
    """A place of a chain that names what must be there."""

    at: tuple[int | str, ...]
    """That place in the chain's spec."""
    where: str
    """The same, as messages say it."""
    settle: Callable[[], resolve.ResolvedAgent | None]
    """Return the settings that would run, or None for nothing. Raises UnresolvedError for an unknown name."""
    follows: bool = False
    """Whether it works on what agents of stages have found: synthesis, summary, chat."""


def uses(chain: chains.AgentChain, platform: platforms.Platform) -> Iterator[Use]:
    """All places, those of the stages' agents in front."""
    name, spec = chain.metadata.name, chain.spec
    for index, own in enumerate(spec.agents or ()):
        check = functools.partial(resolve.check_agent, own, platform, chain_name=name)
        yield Use(at=("agents", index), where=resolve.place(name), settle=check)
    agent_for = functools.partial(resolve.agent_for, platform, chain_name=name, chain=spec)
    for number, stage in enumerate(spec.stages):
        for index, member in enumerate(stage.members):
            settle = functools.partial(agent_for, stage=stage, member=member)
            at = ("stages", number, "agents", index) if stage.agents else ("stages", number)
            yield Use(at=at, where=resolve.place(name, stage=stage.name), settle=settle)
    yield from _following(chain, platform)


_Block: TypeAlias = chains.Synthesis | chains.ExecutiveSummary | chains.Chat | None


def _following(chain: chains.AgentChain, platform: platforms.Platform) -> Iterator[Use]:
    """Yield the uses after the agents' work. A summary and a chat by default keep no alert from the chain."""
    name, spec = chain.metadata.name, chain.spec
    places: list[tuple[tuple[int | str, ...], str, _Block, Callable[..., resolve.ResolvedAgent] | None]] = [
        (
            ("stages", number, "synthesis"),
            resolve.place(name, stage=stage.name, block="synthesis"),
            stage.synthesis,
            functools.partial(resolve.synthesis_for, stage=stage) if len(stage.members) > 1 else None,
        )
        for number, stage in enumerate(spec.stages)
    ]
    if spec.executive_summary:
        summary = resolve.summary_for if spec.is_summarised else None
        places.append(
            (("executiveSummary",), resolve.place(name, block="executiveSummary"), spec.executive_summary, summary)
        )
    if spec.chat:
        chat = resolve.chat_for if spec.takes_questions else None
        places.append((("chat",), resolve.place(name, block="chat"), spec.chat, chat))
    for at, where, block, used in places:
        settle: Callable[[], resolve.ResolvedAgent | None]
        if used is None:
            settle = functools.partial(resolve.check_unused, block, platform, chain=spec, where=where)
        else:
            settle = functools.partial(used, platform, chain_name=name, chain=spec)
        yield Use(at=at, where=where, settle=settle, follows=True)


class Indexer(Protocol):
    """Makes an index of chains, for the platform of this process."""

    def __call__(self, listed: Iterable[chains.AgentChain], /, *, unusable_providers: Mapping[str, str]) -> ChainIndex:
        """Return the index of `known`; see `ChainIndex` for `unusable_providers`."""
        ...


def _precedence(chain: chains.AgentChain) -> tuple[str, int, str, str]:
    """Return the sort key of claimants: age, former acceptance, name.

    Within one second, the chain that has the type keeps it: the API server counts in seconds, so the order of names
    alone would hand it to a chain that was applied a moment later. Source: Gateway API, "Conflicts".
    """
    metadata = chain.metadata
    return metadata.creation_timestamp or "", _newness(chain), metadata.namespace, metadata.name


def _newness(chain: chains.AgentChain) -> int:
    """0 accepted as it stands, 1 accepted before its last change (which may be what added the type), 2 not accepted."""
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

"""Judges chains: which are accepted, and whether what they name is there and can be used.

Pure, so that the conditions on a chain, the refusal of an investigation and the answer to a webhook can never differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tarsy.config import platform as platforms
from tarsy.config import resolve
from tarsy.resources import chain as chains


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is wrong: a CamelCase reason for conditions, and a message that names the place and what there is."""

    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What is to be said of one chain; None is good."""

    acceptance: Problem | None
    references: Problem | None

    @property
    def problem(self) -> Problem | None:
        """Why the chain is not ready."""
        return self.acceptance or self.references


class UnservedError(Exception):
    """No chain can serve an alert type."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Judges chains against the platform of this process."""

    platform: platforms.Platform
    unusable_providers: Mapping[str, str]
    """Providers of the platform file that cannot be used, and why."""

    def judge(self, known: Iterable[chains.AgentChain]) -> dict[str, Judgement]:
        """A judgement for each chain, by uid; `known` are all chains of one namespace."""
        owners: dict[str, chains.AgentChain] = {}
        judgements = {}
        for chain in sorted(known, key=_age):
            conflict = next((name for name in chain.spec.alert_types if name in owners), None)
            if conflict is None:
                owners |= dict.fromkeys(chain.spec.alert_types, chain)
            judgements[chain.metadata.uid] = Judgement(
                acceptance=None if conflict is None else _conflict(conflict, owners[conflict]),
                references=self._references(chain),
            )
        return judgements

    def chain_for(self, alert_type: str, known: Iterable[chains.AgentChain]) -> chains.AgentChain:
        """The one accepted chain that takes `alert_type`, if it is ready; an UnservedError says why there is none."""
        candidates = list(known)
        judgements = self.judge(candidates)
        accepted = [chain for chain in candidates if judgements[chain.metadata.uid].acceptance is None]
        taker = next((chain for chain in accepted if alert_type in chain.spec.alert_types), None)
        if taker is None:
            types = sorted({name for chain in accepted for name in chain.spec.alert_types})
            message = (
                f"No chain found for alert type '{alert_type}'. Available alert types: {', '.join(types) or 'none'}"
            )
            if rejected := next((chain for chain in candidates if alert_type in chain.spec.alert_types), None):
                why = judgements[rejected.metadata.uid].problem
                message += (
                    f". Chain '{rejected.metadata.name}' has it and is not accepted: {why.message if why else ''}"
                )
            raise UnservedError(Problem(reason="ChainNotFound", message=message))
        return _ready(taker, judgements)

    def chain_named(self, name: str, known: Iterable[chains.AgentChain]) -> chains.AgentChain:
        """The chain of that name, if it is ready; an UnservedError says why it cannot be had."""
        candidates = {chain.metadata.name: chain for chain in known}
        if name not in candidates:
            message = f"No chain is named '{name}'. Available chains: {', '.join(sorted(candidates)) or 'none'}"
            raise UnservedError(Problem(reason="ChainNotFound", message=message))
        return _ready(candidates[name], self.judge(candidates.values()))

    def _references(self, chain: chains.AgentChain) -> Problem | None:
        problems = []
        for own in chain.spec.agents or ():
            try:
                resolve.check_agent(own, self.platform, chain_name=chain.metadata.name)
            except resolve.UnresolvedError as error:
                problems.append(Problem(reason="ReferenceNotFound", message=str(error)))
        for stage in chain.spec.stages:
            try:
                agent = resolve.agent_for(self.platform, chain_name=chain.metadata.name, chain=chain.spec, stage=stage)
            except resolve.UnresolvedError as error:
                problems.append(Problem(reason="ReferenceNotFound", message=str(error)))
                continue
            if why := self.unusable_providers.get(agent.provider):
                where = f"Chain '{chain.metadata.name}' stage '{stage.name}'"
                message = f"{where}: LLM provider '{agent.provider}' cannot be used: {why}"
                problems.append(Problem(reason="ProviderUnusable", message=message))
        if not problems:
            return None
        messages = dict.fromkeys(problem.message for problem in problems)
        return Problem(reason=problems[0].reason, message="; ".join(messages))


def _ready(chain: chains.AgentChain, judgements: Mapping[str, Judgement]) -> chains.AgentChain:
    if problem := judgements[chain.metadata.uid].problem:
        message = f"Chain '{chain.metadata.name}' is not ready: {problem.message}"
        raise UnservedError(Problem(reason="ChainNotReady", message=message))
    return chain


def _age(chain: chains.AgentChain) -> tuple[str, str]:
    return chain.metadata.creation_timestamp or "", chain.metadata.uid


def _conflict(alert_type: str, owner: chains.AgentChain) -> Problem:
    return Problem(
        reason="AlertTypeConflict",
        message=(
            f"Alert type '{alert_type}' conflict: chain '{owner.metadata.name}' has it; an alert type belongs to one "
            "chain of a namespace, the oldest"
        ),
    )

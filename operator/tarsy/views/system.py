"""The state of TARSy's parts over all processes: providers, chains, queue, configurations, warnings.

Built from what each process reports of itself (`store.fleet.catalogue`), which was masked before it was stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from tarsy.config.check import chain_index
from tarsy.config.model import platforms
from tarsy.resources import chains
from tarsy.store.fleet import catalogue
from tarsy.store.reads import queue_counts
from tarsy.telemetry import component_states
from tarsy.views import base, system_warnings

ITEMS_MAX = 1000
"""The items of one answer at most; `total` counts all."""


class ProcessState(BaseModel):
    """The state of something in one process."""

    process: UUID
    host: str
    """The machine, or the pod, that it runs on."""
    state: str
    since: datetime


class ProviderPlace(ProcessState):
    """The state of a provider in one worker."""

    problem: str
    """The reason why it could not be used when the process started, or ""."""
    failure: str | None
    """timeout, rejected or fatal, if the last call failed."""
    failure_code: str | None
    """The provider's name for the failure, such as an HTTP status; "" if it has none."""


class Price(BaseModel):
    """The price of a million tokens."""

    input: float
    output: float


class ProviderLimits(BaseModel):
    """The limits for all processes together; null: no limit."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    context_tokens: int | None
    """The tokens of one request at most."""


class Provider(BaseModel):
    """An LLM provider of the platform file."""

    name: str
    type: str
    model: str
    base_url: str | None
    """The URL of the server; null is the provider's own."""
    state: Literal["answering", "usable", "failing", "unusable"]
    """The worst of its processes' states; usable: not called yet."""
    since: datetime
    price: Price | None
    limits: ProviderLimits
    named: bool
    """Whether an agent refers to it, or the platform file has it: the built-in providers are listed in any case."""
    processes: list[ProviderPlace]


class AlertType(BaseModel):
    """An alert type, and the chain that takes it."""

    alert_type: str
    chain_name: str
    ready: bool
    reason: str
    """The reason why its alerts cannot be investigated now, in a word, or ""."""
    message: str


class Condition(BaseModel):
    """A condition of a chain's status."""

    type: str
    status: str
    reason: str
    message: str
    last_transition_time: datetime


class Stage(BaseModel):
    """A stage of a chain."""

    name: str
    agents: list[str]


class Chain(BaseModel):
    """A chain of a served namespace."""

    name: str
    namespace: str
    alert_types: list[str]
    conditions: list[Condition]
    stages: list[Stage]
    generation: int
    hash: str


class QueueProcess(BaseModel):
    """A worker, and the number of its runs."""

    process: UUID
    host: str
    """The host; "" of a process that no longer reports, but whose leases have not expired yet."""
    running: int
    slots: int


class Queue(BaseModel):
    """The queue of investigations, and of questions about them."""

    queued: int
    """The number that wait for a worker."""
    running: int
    cancelling: int
    """The running ones that are being stopped."""
    suspended: int
    waiting_for_version: int
    """The number whose log no worker could read so far."""
    parked: int
    """The number that wait for something outside."""
    oldest_wait_seconds: float | None
    slots: int
    """The slots of all workers together."""
    max_running: int
    """The number that all processes may run at once; 0: no limit but their slots."""
    max_queued: int
    processes: list[QueueProcess]


class ConfigurationPlace(BaseModel):
    """A process that has a configuration."""

    process: UUID
    host: str
    since: datetime


class Configuration(BaseModel):
    """A platform file, as it is written; values that may be secret are `[MASKED]`."""

    digest: str
    """Changes with the redacted file."""
    processes: list[ConfigurationPlace]
    written: dict[str, Any]
    """The redacted file; empty: nothing but the built-in settings."""


Total = Annotated[int, Field(description="The number of all items; the answer may have fewer.")]


class AlertTypes(BaseModel):
    """The alert types, sorted."""

    items: list[AlertType]
    total: Total


class Providers(BaseModel):
    """The LLM providers of all workers, by name."""

    items: list[Provider]
    total: Total


class Chains(BaseModel):
    """The chains, by name."""

    items: list[Chain]
    total: Total
    unchecked_namespaces: list[base.UncheckedNamespace]
    """The namespaces whose chains are left out, because they cannot be read now."""


class Configurations(BaseModel):
    """The configurations: during a rollout there are two."""

    items: list[Configuration]
    total: Total


class Warnings(BaseModel):
    """The warnings, by kind and name; an empty list is good."""

    items: list[system_warnings.Warning]
    total: Total


def alert_types(index: chain_index.ChainIndex) -> AlertTypes:
    """Return the alert types that chains take."""
    items = [_alert_type(name, chain, index) for name, chain in sorted(index.chains_by_alert_type.items())]
    return AlertTypes(items=items[:ITEMS_MAX], total=len(items))


def _alert_type(name: str, chain: chains.AgentChain, index: chain_index.ChainIndex) -> AlertType:
    problem = index.statuses[chain.metadata.uid].problem
    return AlertType(
        alert_type=name,
        chain_name=chain.metadata.name,
        ready=problem is None,
        reason=problem.reason if problem else "",
        message=problem.message[: system_warnings.MESSAGE_MAX] if problem else "",
    )


def all_chains(listed_chains: Iterable[chains.AgentChain], *, unchecked: Mapping[str, str]) -> Chains:
    """Return the chains, without those of `unchecked` namespaces, which could not be read for these reasons."""
    in_order = sorted(listed_chains, key=lambda chain: (chain.metadata.name, chain.metadata.namespace))
    return Chains(
        items=[_chain(chain) for chain in in_order[:ITEMS_MAX]],
        total=len(in_order),
        unchecked_namespaces=base.unchecked_namespaces(unchecked),
    )


def _chain(chain: chains.AgentChain) -> Chain:
    conditions: Iterable[Any] = chain.status.conditions if chain.status else ()
    return Chain(
        name=chain.metadata.name,
        namespace=chain.metadata.namespace,
        alert_types=sorted(chain.spec.alert_types),
        conditions=[
            Condition(
                type=condition.type,
                status=condition.status,
                reason=condition.reason,
                message=condition.message,
                last_transition_time=condition.last_transition_time,
            )
            for condition in conditions
        ],
        stages=[Stage(name=stage.name, agents=stage.shown_names) for stage in chain.spec.stages],
        generation=chain.metadata.generation,
        hash=chain.digest(),
    )


def providers(facts: Sequence[catalogue.AnyReport]) -> Providers:
    """Return the LLM providers of all processes."""
    items = [_provider(name, places) for name, places in by_name(facts)]
    return Providers(items=items[:ITEMS_MAX], total=len(items))


def _provider(name: str, facts: Sequence[catalogue.AnyReport]) -> Provider:
    worst = system_warnings.worst(facts)
    newest = max(facts, key=lambda fact: fact.since).detail
    places = [
        ProviderPlace(
            **process_state(fact),
            problem=fact.detail.problem,
            failure=fact.detail.failure and fact.detail.failure.kind,
            failure_code=fact.detail.failure and fact.detail.failure.code,
        )
        for fact in facts
    ]
    settings = {
        key: component_states.encode(newest)[key] for key in ("type", "model", "base_url", "price", "limits", "named")
    }
    return Provider.model_validate(
        {"name": name, **settings, "state": worst.state, "since": worst.since, "processes": places}
    )


def queue(now: queue_counts.QueueCounts, facts: Iterable[catalogue.AnyReport], limits: platforms.Queue) -> Queue:
    """Return the queue; `facts` are those of processes."""
    by_process = {fact.process: fact for fact in facts}
    workers = [process for process, fact in by_process.items() if fact.detail.slots]
    lost = [process for process in now.running_by_process if process not in workers]
    processes = [
        QueueProcess(
            process=process,
            host=by_process[process].name if process in by_process else "",
            running=now.running_by_process.get(process, 0),
            slots=by_process[process].detail.slots if process in by_process else 0,
        )
        for process in (*workers, *lost)
    ]
    return Queue(
        queued=now.queued,
        running=now.running,
        cancelling=now.cancelling,
        suspended=now.suspended,
        waiting_for_version=now.waiting_for_version,
        parked=now.parked,
        oldest_wait_seconds=now.oldest_wait,
        slots=sum(process.slots for process in processes),
        max_running=limits.max_running,
        max_queued=limits.max_queued,
        processes=processes[:ITEMS_MAX],
    )


def configurations(facts: Iterable[catalogue.AnyReport]) -> Configurations:
    """Return the configurations of all processes, those of most processes first."""
    by_digest: dict[str, list[catalogue.AnyReport]] = {}
    for fact in facts:
        by_digest.setdefault(fact.state, []).append(fact)
    items = [
        Configuration(
            digest=digest,
            processes=[ConfigurationPlace(process=fact.process, host=fact.host, since=fact.since) for fact in places],
            written=places[0].detail.written,
        )
        for digest, places in sorted(by_digest.items(), key=lambda group: (-len(group[1]), group[0]))
    ]
    return Configurations(items=items[:ITEMS_MAX], total=len(items))


def warnings(all_warnings: Iterable[system_warnings.Warning]) -> Warnings:
    """Return warnings, sorted."""
    items = sorted(all_warnings, key=lambda warning: (warning.kind, warning.name, warning.message))
    return Warnings(items=items[:ITEMS_MAX], total=len(items))


def by_name(facts: Iterable[catalogue.AnyReport]) -> Iterator[tuple[str, list[catalogue.AnyReport]]]:
    """Group the facts of all processes, which are sorted by name."""
    for name, group in itertools.groupby(facts, key=lambda fact: fact.name):
        yield name, list(group)


def process_state(fact: catalogue.AnyReport) -> dict[str, Any]:
    """Return the fields of every `ProcessState`."""
    return {"process": fact.process, "host": fact.host, "state": fact.state, "since": fact.since}

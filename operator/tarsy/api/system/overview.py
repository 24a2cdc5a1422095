"""How TARSy is set up, and how its parts stand: of all processes, as they say it themselves (`store.fleet.catalogue`).

Nothing here is kept by this process. What is told has been masked before it was stored.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from tarsy import errors
from tarsy.auth import permissions
from tarsy.config.check import chain_index
from tarsy.config.model import platforms
from tarsy.kube import client, objects
from tarsy.resources import chains
from tarsy.serve import problems, strict
from tarsy.store.base import databases
from tarsy.store.fleet import catalogue
from tarsy.store.intake import unserved
from tarsy.store.reads import backlog
from tarsy.telemetry import details
from tarsy.views import system_warnings

ITEMS_MAX = 1000
"""Items that are told, of whatever there is; `total` says how many there are."""
T = TypeVar("T")


class Place(BaseModel):
    """A process in which something is so."""

    process: UUID
    host: str
    """The machine, or the pod, that it runs on."""
    state: str
    since: datetime


class ProviderPlace(Place):
    """A provider as one worker sees it."""

    problem: str
    """Why it could not be used when the process started, or ""."""
    failure: str | None
    """timeout, rejected or fatal, where the last call failed."""
    failure_code: str | None
    """The provider's name for the failure, such as an HTTP status; "" if it has none."""


class Price(BaseModel):
    """For a million tokens."""

    input: float
    output: float


class ProviderLimits(BaseModel):
    """The limits for all processes together; null: no limit."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    context_tokens: int | None
    """Tokens that one request may have."""


class Provider(BaseModel):
    """An LLM provider of the platform file."""

    name: str
    type: str
    model: str
    base_url: str | None
    """Null is the provider's own."""
    state: Literal["answering", "usable", "failing", "unusable"]
    """The worst of its processes' states: usable is one that has not been asked yet."""
    since: datetime
    price: Price | None
    limits: ProviderLimits
    named: bool
    """Whether anything refers to it, or the platform file has it: the built-in ones are there in any case."""
    processes: list[ProviderPlace]


class AlertType(BaseModel):
    """An alert type, and the chain that takes it."""

    alert_type: str
    chain_name: str
    ready: bool
    reason: str
    """Why its alerts cannot be investigated now, in a word, or ""."""
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
    """A chain of the operator's namespace."""

    name: str
    namespace: str
    alert_types: list[str]
    conditions: list[Condition]
    stages: list[Stage]
    generation: int
    hash: str


class QueueProcess(BaseModel):
    """A worker, and what it runs."""

    process: UUID
    host: str
    """"" for one that is not seen any longer, and whose leases have not passed yet."""
    running: int
    slots: int


class Queue(BaseModel):
    """The queue; questions about investigations wait and run there, too."""

    queued: int
    """That wait for a worker."""
    running: int
    cancelling: int
    """The running ones that are being stopped."""
    suspended: int
    waiting_for_version: int
    """The ones whose log no worker could read so far."""
    oldest_wait_seconds: float | None
    slots: int
    """The slots of all workers together."""
    max_running: int
    """That all processes may run at once; 0 is no limit but their slots."""
    max_queued: int
    processes: list[QueueProcess]


class ConfigurationPlace(BaseModel):
    """A process that has a configuration."""

    process: UUID
    host: str
    since: datetime


class Configuration(BaseModel):
    """A platform file, as it is written; what may be secret is `[MASKED]`."""

    digest: str
    """Changes with what is shown."""
    processes: list[ConfigurationPlace]
    written: dict[str, Any]
    """Empty: nothing but what is built in."""


class Warning(BaseModel):  # noqa: A001 - the path's own word
    """A warning."""

    kind: system_warnings.Kind
    name: str
    message: str
    since: datetime | None
    """The beginning; null if it is unknown."""


Total = Annotated[int, Field(description="How many there are; the items may be fewer.")]


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


class Configurations(BaseModel):
    """The configurations: while an update rolls out, there are two."""

    items: list[Configuration]
    total: Total


class Warnings(BaseModel):
    """The warnings, by kind and name; empty is good."""

    items: list[Warning]
    total: Total


class System:
    """Answers what is asked about TARSy itself."""

    def __init__(
        self,
        *,
        cluster: client.Cluster,
        database: databases.Database,
        platform: platforms.Platform,
        index: chain_index.Indexer,
        ingest: Callable[[], platforms.Ingest],
    ) -> None:
        """`ingest` is what is in force of the platform file's section of that name."""
        self._ingest = ingest
        self._cluster = cluster
        self._database = database
        self._queue = platform.queue
        self._index = index

    async def alert_types(self) -> AlertTypes:
        """The alert types of all chains."""
        listed_chains = await self._chains()
        workers = await catalogue.workers(self._database)
        index = self._index(listed_chains, unusable_providers=workers.unusable)
        types = [_alert_type(name, chain, index) for name, chain in sorted(index.claims.items())]
        return AlertTypes(items=types[:ITEMS_MAX], total=len(types))

    async def providers(self) -> Providers:
        """The LLM providers of all processes."""
        items = [_provider(name, places) for name, places in by_name(await catalogue.read(self._database, "provider"))]
        return Providers(items=items[:ITEMS_MAX], total=len(items))

    async def all_chains(self) -> Chains:
        """The chains of the operator's namespace."""
        listed_chains = sorted(await self._chains(), key=lambda chain: chain.metadata.name)
        return Chains(
            items=[_chain(listed_chain) for listed_chain in listed_chains[:ITEMS_MAX]], total=len(listed_chains)
        )

    async def queue(self) -> Queue:
        """The queue, and who runs what is in it."""
        now = await backlog.count(self._database)
        hosts = {fact.process: fact for fact in await catalogue.read(self._database, "process")}
        workers = [process for process, fact in hosts.items() if fact.detail.slots]
        lost = [process for process in now.running_by_process if process not in workers]
        places = [
            QueueProcess(
                process=process,
                host=hosts[process].name if process in hosts else "",
                running=now.running_by_process.get(process, 0),
                slots=hosts[process].detail.slots if process in hosts else 0,
            )
            for process in (*workers, *lost)
        ]
        return Queue(
            queued=now.queued,
            running=now.running,
            cancelling=now.cancelling,
            suspended=now.suspended,
            waiting_for_version=now.waiting_for_version,
            oldest_wait_seconds=now.oldest_wait,
            slots=sum(worker.slots for worker in places),
            max_running=self._queue.max_running,
            max_queued=self._queue.max_queued,
            processes=places[:ITEMS_MAX],
        )

    async def configurations(self) -> Configurations:
        """The configurations of all processes, those of most processes first."""
        by_digest: dict[str, list[catalogue.Said]] = {}
        for fact in await catalogue.read(self._database, "configuration"):
            by_digest.setdefault(fact.state, []).append(fact)
        items = [
            Configuration(
                digest=digest,
                processes=[
                    ConfigurationPlace(process=fact.process, host=fact.host, since=fact.since) for fact in places
                ],
                written=places[0].detail.written,
            )
            for digest, places in sorted(by_digest.items(), key=lambda group: (-len(group[1]), group[0]))
        ]
        return Configurations(items=items[:ITEMS_MAX], total=len(items))

    async def warnings(self) -> Warnings:
        """Return all warnings. The absence of the API server is one of them."""
        facts = await catalogue.read(self._database, "process", "server", "provider", "watch", "configuration")
        unreadable = await backlog.unreadable(self._database, limit=ITEMS_MAX)
        all_warnings = [*system_warnings.of_processes(facts), *system_warnings.of_logs(unreadable)]
        untaken = await unserved.read(self._database)
        try:
            listed = await objects.list_all_chains(self._cluster, namespace=self._cluster.served.own)
            readable = [chain for chain in listed if isinstance(chain, chains.AgentChain)]
            all_warnings += system_warnings.of_chains(readable)
            unread = (warning for warning in listed if isinstance(warning, objects.Unreadable))
            all_warnings += [
                system_warnings.Found(kind="chain", name=warning.metadata.name, message=warning.message)
                for warning in unread
            ]
            index = self._index(readable, unusable_providers={})  # whether a type is taken does not depend on them
            takes = functools.partial(index.takes, default=self._ingest().default_alert_type)
            all_warnings += system_warnings.of_unserved(untaken, is_taken=takes)
        except (errors.TemporaryError, objects.RefusedError) as error:
            all_warnings.append(
                system_warnings.Found(kind="api-server", name=self._cluster.served.own, message=str(error))
            )
        all_warnings.sort(key=lambda warning: (warning.kind, warning.name, warning.message))
        items = [
            Warning(
                kind=warning.kind,
                name=warning.name,
                message=warning.message[: system_warnings.MESSAGE_MAX],
                since=warning.since,
            )
            for warning in all_warnings[:ITEMS_MAX]
        ]
        return Warnings(items=items, total=len(all_warnings))

    async def _chains(self) -> list[chains.AgentChain]:
        return await objects.list_chains(self._cluster, namespace=self._cluster.served.own)


def routes(system: System, may: permissions.Access) -> APIRouter:
    """`GET /api/v1/alert-types` and `/api/v1/system/*`."""
    router = strict.router(prefix="/api/v1", tag="system", dependencies=[Depends(may.oversees)])

    @router.get("/alert-types", operation_id="listAlertTypes")
    async def alert_types() -> AlertTypes:
        """List the alert types, each with the chain that takes it, and whether it can."""
        return await available(system.alert_types)

    @router.get("/system/providers", operation_id="listProviders")
    async def providers() -> Providers:
        """List the LLM providers, and how the last call to each went."""
        return await available(system.providers)

    @router.get("/system/chains", operation_id="listChains")
    async def all_chains() -> Chains:
        """List the chains of the operator's namespace."""
        return await available(system.all_chains)

    @router.get("/system/queue", operation_id="readQueue")
    async def queue() -> Queue:
        """Show what waits, what runs, and where."""
        return await available(system.queue)

    @router.get("/system/config", operation_id="readConfig")
    async def configurations() -> Configurations:
        """Show the platform file as it is written, and which process has which; secrets are masked."""
        return await available(system.configurations)

    @router.get("/system/warnings", operation_id="listWarnings")
    async def all_warnings() -> Warnings:
        """List all warnings."""
        return await available(system.warnings)

    return router


async def available(ask: Callable[[], Awaitable[T]]) -> T:
    """Return the answer of `ask`; raises a Problem if the database or the API server is away."""
    try:
        return await ask()
    except (errors.TemporaryError, objects.RefusedError) as error:
        raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error


def by_name(facts: Sequence[catalogue.Said]) -> Iterator[tuple[str, list[catalogue.Said]]]:
    """Group the facts of all processes by name; they are sorted by it."""
    for name, places in itertools.groupby(facts, key=lambda fact: fact.name):
        yield name, list(places)


def _provider(name: str, places: Sequence[catalogue.Said]) -> Provider:
    worst = system_warnings.worst(places)
    newest = max(places, key=lambda fact: fact.since).detail
    return Provider.model_validate(
        {
            "name": name,
            **fields_of(newest, "type", "model", "base_url", "price", "limits", "named"),
            "state": worst.state,
            "since": worst.since,
            "processes": [
                {**place(fact), **fields_of(fact.detail, "problem"), **_failure(fact.detail)} for fact in places
            ],
        }
    )


def _failure(detail: details.Provider) -> dict[str, Any]:
    failure = detail.failure
    return {"failure": failure and failure.kind, "failure_code": failure and failure.code}


def place(fact: catalogue.Said) -> dict[str, Any]:
    """Return the fields of every `Place`."""
    return {"process": fact.process, "host": fact.host, "state": fact.state, "since": fact.since}


def fields_of(detail: details.Detail, *names: str) -> dict[str, Any]:
    """Return the details with these names."""
    stored = details.encode(detail)
    return {name: stored[name] for name in names}


def _alert_type(name: str, chain: chains.AgentChain, index: chain_index.ChainIndex) -> AlertType:
    problem = index.statuses[chain.metadata.uid].problem
    return AlertType(
        alert_type=name,
        chain_name=chain.metadata.name,
        ready=problem is None,
        reason=problem.reason if problem else "",
        message=problem.message[: system_warnings.MESSAGE_MAX] if problem else "",
    )


def _chain(listed_chain: chains.AgentChain) -> Chain:
    conditions: Iterable[Any] = listed_chain.status.conditions if listed_chain.status else ()
    return Chain(
        name=listed_chain.metadata.name,
        namespace=listed_chain.metadata.namespace,
        alert_types=sorted(listed_chain.spec.alert_types),
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
        stages=[Stage(name=stage.name, agents=stage.shown_names) for stage in listed_chain.spec.stages],
        generation=listed_chain.metadata.generation,
        hash=listed_chain.digest(),
    )

"""The state of TARSy itself: alert types, providers, chains, queue, configurations and warnings, of all processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from fastapi import APIRouter, Depends

from tarsy import errors
from tarsy.auth import permissions
from tarsy.config.check import chain_index
from tarsy.config.model import platforms
from tarsy.kube import client, objects
from tarsy.resources import chains
from tarsy.serve import openapi, strict
from tarsy.store.base import databases
from tarsy.store.fleet import catalogue
from tarsy.store.intake import unserved
from tarsy.store.operations import deliveries
from tarsy.store.reads import queue_counts
from tarsy.views import system, system_warnings


@dataclass(frozen=True, kw_only=True)
class Overview:
    """Reads the state of TARSy from the store and the cluster."""

    cluster: client.Cluster
    database: databases.Database
    platform: Callable[[], platforms.Platform]
    """The platform file in force."""
    index: chain_index.Indexer

    async def alert_types(self) -> system.AlertTypes:
        """Read the alert types of all chains."""
        own = self.cluster.served.own
        listed_chains = await objects.list_chains(self.cluster, namespace=own)
        workers = await catalogue.workers(self.database)
        return system.alert_types(
            self.index(listed_chains, unusable_providers=workers.unusable, namespace=own, own=own)
        )

    async def providers(self) -> system.Providers:
        """Read the LLM providers of all processes."""
        return system.providers(await catalogue.read(self.database, "provider"))

    async def all_chains(self, namespaces: Iterable[str], *, unchecked: Mapping[str, str]) -> system.Chains:
        """Read the chains of these namespaces; one that cannot be read hides no other."""
        listed: list[chains.AgentChain] = []
        problems = dict(unchecked)

        async def read(namespace: str) -> None:
            try:
                listed.extend(await objects.list_chains(self.cluster, namespace=namespace))
            except (errors.TemporaryError, objects.RefusedError) as error:
                problems[namespace] = str(error)

        await asyncio.gather(*map(read, namespaces))
        return system.all_chains(listed, unchecked=problems)

    async def queue(self) -> system.Queue:
        """Read the queue, and the runs of each worker."""
        counts = await queue_counts.count(self.database)
        return system.queue(counts, await catalogue.read(self.database, "process"), self.platform().queue)

    async def configurations(self) -> system.Configurations:
        """Read the configurations of all processes."""
        return system.configurations(await catalogue.read(self.database, "configuration"))

    async def warnings(self, *, listable: Collection[str]) -> system.Warnings:
        """Read all warnings. If the API server cannot be reached, one of them says so.

        Investigations are named only if they are of `listable` namespaces, whose investigations the reader may list.
        """
        facts = await catalogue.read(self.database, "process", "server", "provider", "watch", "configuration")
        unreadable = await queue_counts.unreadable_investigations(
            self.database, namespaces=listable, limit=system.ITEMS_MAX
        )
        warnings = [*system_warnings.process_warnings(facts), *system_warnings.log_warnings(unreadable)]
        if receivers := self.platform().deliveries:
            failing = await deliveries.failing(self.database, list(receivers))
            warnings += system_warnings.receiver_warnings(failing)
        untaken = await unserved.read(self.database)
        namespace = self.cluster.served.own
        try:
            listed = await objects.list_all_chains(self.cluster, namespace=namespace)
        except (errors.TemporaryError, objects.RefusedError) as error:
            return system.warnings([*warnings, system_warnings.warning("api-server", namespace, str(error))])
        readable = [chain for chain in listed if isinstance(chain, chains.AgentChain)]
        warnings += system_warnings.chain_warnings(readable)
        warnings += [
            system_warnings.warning("chain", chain.metadata.name, chain.message)
            for chain in listed
            if isinstance(chain, objects.Unreadable)
        ]
        rules = [rule for receiver in self.platform().deliveries.values() for rule in receiver.rules]
        if any(rule.chains for rule in rules):
            names: dict[str, Collection[str]] = {namespace: {chain.metadata.name for chain in listed}}
            names |= await self._chain_names(other for other in self.cluster.served if other != namespace)
            warnings += system_warnings.rule_warnings(
                self.platform().deliveries, served=self.cluster.served, chain_names=names
            )
        indexes = await self._indexes({row.namespace for row in untaken})
        default = self.platform().ingest.default_alert_type

        def is_taken(row: unserved.Unserved) -> bool:
            index = indexes.get(row.namespace)
            return index is not None and index.takes(row.alert_type, default=default)

        return system.warnings([*warnings, *system_warnings.unserved_warnings(untaken, is_taken=is_taken)])

    async def _chain_names(self, namespaces: Iterable[str]) -> Mapping[str, Collection[str]]:
        """Return the names of the chains of each namespace, without namespaces that cannot be read."""
        names: dict[str, Collection[str]] = {}

        async def read(namespace: str) -> None:
            with contextlib.suppress(errors.TemporaryError, objects.RefusedError):
                listed = await objects.list_all_chains(self.cluster, namespace=namespace, cached=True)
                names[namespace] = {chain.metadata.name for chain in listed}

        await asyncio.gather(*map(read, namespaces))
        return names

    async def _indexes(self, namespaces: Iterable[str]) -> Mapping[str, chain_index.ChainIndex]:
        """Return the chains that each namespace may use, "" for the operator's own; without those that cannot be read.

        Which alert types they take does not depend on providers.
        """
        own, indexes = self.cluster.served.own, {}

        async def read(namespace: str) -> None:
            with contextlib.suppress(errors.TemporaryError, objects.RefusedError):
                listed = await objects.list_usable_chains(self.cluster, namespace=namespace or own, cached=True)
                indexes[namespace] = self.index(listed, unusable_providers={}, namespace=namespace or own, own=own)

        await asyncio.gather(*map(read, namespaces))
        return indexes


def routes(overview: Overview, may: permissions.Access) -> APIRouter:
    """Return the routes `GET /api/v1/alert-types` and `/api/v1/system/*`."""
    router = strict.router(prefix="/api/v1", tag="system", dependencies=[Depends(may.see_setup)])

    @router.get("/alert-types", operation_id="listAlertTypes")
    async def alert_types() -> system.AlertTypes:
        """List the alert types, each with the chain that takes it, and whether the chain is ready."""
        return await overview.alert_types()

    @router.get("/system/providers", operation_id="listProviders")
    async def providers() -> system.Providers:
        """List the LLM providers, and the outcome of the last call to each."""
        return await overview.providers()

    @router.get("/system/chains", operation_id="listChains", responses=openapi.problem_responses(HTTPStatus.NOT_FOUND))
    async def all_chains(scope: permissions.Scope = Depends(may.list_chains_in)) -> system.Chains:
        """List the chains of the served namespaces in which the caller may list chains."""
        return await overview.all_chains(scope.namespaces, unchecked=scope.unchecked)

    @router.get("/system/queue", operation_id="readQueue")
    async def queue() -> system.Queue:
        """Count the waiting and the running investigations, and list the workers."""
        return await overview.queue()

    @router.get("/system/config", operation_id="readConfig")
    async def configurations() -> system.Configurations:
        """Return the platform file as it is written, without secrets, and the processes that have it in force."""
        return await overview.configurations()

    @router.get("/system/warnings", operation_id="listWarnings")
    async def warnings(listable: frozenset[str] = Depends(may.listable)) -> system.Warnings:
        """List all warnings; investigations are named only if the caller may list them."""
        return await overview.warnings(listable=listable)

    return router

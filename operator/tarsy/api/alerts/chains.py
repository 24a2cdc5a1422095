"""The chains as they are when an alert comes in, for many alerts at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextvars import Context
from dataclasses import dataclass

from tarsy.config.check import chain_index
from tarsy.kube import client, objects
from tarsy.store.base import databases
from tarsy.store.fleet import catalogue


@dataclass(frozen=True, kw_only=True)
class Served:
    """The namespace that is served, as it is when an alert comes in."""

    uid: str | None
    """None: it is not there, and nothing can be made in it."""
    index: chain_index.ChainIndex


class Chains:
    """Lists the chains of the operator's namespace; keeps the last index of them, because they seldom change."""

    def __init__(
        self,
        cluster: client.Cluster,
        database: databases.Database,
        *,
        index: chain_index.Indexer,
        generation: Callable[[], int] = lambda: 0,
    ) -> None:
        """`generation` changes with what `index` checks chains by."""
        self._cluster = cluster
        self._database = database
        self._index = index
        self._generation = generation
        self._under_way: asyncio.Task[Served] | None = None
        """The list of the API server's cache that is waited for."""
        self._versions: tuple[object, ...] | None = None
        self._latest: chain_index.ChainIndex | None = None

    async def serving(self, wanted: Collection[str]) -> Served:
        """The namespace with all chains, with those of the `wanted` alert types.

        The API server's cache does where it has a chain for each, and so does a list of it that is under way for
        others. What it lacks may have been made just now.
        """
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self._list(cached=True), context=Context())
        listed = await asyncio.shield(self._under_way)
        try:
            for alert_type in wanted:
                listed.index.taking(alert_type)
        except chain_index.UnservedError:
            return await self._list(cached=False)
        return listed

    async def _list(self, *, cached: bool) -> Served:
        namespace = self._cluster.served.default
        listed, uid, workers = await asyncio.gather(
            objects.list_chains(self._cluster, namespace=namespace, cached=cached),
            objects.namespace_uid(self._cluster, namespace),
            catalogue.workers(self._database),
        )
        unusable = workers.unusable
        versions = (
            self._generation(),
            *sorted(unusable.items()),
            *((chain.metadata.uid, chain.metadata.resource_version) for chain in listed),
        )
        if self._latest is None or self._versions != versions:
            self._latest, self._versions = self._index(listed, unusable_providers=unusable), versions
        return Served(uid=uid, index=self._latest)

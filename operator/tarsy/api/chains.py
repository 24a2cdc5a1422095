"""The chains as they are when an alert comes in, for many alerts at once."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextvars import Context

from tarsy.config import check
from tarsy.kube import client, objects


class Chains:
    """Lists the chains of the operator's namespace; keeps the last index of them, because they seldom change."""

    def __init__(self, cluster: client.Cluster, *, index: check.Indexer) -> None:
        self._cluster = cluster
        self._index = index
        self._under_way: asyncio.Task[check.ChainIndex] | None = None
        """The list of the API server's cache that is waited for."""
        self._versions: tuple[tuple[str, str], ...] | None = None
        self._latest: check.ChainIndex | None = None

    async def serving(self, wanted: Collection[str]) -> check.ChainIndex:
        """All chains, with those of the `wanted` alert types.

        The API server's cache does where it has a chain for each, and so does a list of it that is under way for
        others. What it lacks may have been made just now.
        """
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self._list(cached=True), context=Context())
        known = await asyncio.shield(self._under_way)
        try:
            for alert_type in wanted:
                known.taking(alert_type)
        except check.UnservedError:
            return await self._list(cached=False)
        return known

    async def _list(self, *, cached: bool) -> check.ChainIndex:
        found = await objects.list_chains(self._cluster, namespace=self._cluster.namespace, cached=cached)
        versions = tuple((chain.metadata.uid, chain.metadata.resource_version) for chain in found)
        if self._latest is None or self._versions != versions:
            self._latest, self._versions = self._index(found), versions
        return self._latest

"""Checks the chains of the cluster, writes their statuses (`chain_statuses`) and stores their limits (`turns`).

A chain is checked when it, another chain of its namespace or the platform file changes. It is also checked when the
workers' reports on MCP servers, tools and LLM providers change; those are read every few seconds.

All chains of a namespace are checked together, because the acceptance of one depends on the others. Only the leading
replica checks: two replicas with different platform files would overwrite each other's statuses for ever.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from tarsy import errors
from tarsy.config.check import chain_index, worker_reports
from tarsy.config.model import tool_filters
from tarsy.controller import chain_statuses, unreadable_objects, workqueue
from tarsy.kube import client, objects, watch
from tarsy.resources import base, chains
from tarsy.store.base import databases
from tarsy.store.fleet import catalogue, leader
from tarsy.store.queue import turns

REPORTS_SECONDS = 5.0
"""The interval of comparing the workers' reports with those of the last check."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Reports:
    """The reports of the workers that the conditions of chains depend on."""

    servers: chain_statuses.ServerReports
    tools: tool_filters.Catalogue
    providers: worker_reports.Workers
    refused_owners: frozenset[str]
    """The kinds of owners of alerts that an API lacks the right to get."""

    def differ(self, other: _Reports | None) -> bool:
        """Whether the conditions of a chain may differ between the two."""
        return (
            other is None
            or (self.tools, self.providers) != (other.tools, other.providers)
            or self.refused_owners != other.refused_owners
            or chain_statuses.server_states(self.servers) != chain_statuses.server_states(other.servers)
        )


class Reconciler:
    """Reconciles the chains of namespaces, a namespace at a time."""

    def __init__(
        self, *, cluster: client.Cluster, database: databases.Database, index: chain_index.Indexer, owner: UUID
    ) -> None:
        """`owner` identifies this process in the leader's lease."""
        self._cluster = cluster
        self._database = database
        self._index = index
        self._owner = owner
        self._queue = workqueue.WorkQueue(self.reconcile, workers=1)
        self._namespaces: set[str] = set()
        """The namespaces whose chains were checked."""
        self._reports: _Reports | None = None
        """The reports at the last check."""

    async def run(self) -> None:
        """Reconcile until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run())
            group.create_task(self._poll_reports())

    async def _poll_reports(self) -> None:
        """Check the chains of all namespaces again when the workers' reports differ from those of the last check."""
        while True:
            await asyncio.sleep(REPORTS_SECONDS)
            try:
                reports = await self._read_reports()
            except errors.TemporaryError as error:
                log.warning("the workers' reports cannot be read: %s", error, extra={"action": "servers_unread"})
                continue
            if reports.differ(self._reports):
                for namespace in self._namespaces:
                    self._queue.ensure(namespace)

    async def _read_reports(self) -> _Reports:
        return _Reports(
            servers=chain_statuses.group_by_server(await catalogue.read(self._database, "server")),
            tools=await catalogue.tools_by_server(self._database),
            providers=await catalogue.workers(self._database),
            refused_owners=frozenset(report.name for report in await catalogue.read(self._database, "owners")),
        )

    def seen(self, seen: watch.Seen) -> None:
        """Check the chains of the object's namespace."""
        self.check_again(seen.namespace)

    def check_again(self, namespace: str) -> None:
        """Check the chains of `namespace` with the platform file in force now."""
        self._namespaces.add(namespace)
        self._queue.add(namespace)

    async def reconcile(self, namespace: str) -> None:
        """Check all chains of `namespace`, and write the statuses that have changed.

        Raises LaterError while another replica leads; this one may lead later.
        """
        if not await leader.lead(self._database, leader.CONTROLLER, owner=self._owner, lease=leader.LEASE):
            raise workqueue.LaterError(leader.LEASE.total_seconds())
        listed = await objects.list_all_chains(self._cluster, namespace=namespace)
        readable = [chain for chain in listed if isinstance(chain, chains.AgentChain)]
        reports = self._reports = await self._read_reports()
        self._namespaces.add(namespace)
        await turns.store_limits(
            self._database,
            namespace,
            {chain.metadata.name: chain.spec.max_running for chain in readable},
            known=[chain.metadata.name for chain in listed],
        )
        index = self._index(
            readable,
            unusable_providers=reports.providers.unusable,
            namespace=namespace,
            own=self._cluster.served.own,
        )
        now = datetime.now(UTC)
        for chain in readable:
            checked = index.status(chain, reports.tools, refused_owners=reports.refused_owners)
            status = chain_statuses.build(
                chain,
                checked,
                servers=reports.servers,
                workers=reports.providers,
                secrets=self._cluster.secrets,
                now=now,
            )
            if status != chain.status:
                await self._write(chain.metadata, status)
        for unreadable in listed:
            if isinstance(unreadable, chains.AgentChain):
                continue
            if unreadable.message[: base.MESSAGE_MAX] not in unreadable_objects.reported_messages(unreadable):
                name = f"{namespace}/{unreadable.metadata.name}"
                log.error("chain %s: %s", name, unreadable.message, extra={"action": "chain_unreadable"})
                await self._write(unreadable.metadata, chain_statuses.build_unreadable(unreadable, now=now))

    async def _write(self, metadata: base.ObjectMeta, status: chains.Status) -> None:
        await objects.apply_status(
            self._cluster, namespace=metadata.namespace, name=metadata.name, uid=metadata.uid, status=status
        )

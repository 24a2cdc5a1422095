"""Checks the chains of the cluster and writes their conditions: on arrival, and when one of them or the file changes.

Also when an MCP server comes or goes, which is looked for every so often.

All chains of a namespace are checked together, because whether one is accepted depends on the others. Only the replica
that leads does it: two with different platform files would correct each other for ever.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from tarsy import errors
from tarsy.config import check, offers
from tarsy.controller import reach, workqueue
from tarsy.kube import client, objects, watch
from tarsy.masking import given
from tarsy.resources import base
from tarsy.resources import chain as chains
from tarsy.store import catalogue, leader
from tarsy.store import database as databases

SERVERS_SECONDS = 5.0
"""How often it is looked whether MCP servers have come or gone, or have other tools."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Told:
    """What the processes that are connected to MCP servers say of them."""

    servers: reach.Said
    offered: offers.Catalogue

    @property
    def judged(self) -> object:
        """What the conditions of chains depend on."""
        return reach.states(self.servers), self.offered


class Reconciler:
    """Reconciles the chains of namespaces in which the watch has seen one change."""

    def __init__(
        self, *, cluster: client.Cluster, database: databases.Database, index: check.Indexer, owner: UUID
    ) -> None:
        """`owner` is this process, to the leader's lease."""
        self._cluster = cluster
        self._database = database
        self._index = index
        self._owner = owner
        self._queue = workqueue.WorkQueue(self.reconcile, workers=1)
        self._namespaces: set[str] = set()
        """Those whose chains were checked."""
        self._judged: object = None
        """What was said of MCP servers when they were."""

    async def run(self) -> None:
        """Reconcile until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run())
            group.create_task(self._follow())

    async def _follow(self) -> None:
        """Have chains checked again when servers have come or gone, or have other tools."""
        while True:
            await asyncio.sleep(SERVERS_SECONDS)
            try:
                told = await self._told()
            except errors.TemporaryError as error:
                log.warning("what MCP servers do is not known: %s", error, extra={"action": "servers_unread"})
                continue
            if told.judged != self._judged:
                for namespace in self._namespaces:
                    self._queue.ensure(namespace)

    async def _told(self) -> _Told:
        return _Told(
            servers=reach.by_name(await catalogue.read(self._database, "server")),
            offered=await catalogue.offered(self._database),
        )

    def seen(self, seen: watch.Seen) -> None:
        """Have the namespace's chains checked."""
        self.check_again(seen.namespace)

    def check_again(self, namespace: str) -> None:
        """Have its chains checked by what is in force now."""
        self._namespaces.add(namespace)
        self._queue.add(namespace)

    async def reconcile(self, namespace: str) -> None:
        """Check all chains of `namespace`; write the statuses that differ from what is there.

        A LaterError while another replica leads: this one may by then.
        """
        if not await leader.lead(self._database, leader.CONTROLLER, owner=self._owner, lease=leader.LEASE):
            raise workqueue.LaterError(leader.LEASE.total_seconds())
        found = await objects.list_chains(self._cluster, namespace=namespace)
        told = await self._told()
        self._judged = told.judged
        self._namespaces.add(namespace)
        index = self._index(found)
        for chain in found:
            checked = index.status(chain, told.offered)
            status = status_of(chain, checked, servers=told.servers, now=datetime.now(UTC))
            if status != chain.status:
                await objects.apply_status(
                    self._cluster,
                    namespace=namespace,
                    name=chain.metadata.name,
                    uid=chain.metadata.uid,
                    status=status,
                )


def status_of(
    chain: chains.AgentChain, checked: check.ChainStatus, *, servers: reach.Said, now: datetime
) -> chains.Status:
    """The status that shows `checked`; a condition that does not change keeps its time.

    `servers` is what processes say of MCP servers.
    """
    before = {condition.type: condition for condition in (chain.status.conditions if chain.status else [])}

    def condition(kind: str, told: reach.Verdict) -> base.Condition:
        known = before.get(kind)
        return base.Condition(
            type=kind,
            status=told.status,
            reason=told.reason,
            message=given.KNOWN.text(told.message)[: base.MESSAGE_MAX],
            last_transition_time=known.last_transition_time
            if known and known.status == told.status
            else now.replace(microsecond=0),
            observed_generation=chain.metadata.generation,
        )

    conditions = [
        condition("Accepted", _verdict(checked.acceptance, good="Accepted")),
        condition("ResolvedRefs", _verdict(checked.references, good="ResolvedRefs", warning=checked.warning)),
        condition("Ready", _verdict(checked.problem, good="Ready")),
        condition("Stalled", _verdict(checked.problem, good="Ready", negative=True)),
    ]
    if checked.servers:
        conditions.append(condition(reach.CONDITION, reach.judged(checked.servers, servers)))
    return chains.Status(observed_generation=chain.metadata.generation, hash=chain.digest(), conditions=conditions)


def _verdict(
    problem: check.Problem | None, *, good: str, warning: check.Problem | None = None, negative: bool = False
) -> reach.Verdict:
    told = problem or warning or check.Problem(reason=good, message="")
    is_true = (problem is None) != negative
    return reach.Verdict(status="True" if is_true else "False", reason=told.reason, message=told.message)

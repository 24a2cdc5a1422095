"""Checks the chains of the cluster and writes their conditions: on arrival, and when one of them or the file changes.

Also when an MCP server comes or goes, which is looked for every so often.

All chains of a namespace are checked together, because whether one is accepted depends on the others. Only the replica
that leads does it: two with different platform files would correct each other for ever.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from uuid import UUID

from tarsy import errors
from tarsy.config import check
from tarsy.controller import reach, workqueue
from tarsy.kube import client, objects, watch
from tarsy.resources import base
from tarsy.resources import chain as chains
from tarsy.store import catalogue, leader
from tarsy.store import database as databases

SERVERS_SECONDS = 5.0
"""How often it is looked whether MCP servers have come or gone."""


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

    async def run(self) -> None:
        """Reconcile until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run())
            group.create_task(self._follow())

    async def _follow(self) -> None:
        """Have chains checked again when servers have come or gone."""
        before: object = None
        while True:
            await asyncio.sleep(SERVERS_SECONDS)
            try:
                now = reach.states(await self._servers())
            except errors.TemporaryError:  # the database is away, which others tell
                continue
            if now != before:
                before = now
                for namespace in self._namespaces:
                    self.check_again(namespace)

    async def _servers(self) -> reach.Said:
        return reach.by_name(await catalogue.read(self._database, "server"))

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
        statuses = self._index(found).statuses
        servers = await self._servers()
        for chain in found:
            checked = statuses[chain.metadata.uid]
            status = status_of(chain, checked, servers=servers, now=datetime.now(UTC))
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
            message=told.message[: base.MESSAGE_MAX],
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

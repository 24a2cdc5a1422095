"""Checks the chains of the cluster and writes their conditions: on arrival, and when one of them or the file changes.

All chains of a namespace are checked together, because whether one is accepted depends on the others. Only the replica
that leads does it: two with different platform files would correct each other for ever.
"""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from tarsy.config import check
from tarsy.controller import workqueue
from tarsy.kube import client, objects, watch
from tarsy.masking import given
from tarsy.resources import base
from tarsy.resources import chain as chains
from tarsy.store import database as databases
from tarsy.store import leader


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

    async def run(self) -> None:
        """Reconcile until cancelled."""
        await self._queue.run()

    def seen(self, seen: watch.Seen) -> None:
        """Have the namespace's chains checked."""
        self.check_again(seen.namespace)

    def check_again(self, namespace: str) -> None:
        """Have its chains checked by what is in force now."""
        self._queue.add(namespace)

    async def reconcile(self, namespace: str) -> None:
        """Check all chains of `namespace`; write the statuses that differ from what is there.

        A LaterError while another replica leads: this one may by then.
        """
        if not await leader.lead(self._database, leader.CONTROLLER, owner=self._owner, lease=leader.LEASE):
            raise workqueue.LaterError(leader.LEASE.total_seconds())
        found = await objects.list_chains(self._cluster, namespace=namespace)
        statuses = self._index(found).statuses
        for chain in found:
            checked = statuses[chain.metadata.uid]
            status = status_of(chain, checked, now=datetime.now(UTC))
            if status != chain.status:
                await objects.apply_status(
                    self._cluster,
                    namespace=namespace,
                    name=chain.metadata.name,
                    uid=chain.metadata.uid,
                    status=status,
                )


def status_of(chain: chains.AgentChain, checked: check.ChainStatus, *, now: datetime) -> chains.Status:
    """The status that shows `checked`; a condition that does not change keeps its time."""
    before = {condition.type: condition for condition in (chain.status.conditions if chain.status else [])}

    def condition(
        kind: str,
        problem: check.Problem | None,
        *,
        good: str,
        warning: check.Problem | None = None,
        negative: bool = False,
    ) -> base.Condition:
        told = problem or warning or check.Problem(reason=good, message="")
        status = "True" if (problem is None) != negative else "False"
        known = before.get(kind)
        return base.Condition(
            type=kind,
            status="True" if status == "True" else "False",
            reason=told.reason,
            message=given.KNOWN.text(told.message)[: base.MESSAGE_MAX],
            last_transition_time=known.last_transition_time
            if known and known.status == status
            else now.replace(microsecond=0),
            observed_generation=chain.metadata.generation,
        )

    return chains.Status(
        observed_generation=chain.metadata.generation,
        hash=chain.digest(),
        conditions=[
            condition("Accepted", checked.acceptance, good="Accepted"),
            condition("ResolvedRefs", checked.references, good="ResolvedRefs", warning=checked.warning),
            condition("Ready", checked.problem, good="Ready"),
            condition("Stalled", checked.problem, good="Ready", negative=True),
        ],
    )

"""Judges the chains of the cluster and writes their conditions: on arrival, and again when another one changes.

All chains of a namespace are judged together, because whether one is accepted depends on the others. Only the replica
that has the duties does it: two with different platform files would correct each other for ever.
"""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from tarsy.config import check
from tarsy.controller import workqueue
from tarsy.kube import client, objects, watch
from tarsy.resources import base
from tarsy.resources import chain as chains
from tarsy.store import database as databases
from tarsy.store import duties


class Reconciler:
    """Reconciles the chains of namespaces in which the watch has seen one change."""

    def __init__(
        self, *, cluster: client.Cluster, database: databases.Database, judge: check.Judge, owner: UUID
    ) -> None:
        """`owner` is this process, to the lease of the duties."""
        self._cluster = cluster
        self._database = database
        self._judge = judge
        self._owner = owner
        self._queue = workqueue.WorkQueue(
            self.reconcile, workers=1, not_now=(client.ClusterDownError, databases.StoreDownError)
        )

    async def run(self) -> None:
        """Reconcile until cancelled."""
        await self._queue.run()

    def seen(self, seen: watch.Seen) -> None:
        """Have the namespace's chains judged."""
        self._queue.add(seen.namespace)

    async def reconcile(self, namespace: str) -> None:
        """Judge all chains of `namespace`; write the statuses that differ from what is there.

        A LaterError where another replica has the duties: this one may have them by then.
        """
        if not await duties.take(self._database, duties.CONTROLLER, owner=self._owner, lease=duties.LEASE):
            raise workqueue.LaterError(duties.LEASE.total_seconds())
        found = await objects.list_chains(self._cluster, namespace=namespace)
        judgements = self._judge.judge(found)
        for chain in found:
            status = status_of(chain, judgements[chain.metadata.uid], now=datetime.now(UTC))
            if status != chain.status:
                await objects.apply_status(
                    self._cluster,
                    namespace=namespace,
                    name=chain.metadata.name,
                    uid=chain.metadata.uid,
                    status=status,
                )


def status_of(chain: chains.AgentChain, judgement: check.Judgement, *, now: datetime) -> chains.Status:
    """The status that shows `judgement`; a condition that does not change keeps its time."""
    before = {condition.type: condition for condition in (chain.status.conditions if chain.status else [])}

    def condition(kind: str, problem: check.Problem | None, *, good: str, negative: bool = False) -> base.Condition:
        status = "True" if (problem is None) != negative else "False"
        known = before.get(kind)
        return base.Condition(
            type=kind,
            status="True" if status == "True" else "False",
            reason=good if problem is None else problem.reason,
            message="" if problem is None else problem.message[: base.MESSAGE_MAX],
            last_transition_time=known.last_transition_time
            if known and known.status == status
            else now.replace(microsecond=0),
            observed_generation=chain.metadata.generation,
        )

    return chains.Status(
        observed_generation=chain.metadata.generation,
        hash=chain.digest(),
        conditions=[
            condition("Accepted", judgement.acceptance, good="Accepted"),
            condition("ResolvedRefs", judgement.references, good="ResolvedRefs"),
            condition("Ready", judgement.problem, good="Ready"),
            condition("Stalled", judgement.problem, good="Ready", negative=True),
        ],
    )

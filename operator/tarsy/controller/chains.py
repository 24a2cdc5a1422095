"""Checks the chains of the cluster and writes their conditions: on arrival, and when one of them or the file changes.

Also when an MCP server comes or goes, or workers say something else of LLM providers, which is looked for every so
often.

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
from tarsy.config.check import chain_index, worker_reports
from tarsy.config.model import tool_filters
from tarsy.controller import reach, unreadable, usable, workqueue
from tarsy.kube import client, objects, watch
from tarsy.masking import known_secrets
from tarsy.resources import base, chains
from tarsy.store.base import databases
from tarsy.store.fleet import catalogue, leader
from tarsy.transcript import control_characters

SERVERS_SECONDS = 5.0
"""How often the reports on MCP servers, their tools and LLM providers are compared with those of the last check."""


log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Told:
    """The reports of the workers on MCP servers and LLM providers."""

    servers: reach.Said
    offered: tool_filters.Catalogue
    workers: worker_reports.Workers

    @property
    def judged(self) -> object:
        """The part of the reports that the conditions of chains depend on."""
        return reach.states(self.servers), self.offered, self.workers


class Reconciler:
    """Reconciles the chains of namespaces in which the watch has seen one change."""

    def __init__(
        self, *, cluster: client.Cluster, database: databases.Database, index: chain_index.Indexer, owner: UUID
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
        """The reports of MCP servers and LLM providers at the last judgement of all chains."""

    async def run(self) -> None:
        """Reconcile until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run())
            group.create_task(self._follow())

    async def _follow(self) -> None:
        """Have chains checked again when reports on servers, tools or providers differ from those of the last check."""
        while True:
            await asyncio.sleep(SERVERS_SECONDS)
            try:
                reports = await self._reports()
            except errors.TemporaryError as error:
                log.warning("the workers' reports cannot be read: %s", error, extra={"action": "servers_unread"})
                continue
            if reports.judged != self._judged:
                for namespace in self._namespaces:
                    self._queue.ensure(namespace)

    async def _reports(self) -> _Told:
        return _Told(
            servers=reach.by_name(await catalogue.read(self._database, "server")),
            offered=await catalogue.offered(self._database),
            workers=await catalogue.workers(self._database),
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
        everything = await objects.list_all_chains(self._cluster, namespace=namespace)
        readable_chains = [chain_object for chain_object in everything if isinstance(chain_object, chains.AgentChain)]
        reports = await self._reports()
        self._judged = reports.judged
        self._namespaces.add(namespace)
        index = self._index(readable_chains, unusable_providers=reports.workers.unusable)
        for chain in readable_chains:
            checked = index.status(chain, reports.offered)
            status = status_of(chain, checked, servers=reports.servers, workers=reports.workers, now=datetime.now(UTC))
            if status != chain.status:
                await self._write(chain.metadata, status)
        for chain_object in everything:
            if isinstance(chain_object, objects.Unreadable) and chain_object.message[
                : base.MESSAGE_MAX
            ] not in unreadable.messages(chain_object):
                named = f"{namespace}/{chain_object.metadata.name}"
                log.error("chain %s: %s", named, chain_object.message, extra={"action": "chain_unreadable"})
                await self._write(chain_object.metadata, unreadable_status(chain_object, now=datetime.now(UTC)))

    async def _write(self, metadata: base.ObjectMeta, status: chains.Status) -> None:
        await objects.apply_status(
            self._cluster, namespace=metadata.namespace, name=metadata.name, uid=metadata.uid, status=status
        )


def status_of(
    chain: chains.AgentChain,
    checked: chain_index.ChainStatus,
    *,
    servers: reach.Said,
    workers: worker_reports.Workers,
    now: datetime,
) -> chains.Status:
    """The status that shows `checked`; a condition that does not change keeps its time.

    `servers` is what processes say of MCP servers, `workers` what workers say of LLM providers.
    """
    before = {condition.type: condition for condition in (chain.status.conditions if chain.status else [])}

    def condition(kind: str, verdict: reach.Verdict) -> base.Condition:
        former = before.get(kind)
        return base.Condition(
            type=kind,
            status=verdict.status,
            reason=verdict.reason,
            message=control_characters.escape(known_secrets.KNOWN.text(verdict.message))[: base.MESSAGE_MAX],
            last_transition_time=former.last_transition_time
            if former and former.status == verdict.status
            else now.replace(microsecond=0),
            observed_generation=chain.metadata.generation,
        )

    conditions = [
        condition("Accepted", _verdict(checked.acceptance, good="Accepted")),
        condition("ResolvedRefs", _verdict(checked.references, good="ResolvedRefs", warning=checked.warning)),
        condition("Ready", _verdict(checked.problem, good="Ready")),
        condition("Stalled", _verdict(checked.problem, good="Ready", negative=True)),
    ]
    if checked.providers:
        conditions.append(condition(usable.CONDITION, usable.verdict(checked.providers, workers)))
    if checked.servers:
        conditions.append(condition(reach.CONDITION, reach.judged(checked.servers, servers)))
    return chains.Status(observed_generation=chain.metadata.generation, hash=chain.digest(), conditions=conditions)


def unreadable_status(unreadable_chain: objects.Unreadable, *, now: datetime) -> chains.Status:
    """The status of a chain whose spec this version cannot read: neither accepted nor ready, until it can be."""
    conditions = [
        unreadable.condition(unreadable_chain, kind, true=true, now=now)
        for kind, true in (("Accepted", False), ("Ready", False), ("Stalled", True))
    ]
    return chains.Status(observed_generation=unreadable_chain.metadata.generation, conditions=conditions)


def _verdict(
    problem: chain_index.Problem | None,
    *,
    good: str,
    warning: chain_index.Problem | None = None,
    negative: bool = False,
) -> reach.Verdict:
    shown_problem = problem or warning or chain_index.Problem(reason=good, message="")
    is_true = (problem is None) != negative
    return reach.Verdict(
        status="True" if is_true else "False", reason=shown_problem.reason, message=shown_problem.message
    )

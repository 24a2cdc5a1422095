"""The controller role: it admits what appears in the cluster, and shows there what the store knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tarsy.controller import chains, duties, investigations, projector, unserved_events
from tarsy.kube import client, watch
from tarsy.probes import checks
from tarsy.process import supervision
from tarsy.process.shared import Shared
from tarsy.resources import base
from tarsy.store.base import notify

RECONCILERS = 4


@dataclass(frozen=True, kw_only=True)
class Controller:
    """The parts of the role, and what the other roles of the process use of it."""

    roles: list[supervision.Part]
    watching: asyncio.Event
    """Set once the watch is open."""
    admitted: Callable[[base.ObjectMeta], None]


def build(shared: Shared, cluster: client.Cluster) -> Controller:
    """Build the role."""
    reconciler = investigations.Reconciler(
        cluster=cluster,
        database=shared.database,
        index=shared.in_force.index,
        mask=shared.masking.mask_alert,
        workers=RECONCILERS,
    )
    conditions = chains.Reconciler(
        cluster=cluster, database=shared.database, index=shared.in_force.index, owner=shared.owner
    )

    def check_again() -> None:
        for namespace in cluster.served:
            conditions.check_again(namespace)

    shared.in_force.follow(check_again)
    watcher = watch.Watcher(
        cluster, namespace=cluster.served.own, investigation_seen=reconciler.seen, chain_seen=conditions.seen
    )
    shared.early.readiness.add(checks.Watch(watcher))
    shared.kept.hear(watcher.facts)
    projection = projector.Projector(cluster=cluster, database=shared.database)
    due = duties.Duties(
        cluster=cluster,
        database=shared.database,
        reconciler=reconciler,
        owner=shared.owner,
        dedup_window=lambda: shared.in_force.platform.ingest.dedup_window,
        watch_lists=lambda: watcher.lists,
        post_unserved=_unserved_events(shared, cluster).post if shared.options.deployment else None,
    )
    shared.channels.listen({notify.STATUS: projection.hint})
    return Controller(
        roles=[reconciler.run, conditions.run, watcher.run, projection.run, due.run],
        watching=watcher.opened,
        admitted=reconciler.made,
    )


def _unserved_events(shared: Shared, cluster: client.Cluster) -> unserved_events.UnservedEvents:
    return unserved_events.UnservedEvents(
        cluster=cluster,
        database=shared.database,
        deployment=shared.options.deployment,
        index=shared.in_force.index,
        ingest=lambda: shared.in_force.platform.ingest,
    )

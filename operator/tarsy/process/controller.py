"""The controller role: it admits investigations from the cluster and writes statuses from the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tarsy.controller import budget_events, chains, duties, investigations, projector, unserved_events
from tarsy.kube import client, watch
from tarsy.probes import checks
from tarsy.process import supervision
from tarsy.process.context import Context
from tarsy.resources import base
from tarsy.store.base import notify
from tarsy.telemetry import metrics

RECONCILERS = 4


@dataclass(frozen=True, kw_only=True)
class Controller:
    """The parts of the role."""

    roles: list[supervision.Part]
    watching: asyncio.Event
    """Set once the watch is open."""
    admitted: Callable[[base.ObjectMeta], None]


def build(context: Context, cluster: client.Cluster) -> Controller:
    """Build the role."""
    reconciler = investigations.Reconciler(
        cluster=cluster,
        database=context.database,
        index=context.in_force.index,
        mask=context.masking.mask_alert,
        workers=RECONCILERS,
        platform=lambda: context.in_force.platform,
    )
    conditions = chains.Reconciler(
        cluster=cluster, database=context.database, index=context.in_force.index, owner=context.owner
    )

    def check_again() -> None:
        for namespace in cluster.served:
            conditions.check_again(namespace)

    context.in_force.follow(check_again)
    watcher = watch.Watcher(cluster, investigation_seen=reconciler.seen, chain_seen=conditions.seen)
    context.early.readiness.add(checks.Watch(watcher))
    context.process_reporter.add_source(watcher.facts)
    platform = context.in_force.platform
    projection = projector.Projector(
        cluster=cluster,
        database=context.database,
        pages=platform.api.public_url if platform.web.enabled else None,
    )
    due = duties.Duties(
        cluster=cluster,
        database=context.database,
        reconciler=reconciler,
        owner=context.owner,
        platform=lambda: context.in_force.platform,
        watch_lists=watcher.lists.__getitem__,
        post_budgets=budget_events.BudgetEvents(
            cluster=cluster,
            database=context.database,
            deployment=context.options.deployment,
            platform=lambda: context.in_force.platform,
        ).post,
        post_unserved=_unserved_events(context, cluster).post if context.options.deployment else None,
    )
    context.channels.listen({notify.STATUS: projection.hint})

    def sample() -> None:
        metrics.WATCH_CLOSED.set(watcher.cut_for())
        metrics.STATUS_AGE.set(projection.oldest_unwritten())

    context.early.scrapes.add(sample)
    return Controller(
        roles=[reconciler.run, conditions.run, watcher.run, projection.run, due.run],
        watching=watcher.opened,
        admitted=reconciler.mark_admitted,
    )


def _unserved_events(context: Context, cluster: client.Cluster) -> unserved_events.UnservedEvents:
    return unserved_events.UnservedEvents(
        cluster=cluster,
        database=context.database,
        deployment=context.options.deployment,
        index=context.in_force.index,
        ingest=lambda: context.in_force.platform.ingest,
    )

"""Kubernetes events about alerts that no chain takes, posted to the operator's own Deployment.

All replicas together post at most one event an hour: the store has the time of the last one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from tarsy import errors
from tarsy.config.check import chain_index
from tarsy.config.model import webhooks
from tarsy.kube import client, events, objects
from tarsy.store.base import databases
from tarsy.store.intake import unserved

INTERVAL = timedelta(hours=1)
TYPES_MAX = 5
REASON = "AlertsUnserved"

log = logging.getLogger(__name__)


class UnservedEvents:
    """Posts the events to the Deployment of this process."""

    def __init__(
        self,
        *,
        cluster: client.Cluster,
        database: databases.Database,
        deployment: str,
        index: chain_index.Indexer,
        ingest: Callable[[], webhooks.Ingest],
    ) -> None:
        """`deployment` is the name of the Deployment, in the operator's namespace.

        `ingest` returns the section `ingest` of the platform file in force.
        """
        self._cluster = cluster
        self._database = database
        self._deployment = deployment
        self._index = index
        self._ingest = ingest

    async def post(self) -> None:
        """Post an event if no chain takes some alerts, and no event was posted within the hour.

        Raises TemporaryError if it cannot be posted now.
        """
        at = await unserved.claim_notice(self._database, every=INTERVAL)
        if at is None:
            return
        try:
            await self._post(at)
        except (errors.TemporaryError, objects.RefusedError):
            await unserved.release_notice(self._database)
            raise

    async def _post(self, at: datetime) -> None:
        namespace, default = self._cluster.served.own, self._ingest().default_alert_type
        rows = await unserved.read(self._database)
        indexes: dict[str, chain_index.ChainIndex] = {}
        for name in {row.namespace for row in rows}:
            listed = await objects.list_usable_chains(self._cluster, namespace=name or namespace)
            indexes[name] = self._index(listed, unusable_providers={}, namespace=name or namespace, own=namespace)
        unserved_alerts = [row for row in rows if not indexes[row.namespace].takes(row.alert_type, default=default)]
        uid = await events.deployment_uid(self._cluster, namespace=namespace, name=self._deployment)
        if not unserved_alerts or uid is None:
            return
        event_message = message(unserved_alerts)
        log.warning("%s", event_message, extra={"action": "alerts_unserved"})
        event = events.Event(
            reason=REASON, message=event_message, at=at, warning=True, recurs=True, about=events.DEPLOYMENT
        )
        await events.post(self._cluster, event, namespace=namespace, name=self._deployment, uid=uid)


def message(rows: Sequence[unserved.Unserved]) -> str:
    """Return the message: the most frequent types of alerts that no chain took, their numbers, and the remedy."""
    named = [row for row in rows if row.alert_type != unserved.OTHERS][:TYPES_MAX]
    alert_types = [f"{row.alert_type}{f' in {row.namespace}' if row.namespace else ''} ({row.alerts})" for row in named]
    if others := sum(row.alerts for row in rows) - sum(row.alerts for row in named):
        alert_types.append(f"others ({others})")
    types = ", ".join(alert_types)
    return f"no chain takes these alerts of the last day: {types}: {unserved.REMEDY}. See /api/v1/system/warnings"

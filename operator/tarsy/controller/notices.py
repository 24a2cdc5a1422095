"""Tells people, at the operator's own Deployment, of alerts that no chain takes: an event an hour at most.

The store remembers when it was told, so that all replicas together tell it as often as one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from tarsy import errors
from tarsy.config.check import chain_index
from tarsy.config.model import platforms
from tarsy.kube import client, objects
from tarsy.store.base import databases
from tarsy.store.intake import unserved

EVERY = timedelta(hours=1)
TYPES_TOLD = 5
REASON = "AlertsUnserved"

log = logging.getLogger(__name__)


class Notices:
    """Events at the Deployment that this process belongs to."""

    def __init__(
        self,
        *,
        cluster: client.Cluster,
        database: databases.Database,
        deployment: str,
        index: chain_index.Indexer,
        ingest: Callable[[], platforms.Ingest],
    ) -> None:
        """`deployment` is its name, in the operator's namespace; `ingest` is what is in force of that section."""
        self._cluster = cluster
        self._database = database
        self._deployment = deployment
        self._index = index
        self._ingest = ingest

    async def tell(self) -> None:
        """Post an event if alerts have come that no chain takes, and none was posted within the hour.

        A TemporaryError: it could not be posted, and is to be tried again.
        """
        at = await unserved.claim_notice(self._database, every=EVERY)
        if at is None:
            return
        try:
            await self._post(at)
        except (errors.TemporaryError, objects.RefusedError):
            await unserved.release_notice(self._database)
            raise

    async def _post(self, at: datetime) -> None:
        namespace = self._cluster.served.own
        index = self._index(await objects.list_chains(self._cluster, namespace=namespace), unusable_providers={})
        default = self._ingest().default_alert_type
        unserved_alerts = [
            row for row in await unserved.read(self._database) if not index.takes(row.alert_type, default=default)
        ]
        uid = await objects.deployment_uid(self._cluster, namespace=namespace, name=self._deployment)
        if not unserved_alerts or uid is None:
            return
        message = message_of(unserved_alerts)
        log.warning("%s", message, extra={"action": "alerts_unserved"})
        event = objects.Event(
            reason=REASON, message=message, at=at, warning=True, recurs=True, about=objects.DEPLOYMENT
        )
        await objects.post_event(self._cluster, event, namespace=namespace, name=self._deployment, uid=uid)


def message_of(rows: Sequence[unserved.Unserved]) -> str:
    """Say how many alerts of which types no chain has taken, the most frequent first, and what to do."""
    named = [row for row in rows if row.alert_type != unserved.OTHERS][:TYPES_TOLD]
    alert_types = [f"{row.alert_type} ({row.alerts})" for row in named]
    if others := sum(row.alerts for row in rows) - sum(row.alerts for row in named):
        alert_types.append(f"others ({others})")
    types = ", ".join(alert_types)
    return f"no chain takes these alerts of the last day: {types}: {unserved.REMEDY}. See /api/v1/system/warnings"

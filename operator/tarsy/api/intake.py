"""Alertmanager's webhook: an object and its row for each firing alert, before the answer goes out.

Answers by what Alertmanager does with them: 2xx is the end of it, 5xx is sent again, 4xx is not sent again until its
group changes. So what we choose not to investigate is 2xx, with the reason, and what we cannot keep now is 503.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from http import HTTPStatus

from fastapi import Request
from pydantic import BaseModel

from tarsy.api import problems
from tarsy.config import platform, resolve
from tarsy.ingest import alertmanager, manifest
from tarsy.kube import client, objects
from tarsy.resources import chain as chains
from tarsy.store import database as databases
from tarsy.store import work

BODY_MAX = 10 * 1024 * 1024  # bytes; Alertmanager's groups have no bound of their own

log = logging.getLogger(__name__)


class Outcome(BaseModel):
    """What became of one alert."""

    alertname: str
    outcome: str
    """created, repeated or ignored."""
    investigation: str | None = None
    """namespace/name."""
    reason: str = ""


class Receipt(BaseModel):
    """What became of a notification, alert by alert, in its order."""

    alerts: list[Outcome]


@dataclass(frozen=True, kw_only=True)
class Intake:
    """Takes notifications in."""

    cluster: client.Cluster
    database: databases.Database
    settings: platform.Ingest

    async def take(self, request: Request) -> Receipt:
        """Serve `POST /api/v1/webhooks/alertmanager`."""
        body = await _body(request)
        try:
            notification = alertmanager.parse(body)
        except alertmanager.PayloadError as error:
            raise problems.Problem(HTTPStatus.BAD_REQUEST, str(error)) from error
        try:
            known = await objects.list_chains(self.cluster, namespace=self.cluster.namespace)
            outcomes = [await self._take_alert(alert, notification, known) for alert in notification.alerts]
        except (client.ClusterDownError, databases.StoreDownError) as error:
            raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}; send it again") from error
        for outcome in outcomes:
            log.info("alert %s", outcome.outcome, extra={"action": "alert", **outcome.model_dump(exclude_none=True)})
        return Receipt(alerts=outcomes)

    async def _take_alert(
        self,
        alert: alertmanager.Alert,
        notification: alertmanager.Notification,
        known: list[chains.AgentChain],
    ) -> Outcome:
        alertname = alert.labels.get("alertname", "")
        if alert.status == "resolved":
            return Outcome(alertname=alertname, outcome="ignored", reason="it is resolved")
        try:
            alert_type, chain = self._chain(manifest.alert_type(alert, self.settings), known)
            made = manifest.build(alert, notification, alert_type=alert_type, namespace=self.cluster.namespace)
            created = await objects.create_investigation(self.cluster, made)
        except (resolve.UnresolvedError, manifest.TooLargeError, objects.RefusedError) as error:
            return Outcome(alertname=alertname, outcome="ignored", reason=str(error))
        await work.admit(self.database, created.found, chain)
        metadata = created.found.metadata
        return Outcome(
            alertname=alertname,
            outcome="repeated" if created.existed else "created",
            investigation=f"{metadata.namespace}/{metadata.name}",
        )

    def _chain(self, alert_type: str, known: list[chains.AgentChain]) -> tuple[str, chains.AgentChain]:
        """The alert's own type where a chain takes it, else the default type; and the chain."""
        try:
            return alert_type, resolve.chain_for(alert_type, known)
        except resolve.UnresolvedError:
            if (default := self.settings.default_alert_type) is None:
                raise
            return default, resolve.chain_for(default, known)


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_MAX:
            raise problems.Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is over {BODY_MAX} bytes")
    return bytes(body)

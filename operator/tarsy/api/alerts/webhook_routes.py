"""The webhooks that take notifications of Alertmanager and Grafana: for `ingest.namespace`, or for a named one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Depends, Request

from tarsy.api.alerts import intake, notifications, results
from tarsy.auth import permissions
from tarsy.ingest import alertmanager, formats, grafana
from tarsy.serve import openapi, strict

_WEBHOOKS: tuple[tuple[formats.Format, str, str, str], ...] = (
    ("alertmanager", "POST", "notifyOfAlerts", "Take a notification of Alertmanager's webhook receiver, format 4"),
    ("grafana", "POST", "notifyOfGrafanaAlerts", "Take a notification of Grafana's webhook contact point, format 1"),
    ("grafana", "PUT", "putGrafanaAlerts", "Take the same notification from a contact point that uses PUT"),
)
"""The format, the method, the operation's id and its description."""


def routes(alert_intake: intake.Intake, access: permissions.Access) -> APIRouter:
    """Return the webhooks."""
    router = strict.router(prefix="/api/v1/webhooks", tag="alerts")
    bodies = {"alertmanager": openapi.body(alertmanager.schema()), "grafana": openapi.body(grafana.schema())}
    for sent_by, method, operation_id, description in _WEBHOOKS:
        for path, suffix, ending, may in (
            (f"/{sent_by}", "", "", access.notify),
            (f"/{sent_by}/{{namespace}}", "In", ", for a namespace", access.notify_in),
        ):
            router.add_api_route(
                path,
                _endpoint(alert_intake, may, sent_by),
                methods=[method],
                operation_id=operation_id + suffix,
                description=f"{description}{ending}.",
                openapi_extra=bodies[sent_by],
            )
    return router


def _endpoint(
    alert_intake: intake.Intake, may: Callable[..., Awaitable[permissions.Destination]], sent_by: formats.Format
) -> Callable[..., Awaitable[results.Receipt]]:
    async def notify(request: Request, destination: permissions.Destination = Depends(may)) -> results.Receipt:
        return await notifications.take(alert_intake, request, destination, sent_by=sent_by)

    return notify

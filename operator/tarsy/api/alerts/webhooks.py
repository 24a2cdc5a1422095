"""The routes by which alerts come in; `intake` and `notifications` take them."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request

from tarsy.api.alerts import intake, notifications
from tarsy.auth import permissions
from tarsy.ingest import alertmanager, grafana, plain
from tarsy.serve import openapi, strict

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        max_length=255,
        examples=["pager-4711"],
        description="Of your own choice: the same key and alert again make no second investigation.",
    ),
]


def routes(taking: intake.Intake, may: permissions.Access) -> APIRouter:
    """`POST /api/v1/alerts` and the webhooks."""
    router = strict.router(prefix="/api/v1", tag="alerts")

    @router.post(
        "/webhooks/alertmanager",
        operation_id="notifyOfAlerts",
        openapi_extra=openapi.body(alertmanager.schema()),
    )
    async def notify(request: Request, caller: permissions.Caller = Depends(may.notifies)) -> notifications.Receipt:
        """Take a notification of Alertmanager's webhook receiver, format 4."""
        return await notifications.take(taking, request, caller, sent_by="alertmanager")

    @router.post(
        "/webhooks/grafana",
        operation_id="notifyOfGrafanaAlerts",
        openapi_extra=openapi.body(grafana.schema()),
    )
    async def notify_of_grafana(
        request: Request, caller: permissions.Caller = Depends(may.notifies)
    ) -> notifications.Receipt:
        """Take a notification of Grafana's webhook contact point, format 1."""
        return await notifications.take(taking, request, caller, sent_by="grafana")

    @router.put(
        "/webhooks/grafana",
        operation_id="putGrafanaAlerts",
        openapi_extra=openapi.body(grafana.schema()),
    )
    async def put_of_grafana(
        request: Request, caller: permissions.Caller = Depends(may.notifies)
    ) -> notifications.Receipt:
        """Take the same from a contact point that is set to PUT."""
        return await notifications.take(taking, request, caller, sent_by="grafana")

    @router.post(
        "/alerts",
        operation_id="postAlert",
        status_code=HTTPStatus.ACCEPTED,
        openapi_extra=openapi.body(plain.schema()),
    )
    async def post(
        request: Request, key: Key = None, caller: permissions.Caller = Depends(may.submits)
    ) -> intake.Queued:
        """Take one alert; an Idempotency-Key makes a repeat harmless."""
        return await taking.alert(request, caller, key=key)

    return router

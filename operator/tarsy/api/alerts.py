"""The routes by which alerts come in; `intake` takes them."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter, Depends, Request

from tarsy.api import access, described, intake
from tarsy.ingest import plain


def routes(taking: intake.Intake, may: access.Access) -> APIRouter:
    """`POST /api/v1/alerts` and the webhooks."""
    router = APIRouter(prefix="/api/v1", tags=["alerts"])

    @router.post("/webhooks/alertmanager")
    async def notify(request: Request, caller: access.Caller = Depends(may.notifies)) -> intake.Receipt:
        """Take a notification of Alertmanager's webhook receiver, format 4."""
        return await taking.notification(request, caller)

    @router.post("/alerts", status_code=HTTPStatus.ACCEPTED, openapi_extra=described.body(plain.schema()))
    async def post(request: Request, caller: access.Caller = Depends(may.submits)) -> intake.Queued:
        """Take one alert; an Idempotency-Key makes a repeat harmless."""
        return await taking.alert(request, caller)

    return router

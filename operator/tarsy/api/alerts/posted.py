"""Posted alerts: `POST /api/v1/alerts` takes one alert in TARSy's own format."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Literal
from uuid import UUID

import pydantic
from fastapi import APIRouter, Depends, Header, Request
from pydantic import BaseModel

from tarsy.api.alerts import intake
from tarsy.auth import identities, permissions
from tarsy.config.check import chain_index
from tarsy.ingest import manifest, payload, plain
from tarsy.kube import objects
from tarsy.resources import investigations
from tarsy.serve import bodies, openapi, problems, strict
from tarsy.store.fleet import catalogue
from tarsy.store.intake import receipts

BODY_MAX = 6 * manifest.DATA_MAX + 64 * 1024
"""Bytes of a request: JSON may escape one byte of the alert's data to six, and there are other fields."""

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        max_length=255,
        examples=["pager-4711"],
        description="A key that you choose: the same key and alert again begin no second investigation.",
    ),
]

Depth = Annotated[
    int,
    Header(
        alias="Tarsy-Depth",
        ge=0,
        le=2**31 - 1,
        examples=[1],
        description="The number of investigations in a row that led to this alert, if an agent of one sends it: "
        f"over {investigations.DEPTH_MAX} the request is refused, which ends loops.",
    ),
]


class Queued(BaseModel):
    """The outcome of a posted alert."""

    alert_id: UUID
    """The investigation's id."""
    namespace: str
    name: str
    status: Literal["queued"] = "queued"
    message: str = "Alert queued for processing"
    """If the default chain takes the alert, this also names the default alert type and the alert's own type."""


def routes(alert_intake: intake.Intake, access: permissions.Access) -> APIRouter:
    """Return the route `POST /api/v1/alerts`."""
    router = strict.router(prefix="/api/v1", tag="alerts")

    @router.post(
        "/alerts",
        operation_id="postAlert",
        status_code=HTTPStatus.ACCEPTED,
        openapi_extra=openapi.body(plain.schema()),
    )
    async def post(
        request: Request,
        key: IdempotencyKey = None,
        depth: Depth = 0,
        destination: permissions.Destination = Depends(access.submit),
    ) -> Queued:
        """Take one alert; with an Idempotency-Key, a repeated request begins no second investigation."""
        if depth > investigations.DEPTH_MAX:
            message = f"{depth} investigations started one another: these TARSys call each other in a loop"
            raise problems.invalid([problems.Fault(place="header.Tarsy-Depth", message=message)])
        return await take(alert_intake, request, destination, key=key, depth=depth)

    return router


async def take(
    alert_intake: intake.Intake,
    request: Request,
    destination: permissions.Destination,
    *,
    key: str | None,
    depth: int = 0,
) -> Queued:
    """Create the investigation of a posted alert, once for each namespace and idempotency key."""
    caller = destination.caller
    body = await alert_intake.bodies.read(request, limit=BODY_MAX, message=str(manifest.TooLargeError()))
    try:
        alert = await bodies.process(plain.parse, body, size=len(body))
        draft = await bodies.process(
            manifest.draft_from_posted,
            alert,
            size=len(body),
            namespace=destination.namespace,
            author=caller.author,
            idempotency_key=key,
            mask=alert_intake.mask,
            depth=depth,
        )
        created = await _create(alert_intake, alert, draft, caller)
    except payload.PayloadError as error:
        raise problems.Problem(HTTPStatus.BAD_REQUEST, str(error)) from error
    except pydantic.ValidationError as error:
        if unknown := plain.unknown_names(error):
            faults = [problems.Fault(place="mcp", message=unknown)]
            raise problems.Problem(HTTPStatus.BAD_REQUEST, unknown, faults=faults) from error
        raise problems.invalid_body(error, plain.Alert) from error
    except manifest.TooLargeError as error:
        faults = [problems.Fault(place="data", message=str(error))]
        raise problems.Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(error), faults=faults) from error
    except chain_index.UnservedError as error:
        parameter = "mcp" if error.problem.reason == chain_index.SELECTION else "alert_type"
        faults = [problems.Fault(place=parameter, message=str(error)[: payload.MESSAGE_MAX])]
        raise problems.Problem(HTTPStatus.BAD_REQUEST, str(error), faults=faults) from error
    except objects.RefusedError as error:
        raise problems.Problem(HTTPStatus.BAD_REQUEST, str(error)) from error
    spec, metadata = created.investigation.spec, created.investigation.metadata
    if not draft.is_same_request(spec):
        reused = "it was used for another alert; use one key for each alert"
        raise problems.invalid([problems.Fault(place="header.Idempotency-Key", message=reused)])
    queued = Queued(alert_id=UUID(metadata.uid), namespace=metadata.namespace, name=metadata.name)
    if spec.alert_type != alert.alert_type:
        queued.message += f" as '{spec.alert_type}': no chain takes '{alert.alert_type}'"
    return queued


async def _create(
    alert_intake: intake.Intake, alert: plain.Alert, draft: manifest.Draft, caller: identities.Caller
) -> objects.Created:
    """Create the object, if the queue has a free slot, a chain takes the alert and its tool selection fits."""
    settings, database = alert_intake.settings(), alert_intake.database
    async with intake.unavailable_if_temporary():
        await alert_intake.ensure_free_slot()
        chains = await alert_intake.chains.list_for({alert.alert_type}, namespace=draft.namespace)
        alert_type = chains.index.effective_type(alert.alert_type, default=settings.default_alert_type)
        chain = chains.index.chain_for(alert_type)
        draft = draft.with_alert_type(alert_type)
        severity = alert.severity or ""
        if used_up := await alert_intake.refuse_alert(chain, namespace=draft.namespace, severity=severity):
            headers = {"Retry-After": str(used_up.seconds)}
            raise problems.Problem(HTTPStatus.TOO_MANY_REQUESTS, used_up.text, headers=headers)
        if alert.mcp is not None:
            chains.index.check_tool_selection(chain, alert.mcp, await catalogue.tools_by_server(database))
        values = intake.receipt_values(draft, caller)
        receipt = await receipts.issue(database, **values, window=settings.dedup_window)
        return await alert_intake.create(draft, receipt, chains, caller)

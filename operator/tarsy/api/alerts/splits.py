"""Splits: `POST /api/v1/investigations/{id}/alerts/{fingerprint}/investigate` takes an alert out of a wrong group."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel

from tarsy.api.alerts import intake
from tarsy.auth import permissions
from tarsy.config.check import chain_index
from tarsy.ingest import manifest
from tarsy.kube import objects
from tarsy.serve import openapi, problems, strict
from tarsy.store.intake import episodes, receipts, splits
from tarsy.views import rows

Fingerprint = Annotated[
    str,
    Path(
        pattern="^[0-9a-f]{16}$",
        max_length=16,
        examples=["5c1a9be07d3f42a6"],
        description="The fingerprint of an alert that has joined the investigation, 16 hex digits.",
    ),
]

log = logging.getLogger(__name__)


class SplitOff(BaseModel):
    """The investigation of an alert that was taken out of a group."""

    id: UUID
    namespace: str
    name: str
    split_from: rows.Split
    status: Literal["queued"] = "queued"


def routes(alert_intake: intake.Intake, may: permissions.Access) -> APIRouter:
    """Return the route `POST .../alerts/{fingerprint}/investigate`."""
    router = strict.router(prefix="/api/v1/investigations/{identity}", tag="investigations")

    @router.post(
        "/alerts/{fingerprint}/investigate",
        operation_id="investigateAlert",
        status_code=HTTPStatus.ACCEPTED,
        responses=openapi.problem_responses(HTTPStatus.CONFLICT),
    )
    async def investigate(fingerprint: Fingerprint, target: permissions.Target = Depends(may.retry)) -> SplitOff:
        """Take an alert out of its group, and begin an investigation of its own; a repeat returns that one."""
        try:
            async with intake.unavailable_if_temporary():
                begun = await _take_out(alert_intake, target, fingerprint)
        except chain_index.UnservedError as error:
            raise problems.Problem(HTTPStatus.CONFLICT, str(error)) from error
        except objects.RefusedError as error:
            raise problems.Problem(HTTPStatus.BAD_REQUEST, str(error)) from error
        return SplitOff(
            id=begun.id,
            namespace=target.namespace,
            name=begun.name,
            split_from=rows.Split(id=target.id, name=target.name),
        )

    return router


async def _take_out(alert_intake: intake.Intake, target: permissions.Target, fingerprint: str) -> episodes.Reference:
    """Return the investigation that the alert gets, or has got by an earlier request."""
    database, settings = alert_intake.database, alert_intake.settings()
    grouped = await splits.find(database, target.id, fingerprint)
    if isinstance(grouped, episodes.Reference):  # an earlier request may have ended before it was complete
        await splits.complete(database, grouped.id, split_from=target.id, fingerprint=fingerprint)
        return grouped
    if grouped is None:
        message = f"no alert of it has fingerprint {fingerprint}: GET .../alerts lists them"
        raise problems.Problem(HTTPStatus.NOT_FOUND, message)
    if grouped.began:
        message = "the investigation was made for this alert: take the other ones out, or retry it"
        raise problems.Problem(HTTPStatus.CONFLICT, message)
    alert = grouped.alert
    await alert_intake.ensure_free_slot()
    chains = await alert_intake.chains.list_for({alert.alert_type}, namespace=target.namespace)
    alert_type = chains.index.effective_type(alert.alert_type, default=settings.default_alert_type)
    chains.index.chain_for(alert_type)
    draft = manifest.draft_of_split(
        alert,
        namespace=target.namespace,
        alert_type=alert_type,
        author=target.caller.author,
        external_url=grouped.external_url,
        mask=alert_intake.mask,
    )
    rule = episodes.Rule(window=settings.dedup_window, cooldown=settings.cooldown)
    requested = receipts.values(**intake.receipt_values(draft, target.caller))
    receipt = await splits.issue(database, requested, split_from=target.id, rule=rule)
    if isinstance(receipt, episodes.Reference):
        begun = receipt
    else:
        created = await alert_intake.create(draft, receipt, chains, target.caller)
        metadata = created.investigation.metadata
        begun = episodes.Reference(id=UUID(metadata.uid), name=metadata.name)
        log.info(
            "alert taken out of its group by request",
            extra={
                "action": "split",
                "investigation": f"{metadata.namespace}/{metadata.name}",
                "uid": metadata.uid,
                "split_from": str(target.id),
            },
        )
    await splits.complete(database, begun.id, split_from=target.id, fingerprint=fingerprint)
    return begun

"""Retries: `POST /api/v1/investigations/{id}/retry` runs an ended investigation again, as a new one.

The new object has the original's alert and, unless the present chain is asked for, its chain snapshot. From a stage on,
the earlier stages' part of the log is copied with the admission. An object that names an original counts only with the
receipt that it gets here, because here the right to read the original is checked.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Literal
from uuid import UUID

import pydantic
from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel

from tarsy.api.alerts import intake, posted
from tarsy.auth import permissions
from tarsy.config.check import chain_index
from tarsy.ingest import manifest, payload, retries
from tarsy.kube import objects
from tarsy.serve import openapi, problems, strict
from tarsy.store.intake import originals, receipts
from tarsy.views import rows

BODY_MAX = 4096
"""Bytes of a request."""

log = logging.getLogger(__name__)


class Retried(BaseModel):
    """The investigation that runs an ended one again."""

    id: UUID
    namespace: str
    name: str
    retry_of: rows.RetryOf
    status: Literal["queued"] = "queued"


def routes(alert_intake: intake.Intake, may: permissions.Access) -> APIRouter:
    """Return the route `POST .../retry`."""
    router = strict.router(prefix="/api/v1/investigations/{identity}", tag="investigations")

    @router.post(
        "/retry",
        operation_id="retryInvestigation",
        status_code=HTTPStatus.ACCEPTED,
        openapi_extra=openapi.body(retries.schema()),
        responses=openapi.problem_responses(HTTPStatus.CONFLICT),
    )
    async def retry(
        request: Request, key: posted.IdempotencyKey = None, target: permissions.Target = Depends(may.retry)
    ) -> Retried:
        """Run an ended investigation again, from a stage on or whole; an Idempotency-Key makes a repeat harmless."""
        return await take(alert_intake, request, target, key=key)

    return router


async def take(
    alert_intake: intake.Intake, request: Request, target: permissions.Target, *, key: str | None
) -> Retried:
    """Create the investigation that runs `target` again, once for each idempotency key."""
    body = await alert_intake.bodies.read(request, limit=BODY_MAX, message=f"a retry has at most {BODY_MAX} bytes")
    try:
        requested = retries.parse(body)
    except payload.PayloadError as error:
        raise problems.Problem(HTTPStatus.BAD_REQUEST, str(error)) from error
    except pydantic.ValidationError as error:
        raise problems.invalid_body(error, retries.Request) from error
    try:
        created, draft = await _create(alert_intake, target, requested, key=key)
    except retries.NotRetriableError as error:
        if error.place:
            raise problems.invalid([problems.Fault(place=error.place, message=str(error))]) from error
        raise problems.Problem(HTTPStatus.CONFLICT, str(error)) from error
    except chain_index.UnservedError as error:
        raise problems.Problem(HTTPStatus.CONFLICT, str(error)) from error
    except objects.RefusedError as error:
        raise problems.Problem(HTTPStatus.BAD_REQUEST, str(error)) from error
    metadata = created.investigation.metadata
    if not draft.is_same_request(created.investigation.spec):
        reused = "it was used for another retry; give each its own"
        raise problems.invalid([problems.Fault(place="header.Idempotency-Key", message=reused)])
    log.info(
        "retried by request",
        extra={
            "action": "retried",
            "investigation": f"{metadata.namespace}/{metadata.name}",
            "uid": metadata.uid,
            "retry_of": str(target.id),
        },
    )
    return Retried(
        id=UUID(metadata.uid),
        namespace=metadata.namespace,
        name=metadata.name,
        retry_of=rows.RetryOf(id=target.id, name=target.name, from_stage=requested.from_stage),
    )


async def _create(
    alert_intake: intake.Intake, target: permissions.Target, requested: retries.Request, *, key: str | None
) -> tuple[objects.Created, manifest.Draft]:
    """Create the object, if the queue has a free slot and the original can be run again so."""
    async with intake.unavailable_if_temporary():
        await alert_intake.ensure_free_slot()
        original = await originals.load(alert_intake.database, target.id)
        if original is None:
            raise retries.NotRetriableError("its transcript was deleted: create a new investigation")
        is_current = requested.chain == "current"
        retries.check(original, from_stage=requested.from_stage, is_chain_current=is_current)
        chains = await alert_intake.chains.list_for({original.alert_type}, namespace=original.namespace)
        if is_current and original.chain:
            chains.index.chain_named(original.chain.name)
        elif is_current:
            chains.index.chain_for(original.alert_type)
        draft = manifest.draft_of_retry(
            original,
            from_stage=requested.from_stage,
            is_chain_current=is_current,
            author=target.caller.author,
            idempotency_key=key,
        )
        values = intake.receipt_values(draft, target.caller)
        receipt = await receipts.issue(alert_intake.database, **values, window=alert_intake.settings().dedup_window)
        return await alert_intake.create(draft, receipt, chains, target.caller, original=original), draft

"""Actions on an investigation: cancel it, or purge it, which deletes it and its transcript for good.

A cancel here has the same effect as `spec.cancel`, by the same statement. The audit records caller, action and address.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel

from tarsy import failpoints
from tarsy.api.investigations import reads
from tarsy.auth import permissions
from tarsy.kube import client, objects
from tarsy.serve import openapi, problems, strict
from tarsy.store.base import audit, databases
from tarsy.store.operations import purge
from tarsy.store.queue import work
from tarsy.store.reads import summaries

_REFUSED: dict[purge.Refusal, str] = {
    "running": "it has not ended yet: cancel it first (POST .../cancel)",
    "asked": "a question about it is open: cancel that first (POST .../chat/cancel), or wait for its answer",
}
"""The details of conflicts with a purge."""

log = logging.getLogger(__name__)


class Cancelled(BaseModel):
    """An investigation that was cancelled."""

    id: UUID
    namespace: str
    name: str
    phase: work.Cancelled
    """Cancelled: it has ended. Cancelling: its worker stops it; without a worker, it ends soon after its lease."""


@dataclass(frozen=True, kw_only=True)
class Actions:
    """Cancels and purges investigations."""

    cluster: client.Cluster
    database: databases.Database

    async def cancel(self, target: permissions.Target) -> Cancelled:
        """Cancel an investigation; raises a Problem if it has ended."""
        phase = await work.cancel(self.database, target.id, why="user", by=audited(target))
        if phase is None:
            summary = await summaries.load(self.database, target.id)
            if summary is None or await summaries.location(self.database, target.id) is None:
                raise reads.unknown_investigation(target.id)
            raise problems.Problem(HTTPStatus.CONFLICT, f"it has ended already: {summary.phase}")
        log.info("cancelled by request", extra={**log_fields(target, "cancelled"), "phase": phase})
        return Cancelled(id=target.id, namespace=target.namespace, name=target.name, phase=phase)

    async def purge(self, target: permissions.Target) -> None:
        """Purge an investigation, or complete a purge that was interrupted."""
        failpoints.hit("purge.commit.before")
        refusal = await purge.purge(self.database, target.id, by=audited(target))
        failpoints.hit("purge.commit.after")
        if refusal == "unknown":
            raise reads.unknown_investigation(target.id)
        if refusal is not None:
            raise problems.Problem(HTTPStatus.CONFLICT, _REFUSED[refusal])
        if target.has_namespace:  # otherwise the object was deleted with its namespace
            await objects.delete_investigation(
                self.cluster, namespace=target.namespace, name=target.name, uid=str(target.id)
            )
        failpoints.hit("purge.delete.after")
        await work.gone(self.database, target.id)
        log.info("purged", extra=log_fields(target, "purged"))


def audited(target: permissions.Target) -> audit.Caller:
    """Return the caller as the audit stores it."""
    return audit.Caller(who=target.caller.author, address=target.caller.address)


def log_fields(target: permissions.Target, action: str) -> dict[str, object]:
    """Return the fields of a log record about an action on an investigation."""
    return {"action": action, "investigation": f"{target.namespace}/{target.name}", "uid": str(target.id)}


def routes(actions: Actions, may: permissions.Access) -> APIRouter:
    """Return the routes `POST .../cancel` and `DELETE`."""
    router = strict.router(prefix="/api/v1/investigations/{identity}", tag="investigations")

    @router.post(
        "/cancel",
        operation_id="cancelInvestigation",
        status_code=HTTPStatus.ACCEPTED,
        responses=openapi.problem_responses(HTTPStatus.CONFLICT),
    )
    async def cancel(target: permissions.Target = Depends(may.update)) -> Cancelled:
        """Cancel the investigation, as `spec.cancel` does; while it is being stopped, another one changes nothing."""
        return await actions.cancel(target)

    @router.delete(
        "",
        operation_id="purgeInvestigation",
        status_code=HTTPStatus.NO_CONTENT,
        responses={204: {"description": "It is deleted."}, **openapi.problem_responses(HTTPStatus.CONFLICT)},
    )
    async def delete(
        *,
        target: permissions.Target = Depends(may.purge),
        purge: Annotated[bool, Query(description="Has to be true: a purge cannot be undone.")] = False,
    ) -> None:
        """Delete an ended investigation and its transcript for good, in the store and in the cluster.

        After a 503, or without an answer, send the request again: the purge continues.
        """
        if not purge:
            message = "this deletes the object and its transcript for good: confirm it with ?purge=true"
            raise problems.invalid([problems.Fault(place="query.purge", message=message)])
        await actions.purge(target)

    return router

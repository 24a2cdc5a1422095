"""The cancel of an investigation by request.

It has the same effect as `spec.cancel`, by the same statement. The audit records caller, action and address.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from http import HTTPStatus
from uuid import UUID

from fastapi import APIRouter, Depends
from pydantic import BaseModel

from tarsy.api.investigations import reads
from tarsy.auth import permissions
from tarsy.serve import openapi, problems, strict
from tarsy.store.base import audit, databases
from tarsy.store.queue import work
from tarsy.store.reads import summaries

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
    """Cancels investigations."""

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


def audited(target: permissions.Target) -> audit.Caller:
    """Return the caller as the audit stores it."""
    return audit.Caller(who=target.caller.author, address=target.caller.address)


def log_fields(target: permissions.Target, action: str) -> dict[str, object]:
    """Return the fields of a log record about an action on an investigation."""
    return {"action": action, "investigation": f"{target.namespace}/{target.name}", "uid": str(target.id)}


def routes(actions: Actions, may: permissions.Access) -> APIRouter:
    """Return the route `POST .../cancel`."""
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

    return router

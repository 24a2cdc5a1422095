"""Actions on an investigation: cancel it, or delete it and its transcript for good.

A cancel here does the same as `spec.cancel`, by the same statement. The audit records caller, action and address.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel

from tarsy import errors, failpoints
from tarsy.auth import permissions
from tarsy.kube import client, objects
from tarsy.serve import openapi, problems, strict
from tarsy.store.base import audit, databases
from tarsy.store.operations import purge
from tarsy.store.queue import work
from tarsy.store.reads import history

Purge = Annotated[bool, Query(description="Has to be true: nothing brings back what is deleted.")]

log = logging.getLogger(__name__)


def routes(actions: Actions, may: permissions.Access) -> APIRouter:
    """`POST .../cancel` and `DELETE`."""
    router = strict.router(prefix="/api/v1/investigations/{identity}", tag="investigations")

    @router.post(
        "/cancel",
        operation_id="cancelInvestigation",
        status_code=HTTPStatus.ACCEPTED,
        responses=openapi.problem_responses(HTTPStatus.CONFLICT),
    )
    async def cancel(target: permissions.Known = Depends(may.changes)) -> Cancelled:
        """Have the investigation stopped, as `spec.cancel` does; again is no harm while it is being stopped."""
        return await actions.cancel(target)

    @router.delete(
        "",
        operation_id="purgeInvestigation",
        status_code=HTTPStatus.NO_CONTENT,
        responses={HTTPStatus.NO_CONTENT: {"description": "It is deleted."}}
        | openapi.problem_responses(HTTPStatus.CONFLICT),
    )
    async def delete(*, target: permissions.Known = Depends(may.purges), purge: Purge = False) -> None:
        """Delete for good, in the store and in the cluster, an investigation that has ended and all that was said.

        After a 503, or no answer, send it again: it goes on where it was.
        """
        if not purge:
            message = "this deletes the object and its transcript for good: say so with ?purge=true"
            raise problems.invalid([problems.Fault(place="query.purge", message=message)])
        await actions.purge(target)

    return router


class Cancelled(BaseModel):
    """An investigation that was cancelled."""

    id: UUID
    namespace: str
    name: str
    phase: work.Cancelled
    """Cancelled: it has ended. Cancelling: its worker stops it, or if that has died, it ends soon after its lease."""


@dataclass(frozen=True, kw_only=True)
class Actions:
    """Does what is asked."""

    cluster: client.Cluster
    database: databases.Database

    async def cancel(self, target: permissions.Known) -> Cancelled:
        """Serve `POST /api/v1/investigations/{id}/cancel`."""
        async with _doing():
            phase = await work.cancel(self.database, target.id, why="user", by=audited(target))
            if phase is None:
                raise await self._ended(target)
        log.info("cancelled by request", extra=_about(target, "cancelled") | {"phase": phase})
        return Cancelled(id=target.id, namespace=target.namespace, name=target.name, phase=phase)

    async def _ended(self, target: permissions.Known) -> problems.Problem:
        """Why it cannot be cancelled, with the phase that it is in."""
        if await history.whereabouts(self.database, target.id) is None:
            return _refused("unknown", target)
        summary = await history.summary(self.database, target.id)
        assert summary  # noqa: S101 - what is somewhere has one
        return problems.Problem(HTTPStatus.CONFLICT, f"it has ended already: {summary.phase}")

    async def purge(self, target: permissions.Known) -> None:
        """Serve `DELETE /api/v1/investigations/{id}?purge=true`; again, where it was not done to its end."""
        async with _doing():
            failpoints.hit("purge.commit.before")
            refused = await purge.purge(self.database, target.id, by=audited(target))
            failpoints.hit("purge.commit.after")
            if refused is None:
                await self._delete(target)
        if refused is not None:
            raise _refused(refused, target)
        log.info("purged", extra=_about(target, "purged"))

    async def _delete(self, target: permissions.Known) -> None:
        """Delete its object, whose namespace may be gone with it."""
        if target.is_there:
            await objects.delete_investigation(
                self.cluster, namespace=target.namespace, name=target.name, uid=str(target.id)
            )
        failpoints.hit("purge.delete.after")
        await work.gone(self.database, target.id)


def audited(target: permissions.Known) -> audit.Caller:
    """Return the caller as the audit stores it."""
    return audit.Caller(who=target.caller.author, address=target.caller.address)


def _about(target: permissions.Known, action: str) -> dict[str, object]:
    return {"action": action, "investigation": f"{target.namespace}/{target.name}", "uid": str(target.id)}


def _refused(why: purge.Refusal, target: permissions.Known) -> problems.Problem:
    match why:
        case "unknown":
            return problems.Problem(HTTPStatus.NOT_FOUND, f"there is no investigation with id {target.id}")
        case "running":
            return problems.Problem(HTTPStatus.CONFLICT, "it has not ended yet: cancel it first (POST .../cancel)")
        case "asked":
            message = "a question about it is open: cancel that first (POST .../chat/cancel), or wait for its answer"
            return problems.Problem(HTTPStatus.CONFLICT, message)


@asynccontextmanager
async def _doing() -> AsyncIterator[None]:
    """Answer 503 for an action that fails for now."""
    try:
        yield
    except (errors.TemporaryError, objects.RefusedError) as error:
        raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}; ask again") from error

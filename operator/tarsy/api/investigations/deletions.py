"""Deletion of an ended investigation, its restoration, its purge, and holds, which prevent all of that.

Who may delete the object may do all of these. The audit records caller, action and address.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Annotated
from uuid import UUID

import pydantic
from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from tarsy import failpoints
from tarsy.api.investigations import actions, reads
from tarsy.auth import permissions
from tarsy.ingest import payload
from tarsy.kube import client, objects
from tarsy.serve import bodies, openapi, problems, strict
from tarsy.store.base import databases
from tarsy.store.operations import deletion, purge
from tarsy.store.queue import work
from tarsy.views import rows

BODY_MAX = 16 * 1024
"""Bytes; JSON may escape one character to twelve."""
_REFUSED: dict[deletion.Refusal, str] = {
    "running": "it has not ended yet: cancel it first (POST .../cancel)",
    "asked": "a question about it is open: cancel that first (POST .../chat/cancel), or wait for its answer",
}
"""The details of conflicts."""

log = logging.getLogger(__name__)


class Hold(BaseModel):
    """The request for a hold. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reason: Annotated[
        str,
        Field(min_length=1, max_length=1000, description="Shown to readers; masked before it is stored."),
        payload.refuse_blank("say why it has to be kept"),
    ]


class Kept(BaseModel):
    """The state of an investigation whose deletion was undone or prevented."""

    id: UUID
    namespace: str
    name: str
    deleted_at: datetime | None
    """The time of its deletion; null if it can be read."""
    purge_at: datetime | None
    """The time after which it is purged; null if it can be read, is held, or `retention.dry_run` keeps all."""
    hold: str | None
    """The reason of its hold; null without one."""


@dataclass(frozen=True, kw_only=True)
class Deletions:
    """Deletes, restores, holds and purges investigations."""

    cluster: client.Cluster
    database: databases.Database
    mask: Callable[[str], str]
    bodies: bodies.Bodies
    purge_after: Callable[[], timedelta | None]
    """Returns the time from a deletion to the purge, by the platform file in force; None in a dry run."""

    async def delete(self, target: permissions.Target) -> None:
        """Hide an investigation and delete its object."""
        _refuse(await deletion.delete(self.database, target.id, by=actions.audited(target)), target)
        await self._delete_object(target)
        log.info("deleted by request", extra=actions.log_fields(target, "deleted"))

    async def purge(self, target: permissions.Target) -> None:
        """Purge an investigation, or complete a purge that was interrupted."""
        failpoints.hit("purge.commit.before")
        refusal = await purge.purge(self.database, target.id, by=actions.audited(target))
        failpoints.hit("purge.commit.after")
        _refuse(refusal, target)
        await self._delete_object(target)
        log.info("purged", extra=actions.log_fields(target, "purged"))

    async def _delete_object(self, target: permissions.Target) -> None:
        if target.has_namespace:  # otherwise the object was deleted with its namespace
            await objects.delete_investigation(
                self.cluster, namespace=target.namespace, name=target.name, uid=str(target.id)
            )
        failpoints.hit("purge.delete.after")
        await work.gone(self.database, target.id)

    async def restore(self, target: permissions.Target) -> Kept:
        """Show a deleted investigation again."""
        _refuse(await deletion.restore(self.database, target.id, by=actions.audited(target)), target)
        log.info("restored by request", extra=actions.log_fields(target, "restored"))
        return await self.state_of(target)

    async def hold(self, request: Request, target: permissions.Target) -> Kept:
        """Hold an investigation for the reason in the request's body."""
        body = await self.bodies.read(request, limit=BODY_MAX)
        try:
            reason = self.mask(Hold.model_validate(payload.load(body)).reason)
        except payload.PayloadError as error:
            raise problems.Problem(HTTPStatus.BAD_REQUEST, str(error)) from error
        except pydantic.ValidationError as error:
            raise problems.invalid_body(error, Hold) from error
        _refuse(await deletion.hold(self.database, target.id, reason, by=actions.audited(target)), target)
        log.info("held by request", extra=actions.log_fields(target, "held"))
        return await self.state_of(target)

    async def release(self, target: permissions.Target) -> Kept:
        """End the hold of an investigation."""
        _refuse(await deletion.release(self.database, target.id, by=actions.audited(target)), target)
        log.info("released by request", extra=actions.log_fields(target, "released"))
        return await self.state_of(target)

    async def state_of(self, target: permissions.Target) -> Kept:
        """Return the state of an investigation, also of a deleted one."""
        state = await deletion.state(self.database, target.id)
        if state is None:  # purged meanwhile
            raise reads.unknown_investigation(target.id)
        deletion_of = rows.deletion(at=state.deleted_at, hold=state.hold, purge_after=self.purge_after())
        return Kept(
            id=target.id,
            namespace=target.namespace,
            name=target.name,
            deleted_at=state.deleted_at,
            purge_at=deletion_of and deletion_of.purge_at,
            hold=state.hold,
        )


def _refuse(refusal: deletion.Refusal | deletion.Held | None, target: permissions.Target) -> None:
    """Raise the Problem of a refusal, if there is one."""
    if refusal == "unknown":
        raise reads.unknown_investigation(target.id)
    if isinstance(refusal, deletion.Held):
        message = f"it is held: {refusal.reason} (DELETE .../hold ends the hold)"
        raise problems.Problem(HTTPStatus.CONFLICT, message)
    if refusal is not None:
        raise problems.Problem(HTTPStatus.CONFLICT, _REFUSED[refusal])


def routes(deletions: Deletions, may: permissions.Access) -> APIRouter:
    """Return the routes `DELETE`, `POST .../restore`, `POST .../hold` and `DELETE .../hold`."""
    router = strict.router(prefix="/api/v1/investigations/{identity}", tag="investigations")

    @router.delete(
        "",
        operation_id="deleteInvestigation",
        status_code=HTTPStatus.NO_CONTENT,
        responses={204: {"description": "It is deleted."}, **openapi.problem_responses(HTTPStatus.CONFLICT)},
    )
    async def delete(
        *,
        target: permissions.Target = Depends(may.delete),
        purge: Annotated[bool, Query(description="True deletes it for good: a purge cannot be undone.")] = False,
    ) -> None:
        """Delete an ended investigation: its transcript can be restored until it is purged, its object is deleted.

        With `purge`, both are deleted for good. After a 503, or without an answer, send the request again: the deletion
        continues.
        """
        await (deletions.purge(target) if purge else deletions.delete(target))

    @router.post("/restore", operation_id="restoreInvestigation")
    async def restore(target: permissions.Target = Depends(may.delete)) -> Kept:
        """Show a deleted investigation again. Its object does not come back, and no question about it is possible."""
        return await deletions.restore(target)

    @router.post("/hold", operation_id="holdInvestigation", openapi_extra=openapi.body(Hold.model_json_schema()))
    async def hold(request: Request, target: permissions.Target = Depends(may.delete)) -> Kept:
        """Keep an investigation, even one that runs or is deleted, from deletion and purge, until the hold ends."""
        return await deletions.hold(request, target)

    @router.delete("/hold", operation_id="releaseInvestigation")
    async def release(target: permissions.Target = Depends(may.delete)) -> Kept:
        """End the hold of an investigation."""
        return await deletions.release(target)

    return router

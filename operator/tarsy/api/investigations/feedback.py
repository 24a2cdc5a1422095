"""Feedback: what people say of an ended investigation, whether it was right and what the cause was.

Each person has one opinion, which another request replaces. The audit records caller, action, address and verdicts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated
from uuid import UUID

import pydantic
from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from tarsy.api.investigations import actions, reads
from tarsy.auth import permissions
from tarsy.ingest import payload
from tarsy.serve import bodies, openapi, problems, strict
from tarsy.store.base import databases
from tarsy.store.operations import feedback
from tarsy.store.reads import verdicts

CAUSE_MAX = 1000
NOTE_MAX = 4000
"""Characters of the two texts."""
BODY_MAX = 12 * (CAUSE_MAX + NOTE_MAX) + 1024
"""Bytes; JSON may escape one character to twelve."""

log = logging.getLogger(__name__)


class Feedback(BaseModel):
    """The caller's feedback on an investigation. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    verdict: Annotated[verdicts.Verdict, Field(description="Whether the investigation was right.")]
    cause: Annotated[
        str, Field(max_length=CAUSE_MAX, description="The true cause of the alert; masked before it is stored.")
    ] = ""
    note: Annotated[
        str, Field(max_length=NOTE_MAX, description="Whatever else readers should know; masked before it is stored.")
    ] = ""


class GivenFeedback(BaseModel):
    """The caller's feedback, as it is stored."""

    id: UUID
    """The investigation's."""
    namespace: str
    name: str
    author: str
    verdict: verdicts.Verdict
    cause: str
    note: str


@dataclass(frozen=True, kw_only=True)
class FeedbackIntake:
    """Takes and withdraws feedback."""

    database: databases.Database
    mask: Callable[[str], str]
    bodies: bodies.Bodies

    async def give(self, request: Request, target: permissions.Target) -> GivenFeedback:
        """Store the feedback in the request's body. Raises a Problem if the investigation has not ended."""
        body = await self.bodies.read(request, limit=BODY_MAX)
        try:
            sent = Feedback.model_validate(payload.load(body))
        except payload.PayloadError as error:
            raise problems.Problem(HTTPStatus.BAD_REQUEST, str(error)) from error
        except pydantic.ValidationError as error:
            raise problems.invalid_body(error, Feedback) from error
        by, cause, note = actions.audited(target), self.mask(sent.cause), self.mask(sent.note)
        refusal = await feedback.give(self.database, target.id, verdict=sent.verdict, cause=cause, note=note, by=by)
        _refuse(refusal, target)
        log.info("feedback given", extra={**actions.log_fields(target, "feedback"), "verdict": sent.verdict})
        return GivenFeedback(
            id=target.id,
            namespace=target.namespace,
            name=target.name,
            author=by.who,
            verdict=sent.verdict,
            cause=cause,
            note=note,
        )

    async def withdraw(self, target: permissions.Target) -> None:
        """Delete the caller's feedback. Raises a Problem if the investigation has not ended."""
        _refuse(await feedback.withdraw(self.database, target.id, by=actions.audited(target)), target)
        log.info("feedback withdrawn", extra=actions.log_fields(target, "feedback_withdrawn"))


def _refuse(refusal: feedback.Refusal | None, target: permissions.Target) -> None:
    """Raise the Problem of a refusal, if there is one."""
    if refusal == "unknown":
        raise reads.unknown_investigation(target.id)
    if refusal == "running":
        raise problems.Problem(HTTPStatus.CONFLICT, "it has not ended yet: give feedback after its end")


def routes(intake: FeedbackIntake, may: permissions.Access) -> APIRouter:
    """Return the routes `POST .../feedback` and `DELETE .../feedback`."""
    router = strict.router(prefix="/api/v1/investigations/{identity}/feedback", tag="investigations")

    @router.post(
        "",
        operation_id="giveFeedback",
        openapi_extra=openapi.body(Feedback.model_json_schema()),
        responses=openapi.problem_responses(HTTPStatus.CONFLICT),
    )
    async def give(request: Request, target: permissions.Target = Depends(may.give_feedback)) -> GivenFeedback:
        """Say whether an ended investigation was right. It replaces the caller's earlier feedback."""
        return await intake.give(request, target)

    @router.delete(
        "",
        operation_id="withdrawFeedback",
        status_code=HTTPStatus.NO_CONTENT,
        responses={
            204: {"description": "The caller has no feedback on it."},
            **openapi.problem_responses(HTTPStatus.CONFLICT),
        },
    )
    async def withdraw(target: permissions.Target = Depends(may.give_feedback)) -> None:
        """Withdraw the caller's feedback on an investigation; that of others stays."""
        await intake.withdraw(target)

    return router

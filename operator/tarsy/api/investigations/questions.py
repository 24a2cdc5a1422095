"""Questions about ended investigations: each is queued as a run of its own before the request is answered.

Clients read the answer from the investigation later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from uuid import UUID

import pydantic
from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel

from tarsy.api.investigations import actions, reads
from tarsy.auth import permissions
from tarsy.ingest import payload, question
from tarsy.kube import client, objects
from tarsy.serve import bodies, openapi, problems, strict
from tarsy.store.base import databases
from tarsy.store.queue import questions, work

BODY_MAX = 12 * question.CHARACTERS_MAX + 1024
"""Bytes; JSON may escape one character to twelve."""

log = logging.getLogger(__name__)


class Question(BaseModel):
    """A question that is open."""

    id: UUID
    """The investigation's."""
    namespace: str
    name: str
    run: int
    """The number of its run: the answer is in `runs` and in the timeline."""


class StoppedQuestion(Question):
    """A question that was cancelled."""

    phase: work.Cancelled
    """Cancelled: it has ended. Cancelling: its worker stops it; without a worker, it ends soon after its lease."""


@dataclass(frozen=True, kw_only=True)
class Questions:
    """Queues and cancels questions."""

    cluster: client.Cluster
    database: databases.Database
    max_queued: int
    mask: Callable[[str], str]
    bodies: bodies.Bodies

    async def ask(self, request: Request, target: permissions.Target) -> Question:
        """Queue the question in the request's body. Raises a Problem if the investigation takes no question now."""
        masked = await self._masked_question(request)
        subject = await questions.subject(self.database, target.id)
        if subject is None:
            raise self._refused("unknown", target.id)
        if subject.gone:
            raise self._refused("gone", target.id)
        if subject.chain is None:
            raise problems.Problem(HTTPStatus.CONFLICT, "it was refused and never ran: see its message")
        if not subject.chain.takes_questions:
            message = f"chain {subject.chain_name!r} takes no questions (spec.chat.enabled: false)"
            raise problems.Problem(HTTPStatus.FORBIDDEN, message)
        # The cluster is asked, because the watch may not have reported a deletion yet.
        uid = await objects.get_investigation_uid(self.cluster, namespace=subject.namespace, name=subject.name)
        if uid != str(target.id):
            await work.gone(self.database, target.id)
            raise self._refused("gone", target.id)
        by = actions.audited(target)
        run = await questions.ask(self.database, target.id, masked, max_queued=self.max_queued, by=by)
        if isinstance(run, str):
            raise self._refused(run, target.id)
        log_fields = {**actions.log_fields(target, "asked"), "run": run, "characters": len(masked)}
        log.info("question asked", extra=log_fields)
        return Question(id=target.id, namespace=target.namespace, name=target.name, run=run)

    async def cancel(self, target: permissions.Target) -> StoppedQuestion:
        """Cancel the open question. Raises a Problem if none is open."""
        cancelled = await questions.cancel(self.database, target.id, by=actions.audited(target))
        match cancelled:
            case "unknown":
                raise self._refused("unknown", target.id)
            case "none":
                raise problems.Problem(HTTPStatus.CONFLICT, "no question about it is open")
            case questions.Cancelled(run=run, phase=phase):
                return StoppedQuestion(id=target.id, namespace=target.namespace, name=target.name, run=run, phase=phase)

    async def _masked_question(self, request: Request) -> str:
        too_large = f"a question has at most {question.CHARACTERS_MAX} characters"
        body = await self.bodies.read(request, limit=BODY_MAX, message=too_large)
        try:
            return await bodies.process(question.parse, body, size=len(body), mask=self.mask)
        except payload.PayloadError as error:
            raise problems.Problem(HTTPStatus.BAD_REQUEST, str(error)) from error
        except pydantic.ValidationError as error:
            raise problems.invalid_body(error, question.Question) from error

    def _refused(self, refusal: questions.Refusal, identity: UUID) -> problems.Problem:
        match refusal:
            case "unknown":
                return reads.unknown_investigation(identity)
            case "gone":
                return problems.Problem(HTTPStatus.GONE, "its object was deleted: no question about it is possible")
            case "running":
                return problems.Problem(HTTPStatus.CONFLICT, "it has not ended yet: ask after its end")
            case "asked":
                return problems.Problem(HTTPStatus.CONFLICT, "another question about it is open: wait for its answer")
            case "full":
                message = f"{self.max_queued} investigations are queued already; try again"
                return problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, message)


def routes(question_intake: Questions, may: permissions.Access) -> APIRouter:
    """Return the routes `POST .../chat` and `POST .../chat/cancel`."""
    router = strict.router(prefix="/api/v1/investigations/{identity}/chat", tag="investigations")

    @router.post(
        "",
        operation_id="askQuestion",
        status_code=HTTPStatus.ACCEPTED,
        openapi_extra=openapi.body(question.schema()),
        responses=openapi.problem_responses(HTTPStatus.CONFLICT, HTTPStatus.GONE),
    )
    async def ask(request: Request, target: permissions.Target = Depends(may.update)) -> Question:
        """Ask about an investigation that has ended; read the answer from the investigation."""
        return await question_intake.ask(request, target)

    @router.post(
        "/cancel",
        operation_id="cancelQuestion",
        status_code=HTTPStatus.ACCEPTED,
        responses=openapi.problem_responses(HTTPStatus.CONFLICT),
    )
    async def cancel(target: permissions.Target = Depends(may.update)) -> StoppedQuestion:
        """Cancel the open question."""
        return await question_intake.cancel(target)

    return router

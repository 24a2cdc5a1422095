"""Questions come in: a run of its own for each, queued before the answer goes out; the answer is read later."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from uuid import UUID

import pydantic
from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel

from tarsy import errors
from tarsy.api.investigations import actions
from tarsy.auth import permissions
from tarsy.ingest import payload, question
from tarsy.kube import client, objects
from tarsy.serve import bodies, openapi, problems, strict
from tarsy.store.base import databases
from tarsy.store.queue import questions, work
from tarsy.store.reads import snapshots

BODY_MAX = 12 * question.CHARACTERS_MAX + 1024  # bytes; JSON may escape one character to twelve

log = logging.getLogger(__name__)


def routes(asking: Chat, may: permissions.Access) -> APIRouter:
    """`POST .../chat` and `POST .../chat/cancel`."""
    router = strict.router(prefix="/api/v1/investigations/{identity}/chat", tag="investigations")
    accepted = HTTPStatus.ACCEPTED

    @router.post(
        "",
        operation_id="askQuestion",
        status_code=accepted,
        openapi_extra=openapi.body(question.schema()),
        responses=openapi.problem_responses(HTTPStatus.CONFLICT, HTTPStatus.GONE),
    )
    async def ask(request: Request, target: permissions.Known = Depends(may.changes)) -> Question:
        """Ask about an investigation that has ended; the answer is to be read there."""
        return await asking.ask(request, target)

    @router.post(
        "/cancel",
        operation_id="cancelQuestion",
        status_code=accepted,
        responses=openapi.problem_responses(HTTPStatus.CONFLICT),
    )
    async def cancel(target: permissions.Known = Depends(may.changes)) -> StoppedQuestion:
        """Have the question that is open stopped."""
        return await asking.cancel(target)

    return router


class Question(BaseModel):
    """A question that is open."""

    id: UUID
    """The investigation's."""
    namespace: str
    name: str
    run: int
    """Which of the investigation's runs it is: its answer is in `runs` and in the timeline."""


class StoppedQuestion(Question):
    """A question that was cancelled."""

    phase: work.Cancelled
    """Cancelled: it has ended. Cancelling: its worker stops it, or if that has died, it ends soon after its lease."""


@dataclass(frozen=True, kw_only=True)
class Chat:
    """Takes questions."""

    cluster: client.Cluster
    database: databases.Database
    max_queued: int
    mask: Callable[[str], str]

    async def ask(self, request: Request, target: permissions.Known) -> Question:
        """Serve `POST /api/v1/investigations/{id}/chat`."""
        identity = target.id
        masked = await self._question(request)
        async with _keeping():
            about = await self._about(identity)
            if about.chain is None:
                raise problems.Problem(HTTPStatus.CONFLICT, "it was refused and never ran: see its message")
            if not about.chain.takes_questions:
                message = f"chain {about.chain_name!r} takes no questions (spec.chat.enabled: false)"
                raise problems.Problem(HTTPStatus.FORBIDDEN, message)
            await self._require_object(identity, about)
            run = await questions.ask(
                self.database, identity, masked, max_queued=self.max_queued, by=actions.audited(target)
            )
        if isinstance(run, str):
            raise self._refused(run, identity)
        log_fields = {
            "action": "asked",
            "investigation": f"{target.namespace}/{target.name}",
            "uid": str(identity),
            "run": run,
        }
        log.info("question asked", extra=log_fields | {"characters": len(masked)})
        return _queued(target, run=run)

    async def cancel(self, target: permissions.Known) -> StoppedQuestion:
        """Serve `POST /api/v1/investigations/{id}/chat/cancel`."""
        async with _keeping():
            cancelled = await questions.cancel(self.database, target.id, by=actions.audited(target))
        match cancelled:
            case "unknown":
                raise self._refused("unknown", target.id)
            case "none":
                raise problems.Problem(HTTPStatus.CONFLICT, "no question about it is open")
            case questions.Cancelled():
                return StoppedQuestion(**dict(_queued(target, run=cancelled.run)), phase=cancelled.phase)

    async def _question(self, request: Request) -> str:
        too_large = f"a question has at most {question.CHARACTERS_MAX} characters"
        body = await bodies.read(request, limit=BODY_MAX, message=too_large)
        try:
            return await bodies.aside(question.parse, body, size=len(body), mask=self.mask)
        except payload.PayloadError as error:
            raise problems.Problem(HTTPStatus.BAD_REQUEST, str(error)) from error
        except pydantic.ValidationError as error:
            raise problems.of_body(error, question.Question) from error

    async def _about(self, identity: UUID) -> questions.Subject:
        about = await questions.subject(self.database, identity)
        if about is None:
            raise self._refused("unknown", identity)
        if about.gone:
            raise self._refused("gone", identity)
        return about

    async def _require_object(self, identity: UUID, about: questions.Subject) -> None:
        """Look at the cluster itself: a deletion may not have been noticed yet."""
        uid = await objects.uid_of_investigation(self.cluster, namespace=about.namespace, name=about.name)
        if uid != str(identity):
            await work.gone(self.database, identity)
            raise self._refused("gone", identity)

    def _refused(self, why: questions.Refusal, identity: UUID) -> problems.Problem:
        match why:
            case "unknown":
                return problems.Problem(HTTPStatus.NOT_FOUND, f"there is no investigation with id {identity}")
            case "gone":
                return problems.Problem(HTTPStatus.GONE, "its object was deleted: nothing more can be asked about it")
            case "running":
                return problems.Problem(HTTPStatus.CONFLICT, "it has not ended yet: ask when it has")
            case "asked":
                return problems.Problem(HTTPStatus.CONFLICT, "another question about it is open: wait for its answer")
            case "full":
                message = f"{self.max_queued} investigations are queued already; ask again"
                return problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, message)


def _queued(target: permissions.Known, *, run: int) -> Question:
    return Question(id=target.id, namespace=target.namespace, name=target.name, run=run)


@asynccontextmanager
async def _keeping() -> AsyncIterator[None]:
    """Answer 503 for a question that cannot be checked or stored now."""
    try:
        yield
    except (errors.TemporaryError, objects.RefusedError, snapshots.UnreadableError) as error:
        raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}; ask again") from error

"""The paths of earlier clients. Rights and problems are those of the present paths."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter, Depends, Request, Response

from tarsy.api.alerts import intake, posted
from tarsy.api.compat import history, live_updates, sessions
from tarsy.api.investigations import actions, lists
from tarsy.auth import permissions
from tarsy.ingest import plain
from tarsy.live import hubs
from tarsy.serve import answers, openapi, strict
from tarsy.store.base import databases


def register(
    *,
    hub: hubs.Hub,
    alert_intake: intake.Intake,
    investigation_actions: actions.Actions,
    investigation_lists: lists.Lists,
    responder: answers.Responder,
    database: databases.Database,
    may: permissions.Access,
) -> APIRouter:
    """Add the translation of live events to `hub`, and return the routes."""
    hub.add_translation(live_updates.SessionTranslation())
    router = strict.router(tag="compat")

    @router.post(
        "/alerts",
        operation_id="submitAlert",
        status_code=HTTPStatus.ACCEPTED,
        openapi_extra=openapi.body(plain.schema()),
    )
    async def submit(
        request: Request,
        key: posted.IdempotencyKey = None,
        destination: permissions.Destination = Depends(may.submit),
    ) -> posted.Queued:
        """Take one alert, as `/api/v1/alerts` does."""
        return await posted.take(alert_intake, request, destination, key=key)

    @router.get("/processing-status/{identity}", operation_id="readProcessingStatus")
    async def processing_status(target: permissions.Target = Depends(may.read)) -> sessions.ProcessingStatus:
        """Return the progress of an alert's investigation, by the `alert_id` of the answer to the alert."""
        return await sessions.read_processing_status(database, target.id)

    @router.get("/api/v1/sessions/{identity}", operation_id="readSession", response_model=sessions.AlertSession)
    async def session(target: permissions.Target = Depends(may.read)) -> Response:
        """Return an investigation and its state, with its stages and their agents."""
        return await responder.respond(lambda: sessions.read(database, target.id))

    @router.post(
        "/api/v1/sessions/{identity}/cancel",
        operation_id="cancelSession",
        status_code=HTTPStatus.ACCEPTED,
        responses=openapi.problem_responses(HTTPStatus.CONFLICT),
    )
    async def cancel(target: permissions.Target = Depends(may.update)) -> sessions.CancelledSession:
        """Cancel the investigation; while it is being stopped, a repeated cancel changes nothing."""
        return await sessions.cancel(investigation_actions, target)

    @router.get(
        "/api/v1/history/sessions",
        operation_id="listSessions",
        responses=openapi.problem_responses(HTTPStatus.NOT_FOUND),
    )
    async def session_list(
        scope: permissions.Scope = Depends(may.list_in),
        page: history.Page = 1,
        page_size: history.PageSize = history.PAGE_DEFAULT,
        status: history.Statuses = None,
        alert_type: lists.AlertType = None,
        search: history.Search = None,
        start_date_us: history.Start = None,
        end_date_us: history.End = None,
    ) -> history.DashboardSessionsList:
        """List the investigations with their chains, newest first, by page numbers."""
        query = history.query(
            scope,
            session_statuses=status,
            alert_type=alert_type,
            start_us=start_date_us,
            end_us=end_date_us,
        )
        return await history.read_list(database, investigation_lists, query, search=search, page=page, size=page_size)

    @router.get(
        "/api/v1/history/sessions/{identity}",
        operation_id="readSessionHistory",
        response_model=history.DashboardSessionDetail,
    )
    async def session_history(target: permissions.Target = Depends(may.read)) -> Response:
        """Return an investigation with its stages, their results, and its events."""
        return await responder.respond(lambda: history.read(database, target.id))

    return router

"""The page of an investigation, its fragments for a page that is open, and the page of one event."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from tarsy.api import app
from tarsy.api.investigations import deletions, feedback, reads
from tarsy.auth import parameters, permissions
from tarsy.ingest import question
from tarsy.serve import problems
from tarsy.web import investigation_layout, rendering

EVENTS = 200
"""Events on one page."""
HELD_BYTES = 2 * 1024 * 1024
"""Bytes that a page counts as while it is made."""
EventId = Annotated[str, Query(pattern=r"^[\w./-]+$", max_length=200, description="The id of an event.")]


def routes(services: app.Services, renderer: rendering.Renderer) -> APIRouter:
    """Return the routes of the pages of an investigation."""
    router = APIRouter(prefix="/investigations/{identity}", route_class=renderer.route_class(), redirect_slashes=False)
    database, may = services.database, services.access

    async def read(target: permissions.Target, after: int) -> dict[str, Any]:
        services.responder.hold(HELD_BYTES)
        timeline = await reads.read_timeline(database, target.id, after=after, limit=EVENTS)
        # It is read after its events, so that it has their authors.
        investigation = await reads.read(database, target.id, mask=services.mask)
        laid_out = await asyncio.to_thread(investigation_layout.layout, investigation, timeline.events)
        own = (person for person in investigation.feedback_by_person if person.author == target.caller.author)
        return {
            "page": laid_out,
            "shown": investigation,
            "mine": next(own, None),
            "after": after,
            "last": timeline.last,
            "more": timeline.more,
        }

    async def readable(request: Request, identity: parameters.InvestigationId) -> permissions.Target | deletions.Kept:
        """Return the investigation, or its state if it is deleted and the reader may restore it."""
        try:
            return await may.read(request, identity)
        except problems.Problem as problem:
            if problem.status is not HTTPStatus.NOT_FOUND:
                raise
            try:
                state = await services.deletions.state_of(await may.delete(request, identity))
            except problems.Problem:
                raise problem from None
            if state.deleted_at is None:
                raise
            return state

    @router.get("", include_in_schema=False)
    async def page(
        request: Request,
        target: permissions.Target | deletions.Kept = Depends(readable),
        after: reads.After = 0,
    ) -> Response:
        """Show an investigation with the events after entry `after`; of a deleted one, how to restore it."""
        if isinstance(target, deletions.Kept):
            user = (await may.delete(request, str(target.id))).caller
            return renderer.page(
                request, "investigation_deleted.html", section=None, user=user, title=target.name, shown=target
            )
        content = await read(target, after)
        content["may_delete"] = await may.may_delete(request, target)
        return await asyncio.to_thread(
            renderer.page,
            request,
            "investigation.html",
            section=None,
            user=target.caller,
            title=target.name,
            question_max=question.CHARACTERS_MAX,
            cause_max=feedback.CAUSE_MAX,
            note_max=feedback.NOTE_MAX,
            looks=investigation_layout.LOOKS,
            **content,
        )

    @router.get("/alerts", include_in_schema=False)
    async def alerts(
        request: Request,
        target: permissions.Target = Depends(may.read),
        after: Annotated[int, Query(ge=-1, le=2**63 - 1)] = -1,
    ) -> Response:
        """Show the alerts of an investigation, a page of them, with a button that takes one out of its group."""
        alerts = await reads.read_alerts(database, target.id, after=after, limit=reads.ALERTS_MAX)
        return await asyncio.to_thread(
            renderer.page,
            request,
            "investigation_alerts.html",
            section=None,
            user=target.caller,
            title=f"Alerts of {target.name}",
            target=target,
            alerts=alerts,
            after=after,
        )

    @router.get("/fragment", include_in_schema=False)
    async def fragment(
        request: Request, target: permissions.Target = Depends(may.read), after: reads.After = 0
    ) -> Response:
        """Return the parts of the page that change, with the events that changed after entry `after`."""
        content = await read(target, after)
        content["may_delete"] = await may.may_delete(request, target)
        return await asyncio.to_thread(renderer.page, request, "investigation_fragment.html", **content)

    @router.get("/event", include_in_schema=False)
    async def event(
        request: Request,
        id: EventId,  # noqa: A002 - its name
        target: permissions.Target = Depends(may.read),
        after: Annotated[int | None, Query(ge=0, le=2**63 - 1)] = None,
    ) -> Response:
        """Show one event with its whole content; that of a tool call with its result."""
        services.responder.hold(HELD_BYTES)
        events = await reads.read_event(database, target.id, id, after=after)
        investigation = await reads.read(database, target.id, mask=services.mask)
        services.responder.hold(sum(len(each.content) for each in events))
        lines = [investigation_layout.line(investigation, each, limit=None) for each in events]
        return await asyncio.to_thread(
            renderer.page,
            request,
            "investigation_event.html",
            section=None,
            user=target.caller,
            title=target.name,
            shown=investigation,
            lines=lines,
            execution=next((each for each in investigation.executions if each.id == events[0].execution), None),
        )

    return router

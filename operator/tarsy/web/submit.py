"""The pages that submit an alert: its form, then the progress and the result of its investigation."""

from __future__ import annotations

import asyncio
import uuid
from http import HTTPStatus
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Depends, Query, Request, Response

from tarsy.api import app
from tarsy.api.alerts import matches
from tarsy.api.investigations import reads
from tarsy.auth import permissions
from tarsy.resources import chains, investigations
from tarsy.serve import problems
from tarsy.views import system
from tarsy.views.investigations import Facts
from tarsy.web import rendering

SUGGESTED_MAX = 200
"""Alert types that the form suggests."""
SEVERITIES = ("critical", "warning", "info")
"""Severities that the form suggests; any other may be typed."""
HELD_BYTES = 2 * 1024 * 1024
"""Bytes that a page with a result counts as while it is made."""
AlertType = Annotated[str, Query(max_length=253, description="The alert type that the form begins with.")]
Namespace = Annotated[str, Query(max_length=63, description="The namespace that the form begins with.")]


def routes(services: app.Services, renderer: rendering.Renderer) -> APIRouter:
    """Return the routes `/submit` and `/submitted/{identity}`."""
    router = APIRouter(route_class=renderer.route_class(), redirect_slashes=False)
    intake, access = services.alert_intake, services.access

    async def match(alert_type: str, namespace: str) -> dict[str, Any]:
        matched = await matches.match_chain(intake, alert_type, namespace=namespace) if alert_type.strip() else None
        return {"match": matched, "native_tools": get_args(chains.NativeTool)}

    @router.get("/submit", include_in_schema=False)
    async def form(
        request: Request,
        alert_type: AlertType = "",
        namespace: Namespace = "",
        scope: permissions.Scope = Depends(access.submit_in),
    ) -> Response:
        """Show the form of an alert, with the namespaces in which the caller may submit one."""
        names = sorted(scope.namespaces)
        chosen = next((name for name in (namespace, intake.namespace) if name in names), names[0])
        listed = await intake.chains.list_for((), namespace=chosen)
        return renderer.page(
            request,
            "submit.html",
            title="Submit an alert",
            section="Submit",
            user=scope.caller,
            namespaces=names,
            namespace=chosen,
            alert_type=alert_type,
            alert_types=[summary.alert_type for summary in system.alert_types(listed.index).items[:SUGGESTED_MAX]],
            severities=SEVERITIES,
            key=uuid.uuid4(),
            **await match(alert_type, chosen),
        )

    @router.get("/submit/match", include_in_schema=False)
    async def matched(
        request: Request,
        alert_type: AlertType = "",
        destination: permissions.Destination = Depends(access.match_chains),
    ) -> Response:
        """Return the parts of the form that depend on the chain."""
        return renderer.page(request, "submit_match.html", **await match(alert_type, destination.namespace))

    async def without_script(request: Request) -> Response:
        message = (
            "submitting needs JavaScript: allow it for this page, go back and submit again; or POST /api/v1/alerts"
        )
        return renderer.problem(request, problems.Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message))

    # A plain route, which needs no right and no JSON: nothing of the request is read.
    router.add_route("/submit", without_script, methods=["POST"], include_in_schema=False)

    async def progress(target: permissions.Target) -> dict[str, Any]:
        services.responder.hold(HELD_BYTES)
        investigation = await reads.read(intake.database, target.id, mask=services.mask)
        return {"investigation": investigation, "step": current_step(investigation), "heading": heading(investigation)}

    @router.get("/submitted/{identity}", include_in_schema=False)
    async def submitted(request: Request, target: permissions.Target = Depends(access.read)) -> Response:
        """Show the progress of an investigation, or its result."""
        content = await progress(target)
        return await asyncio.to_thread(
            renderer.page, request, "submitted.html", title=target.name, section="Submit", user=target.caller, **content
        )

    @router.get("/submitted/{identity}/state", include_in_schema=False)
    async def state(request: Request, target: permissions.Target = Depends(access.read)) -> Response:
        """Return the part of the page that changes."""
        content = await progress(target)
        return await asyncio.to_thread(renderer.page, request, "submitted_state.html", **content)

    return router


def heading(investigation: Facts) -> str:
    """Return how the processing of an alert stands, in the words of the former development pages."""
    match investigation.phase:
        case "Completed" | "CompletedWithErrors":
            return "Processing Complete"
        case phase if phase in get_args(investigations.EndedPhase):
            return "Processing Failed"
        case _:
            return "Processing Alert..."


def current_step(investigation: Facts) -> str:
    """Return what an open investigation does now; "" once it has ended."""
    match investigation.phase:
        case "Queued":
            return "Waiting for a worker"
        case "Waiting":
            return "Waiting for something outside"
        case "Suspended":
            return "Suspended: it goes on once `spec.suspend` is false again"
        case "Cancelling":
            return "Being cancelled"
        case "Running" if investigation.current_stage in investigation.stage_names:
            number = investigation.stage_names.index(str(investigation.current_stage)) + 1
            return f"Stage {number} of {len(investigation.stage_names)}: {investigation.current_stage}"
        case "Running" if investigation.stages and len(investigation.stages) == len(investigation.stage_names):
            return "Writing the summary"
        case "Running":
            return "Beginning"
        case _:
            return ""

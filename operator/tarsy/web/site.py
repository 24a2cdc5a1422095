"""The site: all pages and their static files, added to the API's application."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import Request, Response
from starlette import exceptions

from tarsy.api import app
from tarsy.serve import problems
from tarsy.web import assets, by_name, investigation, lists, rendering, sign_in, submit, system, traces


def add(application: app.Application) -> None:
    """Add the pages to the application."""
    files = assets.Assets()
    renderer = rendering.Renderer(files)
    application.include_router(assets.routes(files))
    services = application.services
    application.include_router(sign_in.routes(services.access, renderer))
    application.include_router(lists.routes(services.investigation_lists, services.access, renderer))
    application.include_router(investigation.routes(services, renderer))
    application.include_router(by_name.routes(services.access, renderer))
    application.include_router(submit.routes(services, renderer))
    application.include_router(system.routes(services, renderer))
    application.include_router(traces.routes(services, renderer))

    async def answer_unrouted(request: Request, error: Exception) -> Response:
        """Answer an unknown path or method: a browser gets a page, programs and paths of the API get JSON."""
        problem = problems.problem_of(request, error)
        accepts_html = "text/html" in request.headers.get("Accept", "")
        if not accepts_html or request.url.path.startswith("/api/"):
            return problems.response(problem)
        if problem.status is HTTPStatus.NOT_FOUND:
            problem = problems.Problem(
                HTTPStatus.NOT_FOUND, f"there is no page {request.url.path[: problems.ECHOED_MAX]}"
            )
        return renderer.problem(request, problem)

    application.add_exception_handler(exceptions.HTTPException, answer_unrouted)

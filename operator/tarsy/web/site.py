"""The site: all pages and their static files, added to the API's application."""

from __future__ import annotations

from tarsy.api import app
from tarsy.web import assets, investigation, lists, rendering, sign_in, submit, system, traces


def add(application: app.Application) -> None:
    """Add the pages to the application."""
    files = assets.Assets()
    renderer = rendering.Renderer(files)
    application.include_router(assets.routes(files))
    services = application.services
    application.include_router(sign_in.routes(services.access, renderer))
    application.include_router(lists.routes(services.investigation_lists, services.access, renderer))
    application.include_router(investigation.routes(services, renderer))
    application.include_router(submit.routes(services, renderer))
    application.include_router(system.routes(services, renderer))
    application.include_router(traces.routes(services, renderer))

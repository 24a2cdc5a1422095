"""The site: all pages and their static files, added to the API's application."""

from __future__ import annotations

from tarsy.api import app
from tarsy.web import assets, rendering, sign_in


def add(application: app.Application) -> None:
    """Add the pages to the application."""
    files = assets.Assets()
    renderer = rendering.Renderer(files)
    application.include_router(assets.routes(files))
    application.include_router(sign_in.routes(application.services.access, renderer))

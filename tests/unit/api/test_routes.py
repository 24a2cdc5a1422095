"""The application's routes: each begins with the application's own check, and is analysed once, before it is served."""

from __future__ import annotations

import pytest
from fastapi import routing
from tarsy.api import app
from tarsy.mcp_endpoint import endpoint
from tarsy.web import site


@pytest.fixture
def application() -> app.Application:
    made = app.bare()
    site.add(made)
    endpoint.add(made)
    return made


def test_every_route_first_checks_for_local_callers(application: app.Application) -> None:
    routes = [route for route in application.router.routes if isinstance(route, routing.APIRoute)]
    assert len(routes) > 60
    for route in routes:
        assert route.dependant.dependencies[0].call == application.services.access.ensure_local, route.path


def test_no_http_route_is_left_to_be_analysed_by_the_first_request(application: app.Application) -> None:
    included = [route for route in application.router.routes if isinstance(route, routing._IncludedRouter)]
    left = [route for router in included for route in router.original_router.routes]
    assert left
    assert not [route for route in left if isinstance(route, routing.APIRoute)]

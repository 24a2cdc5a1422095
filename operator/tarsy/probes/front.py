"""The front application: it answers probes as soon as the port is open, and hands over when the API has been built."""

from __future__ import annotations

from http import HTTPStatus

from starlette import types

from tarsy.probes import health
from tarsy.serve import problems

STARTING = "the process is starting; /readyz names the parts that it waits for. Ask again later"


class Front:
    """An application that another one replaces."""

    def __init__(self, probes: types.ASGIApp, *, is_starting: bool) -> None:
        """Serve `probes`; other requests get a 503 while the API `is_starting`, so that clients retry."""
        self._app = probes
        self._is_starting = is_starting

    def hand_over(self, application: types.ASGIApp) -> None:
        """Serve `application` from now on."""
        self._app = application
        self._is_starting = False

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        """Serve a request."""
        app = self._app
        if self._is_starting and scope["path"] not in health.PROBES:
            headers = {"Retry-After": f"{health.RETRY_SECONDS:.0f}"}
            app = problems.response(problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, STARTING, headers=headers))
        await app(scope, receive, send)

"""The first application to answer: probes, from when the port is open, and everything else once it has been built."""

from __future__ import annotations

from http import HTTPStatus

from starlette import types

from tarsy.probes import health
from tarsy.serve import problems

STARTING = "the process is starting; /readyz says what it waits for. Ask again"


class Front:
    """An application that hands over to another one when that is there."""

    def __init__(self, probes: types.ASGIApp, *, more_comes: bool) -> None:
        """Serve `probes` until then; other requests get a 503 if `more_comes`, so that clients retry."""
        self._app = probes
        self._more_comes = more_comes

    def hand_over(self, application: types.ASGIApp) -> None:
        """Have everything answered by this from now on."""
        self._app = application
        self._more_comes = False

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        """Answer a request."""
        app = self._app
        if self._more_comes and scope["path"] not in health.PROBES:
            later = problems.Problem(
                HTTPStatus.SERVICE_UNAVAILABLE, STARTING, headers={"Retry-After": f"{health.AGAIN_SECONDS:.0f}"}
            )
            app = problems.response(later)
        await app(scope, receive, send)

"""The metrics' own listener: `/metrics` in Prometheus' format, from the start of the process, before any other part.

It has an address of its own, so that the API's address never shows metrics, and a policy can tell callers apart. It
needs no token: metrics hold names of providers, servers, tools and chains, and no contents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus

from starlette import responses, types

from tarsy.telemetry import metrics

PATH = "/metrics"

Sampler = Callable[[], None]
"""Sets gauges to the present state of a part; called before each scrape, on the event loop, so it has to be cheap."""


class Scrapes:
    """The application of the metrics' listener."""

    def __init__(self) -> None:
        self._samplers: list[Sampler] = []
        self._lock = asyncio.Lock()
        """One scrape at a time: many at once would only take memory."""

    def add(self, sampler: Sampler) -> None:
        """Call `sampler` before each scrape from now on."""
        self._samplers.append(sampler)

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        """Serve a request."""
        await (await self._response(scope))(scope, receive, send)

    async def _response(self, scope: types.Scope) -> responses.Response:
        if scope["path"] != PATH:
            return responses.PlainTextResponse(f"only {PATH} is served here\n", HTTPStatus.NOT_FOUND)
        if scope["method"] not in ("GET", "HEAD"):
            return responses.Response(status_code=HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, HEAD"})
        accept = dict(scope["headers"]).get(b"accept", b"").decode("latin-1")
        async with self._lock:
            for sampler in self._samplers:
                sampler()
            text, media_type = await asyncio.to_thread(metrics.render, accept)
        return responses.Response(text, headers={"Content-Type": media_type})

"""The application: its routes, and what each of them is made of."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from fastapi import APIRouter, Depends, FastAPI, params
from fastapi.responses import JSONResponse
from starlette import types

from tarsy.api import described
from tarsy.api.alerts import chains, intake, webhooks
from tarsy.api.compat import paths
from tarsy.api.investigations import actions, details, exports, lists, messages, questions, traces
from tarsy.api.system import mcp_servers, overview
from tarsy.auth import permissions
from tarsy.config.check import chain_index
from tarsy.config.model import platforms
from tarsy.kube import client
from tarsy.live import attending, hubs, sockets, streams
from tarsy.probes import health
from tarsy.resources import base
from tarsy.serve import answers, problems, strict
from tarsy.store.base import databases
from tarsy.store.fleet import reporter

PATIENCE_SECONDS = 10.0
"""Seconds for a statement with a waiting caller; a worker's may take longer."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of the API."""

    cluster: client.Cluster
    database: databases.Database
    platform: Callable[[], platforms.Platform]
    """The platform file in force; its queue never changes."""
    index: chain_index.Indexer
    mask: Callable[[str], str]
    """For alerts and questions."""
    readiness: health.Readiness
    keeper: reporter.Keeper
    hub: hubs.Hub
    token: str | None
    """The webhook's; None serves the programs of this machine (`--insecure-dev`)."""
    admitted: Callable[[base.ObjectMeta], None] | None = None
    """See `intake.Intake.admitted`."""
    generation: Callable[[], int] = lambda: 0
    """Changes with the platform that is in force, and so what `index` checks chains by."""
    clock: Callable[[], float] = time.monotonic
    """The clock of cached identities and of rates."""


class _Hurried:
    """The application with a database that answers soon, or is away."""

    def __init__(self, app: types.ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        with databases.patience(PATIENCE_SECONDS):
            await self._app(scope, receive, send)


class Application(FastAPI):
    """The application, with a description that says of all routes what they do not say themselves."""

    def openapi(self) -> dict[str, Any]:
        """The description, made once."""
        if self.openapi_schema is None:
            self.openapi_schema = described.openapi(self)
        return self.openapi_schema


def build(parts: Parts) -> Application:
    """The application."""
    may = permissions.Access(
        cluster=parts.cluster,
        database=parts.database,
        token=parts.token,
        settings=parts.platform().api,
        clock=parts.clock,
    )
    app = _empty(Depends(may.greets))
    app.add_middleware(_Hurried)
    app.include_router(health.probes(parts.readiness))
    app.include_router(health.routes(health.Health(parts.database, parts.keeper)))
    for area in _areas(parts, may):
        app.include_router(area)
    attend = attending.Attending(hub=parts.hub, may=may)
    app.include_router(streams.routes(attend, may))
    app.include_router(sockets.routes(attend, may))

    @app.get("/openapi.json", dependencies=[Depends(may.oversees)], include_in_schema=False)
    async def openapi() -> JSONResponse:
        """Describe the API."""
        return JSONResponse(app.openapi())

    return app


def probes(readiness: health.Readiness) -> Application:
    """An application of nothing but `/healthz` and `/readyz`."""
    app = _empty()
    app.include_router(health.probes(readiness))
    return app


def _empty(*dependencies: params.Depends) -> Application:
    app = Application(
        dependencies=dependencies,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # it would send a client to any host that it names
    )
    app.router.route_class = strict.Route
    problems.tell(app)
    return app


def bare() -> Application:
    """The application of an empty platform without a cluster: its routes can be looked at, and none can be called."""
    nothing = cast("Any", None)
    settings = platforms.Platform()
    return build(
        Parts(
            cluster=nothing,
            database=nothing,
            platform=lambda: settings,
            index=functools.partial(chain_index.ChainIndex, platform=settings, unusable_providers={}),
            mask=str,
            readiness=nothing,
            keeper=nothing,
            hub=hubs.Hub(nothing),
            token="",
        )
    )


def describe() -> dict[str, Any]:
    """Return the answer of `GET /openapi.json`, which follows from the routes alone."""
    return bare().openapi()


def _areas(parts: Parts, may: permissions.Access) -> Iterator[APIRouter]:
    """The routes of `/api/v1`, and those of earlier clients."""
    taking = intake.Intake(
        cluster=parts.cluster,
        database=parts.database,
        chains=chains.Chains(parts.cluster, parts.database, index=parts.index, generation=parts.generation),
        ingest=lambda: parts.platform().ingest,
        max_queued=parts.platform().queue.max_queued,
        mask=parts.mask,
        admitted=parts.admitted,
    )
    asking = questions.Chat(
        cluster=parts.cluster,
        database=parts.database,
        max_queued=parts.platform().queue.max_queued,
        mask=parts.mask,
    )
    room = answers.Room()
    listed = lists.Lists(parts.database)
    yield webhooks.routes(taking, may)
    yield lists.routes(listed, may)
    yield details.routes(parts.database, may, room)
    yield messages.routes(parts.database, may, room)
    yield traces.routes(parts.database, may, room)
    yield exports.routes(parts.database, may, room)
    yield questions.routes(asking, may)
    doing = actions.Actions(cluster=parts.cluster, database=parts.database)
    yield actions.routes(doing, may)
    yield paths.register(parts.hub, taking, doing, listed, room, parts.database, may)
    yield overview.routes(
        overview.System(
            cluster=parts.cluster,
            database=parts.database,
            platform=parts.platform(),
            index=parts.index,
            ingest=lambda: parts.platform().ingest,
        ),
        may,
    )
    tending = mcp_servers.Tending(cluster=parts.cluster, database=parts.database, platform=parts.platform)
    yield mcp_servers.routes(tending, may)

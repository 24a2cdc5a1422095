"""The application: its routes, and the parts that they use."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from importlib import metadata, resources
from typing import Any, cast

from fastapi import APIRouter, Depends, FastAPI, Request, params, routing
from fastapi.dependencies.utils import get_parameterless_sub_dependant
from fastapi.responses import JSONResponse
from starlette import types

from tarsy import errors
from tarsy.api.alerts import concurrency, intake, matches, owners, posted, retries, splits, webhook_routes
from tarsy.api.compat import paths
from tarsy.api.investigations import actions, deletions, exports, feedback, lists, questions, reads, traces
from tarsy.api.system import audit, budgets, mcp_servers, overview, session_codes, storage
from tarsy.auth import permissions, request_log, rights, webhook_tokens
from tarsy.config.check import chain_index
from tarsy.config.model import platforms
from tarsy.kube import client, objects
from tarsy.live import event_stream, hubs, subscriptions, web_sockets
from tarsy.masking import known_secrets, masker
from tarsy.probes import health
from tarsy.resources import base
from tarsy.serve import answers, bodies, openapi, problems, strict
from tarsy.store.base import databases
from tarsy.store.fleet import reporter
from tarsy.store.reads import snapshots

UNAVAILABLE = (errors.TemporaryError, objects.RefusedError, snapshots.UnreadableError)
"""Errors that are answered 503: the same request may work later."""
STATEMENT_SECONDS = 10.0
"""The time limit of a database statement for a request; statements of workers may take longer."""
_DESCRIPTION = """\
The API takes alerts, and serves investigations and their transcripts.

**Callers** send a bearer token of Kubernetes, such as one that `kubectl create token` makes; the API server is asked
for its rights in the investigation's namespace. Other callers come through a trusted proxy, which names them in
headers. The tokens of webhooks can only send alerts. Each operation names the right that it needs. `/healthz`,
`/readyz` and `/health` need no token. With `--insecure-dev` only programs of the same machine are served, without a
token.

**Errors** are problem details (RFC 9457). 422 names each place of the request that is wrong. 503 means that a service
that TARSy needs is unavailable: the same request may work later.

**Strict.** Parameters and fields that are not described here are refused by name, and so is a body if none is
described. With a token, bodies are read as JSON, with any `Content-Type`; without one, as behind a proxy, it has to be
application/json. Every list is bounded.
"""
TAGS = {
    "alerts": "Sending alerts: the object of each is in the cluster before the answer.",
    "investigations": "Lists, results, transcripts and traces of investigations; cancelling, questions, feedback.",
    "compat": "Paths of earlier TARSy clients, which call an investigation a session.",
    "system": "The setup of TARSy and the state of its parts, over all its processes.",
    "health": "Liveness, readiness and health. No token is needed.",
}
"""The tags that group operations."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of the API."""

    cluster: client.Cluster
    database: databases.Database
    platform: Callable[[], platforms.Platform]
    """The platform file in force; its queue never changes."""
    index: chain_index.Indexer
    mask: Callable[[str], str]
    """Masks alerts, questions, feedback and reasons of holds."""
    secrets: known_secrets.KnownSecrets
    readiness: health.Readiness
    process_reporter: reporter.Reporter
    hub: hubs.Hub
    tokens: Callable[[], webhook_tokens.Tokens] | None
    """Returns the tokens of webhooks; None serves the programs of this machine (`--insecure-dev`)."""
    on_admitted: Callable[[base.ObjectMeta], None] | None = None
    """See `intake.Intake.on_admitted`."""
    configuration_version: Callable[[], int] = lambda: 0
    """The number of the platform file in force, by which `index` checks chains."""
    clock: Callable[[], float] = time.monotonic
    """The clock of cached identities and of rates."""


class _StatementLimit:
    """Middleware that limits the time of database statements."""

    def __init__(self, app: types.ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        with databases.time_limit(STATEMENT_SECONDS):
            await self._app(scope, receive, send)


@dataclass(frozen=True, kw_only=True)
class Services:
    """The services that the routes and the pages call."""

    database: databases.Database
    access: permissions.Access
    alert_intake: intake.Intake
    question_intake: questions.Questions
    investigation_lists: lists.Lists
    investigation_actions: actions.Actions
    deletions: deletions.Deletions
    feedback_intake: feedback.FeedbackIntake
    overview: overview.Overview
    mcp_servers: mcp_servers.McpServers
    storage: storage.Storage
    budgets: budgets.Budgets
    responder: answers.Responder
    subscribing: subscriptions.Subscriptions
    pages: Callable[[], str | None]
    """Returns the public address of the pages; None if it is not known, or there are none."""
    mask: Callable[[str], str]
    """Masks texts of authors of chains."""


class Application(FastAPI):
    """An application with a complete description."""

    services: Services

    def include_router(self, router: APIRouter, **options: Any) -> None:
        """Take the HTTP routes out of `router`, behind the application's own dependencies, and include the others.

        FastAPI would analyse each route a second time, during the first request. That doubles the processor time of
        the routes, and the loop stands still meanwhile.
        """
        routes = [] if options else [route for route in router.routes if isinstance(route, routing.APIRoute)]
        for route in routes:
            route.dependant.dependencies[:0] = [
                get_parameterless_sub_dependant(depends=dependency, path=route.path_format)
                for dependency in self.router.dependencies
            ]
            router.routes.remove(route)
        self.router.routes.extend(routes)
        if router.routes:
            super().include_router(router, **options)

    def openapi(self) -> dict[str, Any]:
        """Return the description, which is built once."""
        if self.openapi_schema is None:
            openapi.complete(super().openapi(), schemes=rights.SCHEMES, examples=examples())
        return super().openapi()


def build(parts: Parts) -> Application:
    """Build the application with all its routes."""
    services = _services(parts)
    may = services.access
    app = _without_routes(Depends(may.ensure_local))
    app.services = services
    app.add_middleware(_StatementLimit)
    app.add_middleware(request_log.RequestLog)
    app.add_middleware(concurrency.EarlyRefusals, slots=services.alert_intake.notification_slots)
    app.include_router(health.probes(parts.readiness))
    app.include_router(health.routes(health.Health(parts.database, parts.process_reporter)))
    for router in _routers(parts, services):
        app.include_router(router)
    app.include_router(event_stream.routes(services.subscribing, may))
    app.include_router(web_sockets.routes(services.subscribing, may))

    @app.get("/openapi.json", dependencies=[Depends(may.see_setup)], include_in_schema=False)
    async def description() -> JSONResponse:
        """Describe the API."""
        return JSONResponse(app.openapi())

    return app


def probes(readiness: health.Readiness) -> Application:
    """Build an application that has only `/healthz` and `/readyz`."""
    app = _without_routes()
    app.include_router(health.probes(readiness))
    return app


def _without_routes(*dependencies: params.Depends) -> Application:
    app = Application(
        title="TARSy",
        version=metadata.version("tarsy"),
        summary="Investigates alerts on Kubernetes with chains of LLM agents.",
        description=_DESCRIPTION,
        openapi_tags=[{"name": name, "description": description} for name, description in TAGS.items()],
        dependencies=dependencies,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # it would send a client to any host that it names
    )
    app.router.route_class = strict.Route
    problems.install(app)
    for error in UNAVAILABLE:
        app.add_exception_handler(error, _unavailable)
    return app


async def _unavailable(_request: Request, error: Exception) -> JSONResponse:
    """Answer 503: the database or the API server is unavailable, or a newer version of TARSy is needed."""
    return problems.response(problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}; try again"))


def bare() -> Application:
    """Build the application of an empty platform without a cluster: its routes can be described, not called."""
    absent = cast("Any", None)
    settings = platforms.Platform()
    return build(
        Parts(
            cluster=absent,
            database=absent,
            platform=lambda: settings,
            index=functools.partial(chain_index.ChainIndex, platform=settings, unusable_providers={}),
            mask=str,
            secrets=known_secrets.KnownSecrets(),
            readiness=absent,
            process_reporter=absent,
            hub=hubs.Hub(absent),
            tokens=lambda: webhook_tokens.Tokens(owners={}),
        )
    )


def describe() -> dict[str, Any]:
    """Return the answer of `GET /openapi.json`, which depends only on the routes."""
    return bare().openapi()


def examples() -> dict[str, str]:
    """Return the texts of the description's examples by file name (see `openapi.complete`)."""
    folder = resources.files("tarsy.api") / "examples"
    return {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir() if file.name[0] not in "._"}


def _services(parts: Parts) -> Services:
    held_bodies = bodies.Bodies()

    def purge_after() -> timedelta | None:
        periods = parts.platform().retention
        return None if periods.dry_run else periods.purge

    def pages() -> str | None:
        platform = parts.platform()
        return platform.api.public_url if platform.web.enabled else None

    access = permissions.Access(
        cluster=parts.cluster,
        database=parts.database,
        tokens=parts.tokens,
        settings=parts.platform().api,
        clock=parts.clock,
    )
    return Services(
        database=parts.database,
        access=access,
        alert_intake=intake.Intake(
            cluster=parts.cluster,
            database=parts.database,
            chains=intake.ChainLister(
                parts.cluster, parts.database, index=parts.index, generation=parts.configuration_version
            ),
            platform=parts.platform,
            owners=owners.Owners(parts.cluster, settings=lambda: parts.platform().ingest, clock=parts.clock),
            max_queued=parts.platform().queue.max_queued,
            mask=parts.mask,
            bodies=held_bodies,
            notification_slots=concurrency.NotificationSlots(clock=parts.clock),
            pages=pages,
            on_admitted=parts.on_admitted,
        ),
        question_intake=questions.Questions(
            cluster=parts.cluster,
            database=parts.database,
            max_queued=parts.platform().queue.max_queued,
            mask=parts.mask,
            bodies=held_bodies,
        ),
        investigation_lists=lists.Lists(parts.database, purge_after=purge_after),
        investigation_actions=actions.Actions(database=parts.database),
        deletions=deletions.Deletions(
            cluster=parts.cluster,
            database=parts.database,
            mask=parts.mask,
            bodies=held_bodies,
            purge_after=purge_after,
        ),
        feedback_intake=feedback.FeedbackIntake(database=parts.database, mask=parts.mask, bodies=held_bodies),
        overview=overview.Overview(
            cluster=parts.cluster, database=parts.database, platform=parts.platform, index=parts.index
        ),
        mcp_servers=mcp_servers.McpServers(
            cluster=parts.cluster, database=parts.database, platform=parts.platform, bodies=held_bodies
        ),
        storage=storage.Storage(database=parts.database, platform=parts.platform),
        budgets=budgets.Budgets(cluster=parts.cluster, database=parts.database, platform=parts.platform),
        responder=answers.Responder(),
        subscribing=subscriptions.Subscriptions(hub=parts.hub, may=access),
        pages=pages,
        mask=masker.Masker(groups=["security"], secrets=parts.secrets).text,
    )


def _routers(parts: Parts, services: Services) -> Iterator[APIRouter]:
    """Yield the routes of `/api/v1`, and those of earlier clients."""
    access, responder, mask, database = services.access, services.responder, services.mask, parts.database
    yield webhook_routes.routes(services.alert_intake, access)
    yield posted.routes(services.alert_intake, access)
    yield retries.routes(services.alert_intake, access)
    yield splits.routes(services.alert_intake, access)
    yield matches.routes(services.alert_intake, access)
    yield lists.routes(services.investigation_lists, access)
    yield reads.routes(database, access, responder, mask=mask)
    yield traces.routes(database, access, responder, mask=mask)
    yield exports.routes(database, access, responder, mask=mask)
    yield questions.routes(services.question_intake, access)
    yield actions.routes(services.investigation_actions, access)
    yield deletions.routes(services.deletions, access)
    yield feedback.routes(services.feedback_intake, access)
    yield overview.routes(services.overview, access)
    yield mcp_servers.routes(services.mcp_servers, access)
    yield audit.routes(database, access, mask=mask)
    yield storage.routes(services.storage, access)
    yield budgets.routes(services.budgets, access)
    yield session_codes.routes(access, has_pages=parts.platform().web.enabled)
    yield paths.register(
        hub=parts.hub,
        alert_intake=services.alert_intake,
        investigation_actions=services.investigation_actions,
        investigation_lists=services.investigation_lists,
        responder=responder,
        database=database,
        may=access,
    )

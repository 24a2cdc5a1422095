"""The routes, and the server that serves them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from http import HTTPStatus
from typing import Annotated, Any
from uuid import UUID

import uvicorn
from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import JSONResponse

from tarsy.api import auth, chat, health, intake, investigations, problems, protocol
from tarsy.ingest import plain, question
from tarsy.store import database as databases


def build(
    *,
    taking: intake.Intake,
    asking: chat.Chat,
    database: databases.Database,
    readiness: health.Readiness,
    token: str | None,
) -> FastAPI:
    """The application, for those who have `token`; None serves the programs of this machine."""
    everywhere = [] if token else [Depends(auth.same_machine)]
    protected = [Depends(auth.bearer(token))] if token else []
    app = FastAPI(title="TARSy", version="v1", dependencies=everywhere, openapi_url=None, docs_url=None, redoc_url=None)
    problems.tell(app)

    @app.get("/openapi.json", dependencies=protected, include_in_schema=False)
    async def openapi() -> JSONResponse:
        """Describe the API."""
        return JSONResponse(app.openapi())

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Say that the process serves."""
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> dict[str, str]:
        """Say that the process can do the work of its roles; 503 names what is missing."""
        await readiness.check()
        return {"status": "ready"}

    @app.post("/api/v1/webhooks/alertmanager", dependencies=protected)
    async def alertmanager(request: Request) -> intake.Receipt:
        """Take a notification of Alertmanager's webhook receiver, format 4."""
        return await taking.notification(request)

    alert = _described(plain.schema())

    @app.post("/api/v1/alerts", dependencies=protected, status_code=HTTPStatus.ACCEPTED, openapi_extra=alert)
    async def alerts(request: Request) -> intake.Queued:
        """Take one alert; an Idempotency-Key makes a repeat harmless."""
        return await taking.alert(request)

    @app.get("/api/v1/investigations/{identity}", dependencies=protected)
    async def investigation(identity: UUID) -> investigations.Investigation:
        """Everything that is known of one investigation."""
        return await investigations.read(database, identity)

    @app.get("/api/v1/investigations/{identity}/timeline", dependencies=protected)
    async def timeline(
        identity: UUID,
        after: Annotated[int, Query(ge=0, le=2**63 - 1, description="`last` of the page before; 0 begins.")] = 0,
        limit: Annotated[int, Query(ge=1, le=investigations.EVENTS_MAX)] = investigations.EVENTS_MAX,
    ) -> investigations.Timeline:
        """What happened, event by event: those that changed behind entry `after`, in their newest form."""
        return await investigations.read_timeline(database, identity, after=after, limit=limit)

    asked = _described(question.schema())
    path = "/api/v1/investigations/{identity}/chat"

    @app.post(path, dependencies=protected, status_code=HTTPStatus.ACCEPTED, openapi_extra=asked)
    async def ask(request: Request, identity: UUID) -> chat.Asked:
        """Ask about an investigation that has ended; the answer is to be read there."""
        return await asking.ask(request, identity)

    @app.post(f"{path}/cancel", dependencies=protected, status_code=HTTPStatus.ACCEPTED)
    async def cancel(identity: UUID) -> chat.Asked:
        """Have the question that is open stopped."""
        return await asking.cancel(identity)

    return app


def _described(schema: dict[str, Any]) -> dict[str, Any]:
    """How a body that is read by hand is described."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


def bind(host: str, port: int) -> socket.socket:
    """Bind the socket ourselves: uvicorn would end the process with SystemExit where the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, or asyncio leaves Nagle on
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


async def serve(app: FastAPI, bound: socket.socket, *, readiness: health.Readiness) -> None:
    """Serve until cancelled, and be no longer ready then; requests under way are answered first."""
    protocol.allow_files()
    server = Server(
        uvicorn.Config(
            app,
            http=protocol.Protocol,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=10,
        )
    )
    serving = asyncio.ensure_future(server.serve(sockets=[bound]))
    try:
        await asyncio.shield(serving)
    finally:
        readiness.stop()
        server.should_exit = True
        await serving

"""The application, and the server that serves it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import uvicorn
from fastapi import APIRouter, Depends, FastAPI
from fastapi.responses import JSONResponse

from tarsy.api import access, alerts, chains, chat, health, intake, investigations, problems, protocol
from tarsy.config import check
from tarsy.config import platform as platforms
from tarsy.kube import client
from tarsy.resources import base
from tarsy.store import database as databases

SWITCH_SECONDS = 0.0005
"""For so long a thread at work keeps the interpreter from the loop, which asks for it once a turn; by default 5 ms."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the API is made of."""

    cluster: client.Cluster
    database: databases.Database
    platform: platforms.Platform
    index: check.Indexer
    mask: Callable[[str], str]
    """For alerts and questions."""
    readiness: health.Readiness
    token: str | None
    """The webhook's; None serves the programs of this machine (`--insecure-dev`)."""
    admitted: Callable[[base.ObjectMeta], None] | None = None
    """See `intake.Intake.admitted`."""
    clock: Callable[[], float] = time.monotonic
    """What is kept of callers, and their rates, go by it."""


def build(parts: Parts) -> FastAPI:
    """The application."""
    may = access.Access(
        cluster=parts.cluster,
        database=parts.database,
        token=parts.token,
        settings=parts.platform.api,
        clock=parts.clock,
    )
    app = FastAPI(
        title="TARSy",
        version="v1",
        dependencies=[Depends(may.greets)],
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    problems.tell(app)
    app.include_router(health.routes(parts.readiness))
    for area in _areas(parts, may):
        app.include_router(area)

    @app.get("/openapi.json", dependencies=[Depends(may.oversees)], include_in_schema=False)
    async def openapi() -> JSONResponse:
        """Describe the API."""
        return JSONResponse(app.openapi())

    return app


def _areas(parts: Parts, may: access.Access) -> Iterator[APIRouter]:
    """The routes of `/api/v1`."""
    taking = intake.Intake(
        cluster=parts.cluster,
        database=parts.database,
        chains=chains.Chains(parts.cluster, index=parts.index),
        settings=parts.platform.ingest,
        max_queued=parts.platform.queue.max_queued,
        mask=parts.mask,
        admitted=parts.admitted,
    )
    asking = chat.Chat(
        cluster=parts.cluster,
        database=parts.database,
        max_queued=parts.platform.queue.max_queued,
        mask=parts.mask,
    )
    yield alerts.routes(taking, may)
    yield investigations.routes(parts.database, may)
    yield chat.routes(asking, may)


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
    sys.setswitchinterval(SWITCH_SECONDS)
    server = Server(
        uvicorn.Config(
            app,
            http=protocol.Protocol,
            log_config=None,
            access_log=False,
            lifespan="off",
            proxy_headers=False,  # it would take the word of every proxy on this machine for who calls
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

"""The parts of an API, for tests that serve one of their own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from types import MappingProxyType
from typing import Any

import aiohttp
import pytest
from fastapi import FastAPI
from support import queue
from support.masking import NO_SECRETS
from tarsy.api import app
from tarsy.auth import webhook_tokens
from tarsy.config.check import chain_index
from tarsy.config.model import budgets, platforms, webhooks
from tarsy.kube import client, rights
from tarsy.live import hubs, web_socket_protocol
from tarsy.probes import checks, health
from tarsy.serve import http_server
from tarsy.store.base import databases, hints, notify
from tarsy.store.fleet import reporter
from tarsy.store.live import text_streams
from tarsy.telemetry import component_states

SEND_BUFFER = 128 * 1024
"""Bytes of an answer that the system takes. Its own choice differs from machine to machine, up to megabytes."""


def parts(
    *,
    cluster: client.Cluster,
    database: databases.Database,
    token: str | None = None,
    max_queued: int = 10_000,
    mask: Callable[[str], str] = str,
    settings: platforms.API | None = None,
    ingest: webhooks.Ingest | None = None,
    known_budgets: Mapping[str, budgets.Budget] = MappingProxyType({}),
    clock: Callable[[], float] = time.monotonic,
    process_reporter: reporter.Reporter | None = None,
) -> app.Parts:
    """The parts of an API on that cluster and database, with the platform of `queue`; no token is `--insecure-dev`."""
    limited = queue.PLATFORM.queue.model_copy(update={"max_queued": max_queued})
    platform = queue.PLATFORM.model_copy(
        update={"queue": limited, "api": settings or platforms.API(), "ingest": ingest or queue.PLATFORM.ingest}
        | {"budgets": dict(known_budgets)}
    )
    return app.Parts(
        cluster=cluster,
        database=database,
        platform=lambda: platform,
        index=functools.partial(chain_index.ChainIndex, platform=platform, unusable_providers={}),
        mask=mask,
        secrets=NO_SECRETS,
        readiness=ready(database, cluster),
        process_reporter=process_reporter or keeping(database),
        hub=hubs.Hub(database),
        tokens=None if token is None else tokens(cluster, token, ingest=platform.ingest),
        clock=clock,
    )


def tokens(
    cluster: client.Cluster, token: str, *, ingest: webhooks.Ingest | None = None
) -> Callable[[], webhook_tokens.Tokens]:
    """The tokens of webhooks: this one, which is TARSY_WEBHOOK_TOKEN's, and those of `ingest`, as they are now."""
    in_force = webhook_tokens.load(token, ingest or webhooks.Ingest(), default_namespace=cluster.served.default)
    return lambda: in_force


def ready(database: databases.Database, cluster: client.Cluster) -> health.Readiness:
    """The readiness of a process that has begun to serve the API."""
    readiness = health.Readiness(
        ["api"], checks.Database(lambda: database), checks.Cluster(cluster, rights.needed(["api"]))
    )
    readiness.start()
    return readiness


@contextlib.asynccontextmanager
async def listening(api: app.Parts, *, application: FastAPI | None = None, hears: bool = False) -> AsyncIterator[str]:
    """Serve the API of these parts, or an `application` of the test's; its URL. `hears`: what is said live, as well."""
    bound = http_server.bind("127.0.0.1", 0)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    bound.listen(100)  # a client that connects before the server accepts waits
    listener = notify.Listener(api.database.url, hints.Channels({text_streams.TEXTS: api.hub.hint})).run
    serve = http_server.serve(
        application or app.build(api), bound, websockets=web_socket_protocol.websockets(), stopping=api.readiness.stop
    )
    tasks = [asyncio.create_task(job) for job in (serve, api.hub.run(), *([listener()] if hears else []))]
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with pytest.raises(asyncio.CancelledError):
                await task
        bound.close()


@contextlib.asynccontextmanager
async def served(
    api: app.Parts, *, application: FastAPI | None = None, headers: Mapping[str, str] | None = None
) -> AsyncIterator[aiohttp.ClientSession]:
    """The same; a client of it, which sends these headers."""
    async with listening(api, application=application) as url, aiohttp.ClientSession(url, headers=headers) as session:
        yield session


@functools.cache
def description() -> dict[str, Any]:
    """Return the API's description of itself, which takes it half a second."""
    return app.describe()


def bearer(token: str) -> dict[str, str]:
    """The headers of who has that token."""
    return {"Authorization": f"Bearer {token}"}


def keeping(
    database: databases.Database, *, host: str = "here", slots: int = 0, mask: Callable[[str], str] = str
) -> reporter.Reporter:
    """Return the reporter of a process with so many slots for investigations; it reports when it is run, or has a
    `look`.
    """
    detail = component_states.Process(roles=("api",), version="1", build="b", slots=slots)
    return reporter.Reporter(database, process=uuid.uuid4(), host=host, detail=detail, mask=mask)

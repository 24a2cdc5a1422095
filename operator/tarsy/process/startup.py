"""The start of a process: it serves HTTP at once, and waits for its dependencies.

`/readyz` lists the missing dependencies. The roles are built once the database and the secrets are available; they wait
for the others themselves.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass

from tarsy.api import app
from tarsy.config.load import loader, settings
from tarsy.kube import client, rights
from tarsy.live import web_socket_protocol
from tarsy.masking import known_secrets
from tarsy.probes import checks, front, health, scrapes
from tarsy.process import errors
from tarsy.process.runtime import platform_file
from tarsy.serve import http_server, webhook_answers
from tarsy.store.base import databases, hints

log = logging.getLogger(__name__)


@contextmanager
def start_errors() -> Iterator[None]:
    """Raise errors of the configuration and of files as a StartError."""
    try:
        yield
    except (loader.ConfigError, client.ConfigError, OSError) as error:
        raise errors.StartError(str(error)) from error


@dataclass(frozen=True, kw_only=True)
class Early:
    """The parts that exist before any connection."""

    readiness: health.Readiness
    front: front.Front
    scrapes: scrapes.Scrapes
    """The metrics' listener, to which parts add samplers."""
    servers: tuple[asyncio.Task[None], ...]
    """The HTTP servers: the API's, and the metrics'."""
    cluster: client.Cluster | None
    """None if no role of the process needs an API server."""


async def answer(
    process: settings.Settings,
    in_force: platform_file.PlatformFile,
    stack: AsyncExitStack,
    *,
    secrets: known_secrets.KnownSecrets,
) -> Early:
    """Begin to serve metrics, and to answer `/healthz` and `/readyz`; the process is not ready yet."""
    readiness = health.Readiness(process.roles, notes=in_force.notes)
    cluster = None
    if process.serves("controller") or process.serves("api"):
        with start_errors():
            cluster = await client.connect(  # reads files, sends no request
                process.kubeconfig,
                served=in_force.platform.namespaces,
                default_namespace=in_force.platform.ingest.namespace,
                secrets=secrets,
            )
        stack.push_async_callback(cluster.close)
    metrics_listener = scrapes.Scrapes()
    servers = []
    if (metrics_bound := _bind_metrics(process)) is not None:
        stack.callback(metrics_bound.close)
        servers.append(asyncio.create_task(http_server.serve(metrics_listener, metrics_bound)))
        stack.push_async_callback(_end, servers[-1])
        log.info("metrics on %s:%s", *metrics_bound.getsockname()[:2], extra={"action": "metrics_listening"})
    try:
        bound = http_server.bind(process.listen_host, process.listen_port)
    except OSError as error:
        raise errors.StartError(f"--listen: {process.listen_host}:{process.listen_port}: {error.strerror}") from error
    stack.callback(bound.close)
    answers = front.Front(app.probes(readiness), is_starting=process.serves("api"))
    counted, websockets = webhook_answers.counted(answers), web_socket_protocol.websockets()
    servers.append(
        asyncio.create_task(http_server.serve(counted, bound, websockets=websockets, stopping=readiness.stop))
    )
    stack.push_async_callback(_end, servers[-1])
    log.info("listening on %s:%s", *bound.getsockname()[:2], extra={"action": "listening"})
    return Early(readiness=readiness, front=answers, scrapes=metrics_listener, servers=tuple(servers), cluster=cluster)


def _bind_metrics(process: settings.Settings) -> socket.socket | None:
    """Bind the address of the metrics' listener; None if there is none, or if the default one is not free."""
    if process.metrics_listen is None:
        return None
    host, port = process.metrics_listen
    try:
        return http_server.bind(host, port)
    except OSError as error:
        problem = f"--metrics-listen: {host}:{port}: {error.strerror}"
        if process.metrics_required:
            raise errors.StartError(problem) from error
        log.warning("no metrics are served: %s: give another address, or off", problem, extra={"action": "no_metrics"})
        return None


async def _end(serving: asyncio.Task[None]) -> None:
    serving.cancel()
    await asyncio.wait([serving])


async def wait(
    process: settings.Settings, early: Early, stack: AsyncExitStack, *, channels: hints.Channels
) -> tuple[databases.Database, str | None]:
    """Wait for the secrets and the database; return the database and the webhook's token.

    Meanwhile, `/readyz` names the missing parts.
    """
    database: databases.Database | None = None
    url = checks.Secret(process.database_url, needed_by=checks.ALL_ROLES)
    token = checks.Secret(process.webhook_token, needed_by=("api",)) if process.webhook_token else None
    awaited: list[checks.Check] = [url, *([token] if token else []), checks.Database(lambda: database)]
    for check in awaited:
        early.readiness.add(check)
    if early.cluster:
        needed = rights.needed(process.roles, asks_who_calls=token is not None, deployment=process.deployment)
        early.readiness.add(checks.Cluster(early.cluster, needed))
    await early.readiness.wait_for(url)
    database = databases.Database(url.value, channels=channels)
    stack.push_async_callback(database.close)
    await early.readiness.wait_for(*awaited)
    return database, token.value if token else None

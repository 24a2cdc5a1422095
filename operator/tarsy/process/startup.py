"""The start of a process: it serves HTTP at once, and waits for its dependencies.

`/readyz` lists the missing dependencies. The roles are built once the database and the secrets are available; they wait
for the others themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass

from tarsy.api import app
from tarsy.config.load import loader, settings
from tarsy.kube import client, rights
from tarsy.live import web_socket_protocol
from tarsy.masking import known_secrets
from tarsy.probes import checks, front, health
from tarsy.process import errors
from tarsy.process.runtime import platform_file
from tarsy.serve import http_server
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
    serving: asyncio.Task[None]
    cluster: client.Cluster | None
    """None if no role of the process needs an API server."""


async def answer(
    process: settings.Settings,
    in_force: platform_file.PlatformFile,
    stack: AsyncExitStack,
    *,
    secrets: known_secrets.KnownSecrets,
) -> Early:
    """Begin to answer `/healthz` and `/readyz`; the process is not ready yet."""
    readiness = health.Readiness(process.roles, notes=in_force.notes)
    cluster = None
    if process.serves("controller") or process.serves("api"):
        with start_errors():
            cluster = await client.connect(process.kubeconfig, secrets=secrets)  # reads files, sends no request
        stack.push_async_callback(cluster.close)
    host, port = process.listen_host, process.listen_port
    try:
        bound = http_server.bind(host, port)
    except OSError as error:
        raise errors.StartError(f"--listen: {host}:{port}: {error.strerror}") from error
    stack.callback(bound.close)
    answers = front.Front(app.probes(readiness), is_starting=process.serves("api"))
    serving = asyncio.create_task(
        http_server.serve(answers, bound, websockets=web_socket_protocol.websockets(), stopping=readiness.stop)
    )

    async def end_serving() -> None:
        serving.cancel()
        await asyncio.wait([serving])

    stack.push_async_callback(end_serving)
    log.info("listening on %s:%s", *bound.getsockname()[:2], extra={"action": "listening"})
    return Early(readiness=readiness, front=answers, serving=serving, cluster=cluster)


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

"""The parts of an API, for tests that serve one of their own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable

from support import queue
from tarsy.api import app, health
from tarsy.config import check
from tarsy.kube import client
from tarsy.store import database as databases


def parts(
    *,
    cluster: client.Cluster,
    database: databases.Database,
    readiness: health.Readiness | None = None,
    token: str | None = None,
    max_queued: int = 10_000,
    mask: Callable[[str], str] = str,
) -> app.Parts:
    """The parts of an API on that cluster and database, with the platform of `queue`; no token is `--insecure-dev`."""
    found = queue.PLATFORM.model_copy(
        update={"queue": queue.PLATFORM.queue.model_copy(update={"max_queued": max_queued})}
    )
    return app.Parts(
        cluster=cluster,
        database=database,
        platform=found,
        index=functools.partial(check.ChainIndex, platform=found, unusable_providers={}),
        mask=mask,
        readiness=readiness or health.Readiness(roles=["api"], database=database, cluster=cluster, watcher=None),
        token=token,
    )


@contextlib.asynccontextmanager
async def serving(given: app.Parts) -> AsyncIterator[str]:
    """An API of these parts, served on a port of its own; its URL."""
    bound = app.bind("127.0.0.1", 0)
    bound.listen(100)
    running = asyncio.create_task(app.serve(app.build(given), bound, readiness=given.readiness))
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        bound.close()

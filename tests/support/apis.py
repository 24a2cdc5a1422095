"""The parts of an API, for tests that serve one of their own."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

from support import queue
from tarsy.api import app, health
from tarsy.config import check, platform
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
    settings: platform.API | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> app.Parts:
    """The parts of an API on that cluster and database, with the platform of `queue`; no token is `--insecure-dev`."""
    limited = queue.PLATFORM.queue.model_copy(update={"max_queued": max_queued})
    found = queue.PLATFORM.model_copy(update={"queue": limited, "api": settings or platform.API()})
    return app.Parts(
        cluster=cluster,
        database=database,
        platform=found,
        index=functools.partial(check.ChainIndex, platform=found, unusable_providers={}),
        mask=mask,
        readiness=readiness or health.Readiness(roles=["api"], database=database, cluster=cluster, watcher=None),
        token=token,
        clock=clock,
    )

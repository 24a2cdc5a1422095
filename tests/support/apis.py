"""The parts of an API, for tests that serve one of their own."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable

from support import queue
from tarsy.api import app, health
from tarsy.config import check
from tarsy.kube import client
from tarsy.store import database as databases
from tarsy.store import keeper


def parts(
    *,
    cluster: client.Cluster,
    database: databases.Database,
    readiness: health.Readiness | None = None,
    token: str | None = None,
    max_queued: int = 10_000,
    mask: Callable[[str], str] = str,
    kept: keeper.Keeper | None = None,
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
        keeper=kept or keeping(database),
        token=token,
    )


def keeping(
    database: databases.Database, *, host: str = "here", slots: int = 0, mask: Callable[[str], str] = str
) -> keeper.Keeper:
    """What tells of a process, which has so many slots for investigations; it tells when it is run, or has a `look`."""
    detail = {"roles": ["api"], "version": "1", "build": "b", "slots": slots}
    return keeper.Keeper(database, process=uuid.uuid4(), host=host, detail=detail, mask=mask)

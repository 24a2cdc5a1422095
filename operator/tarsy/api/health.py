"""Readiness: whether this process can do the work of its roles now, and if not, what is missing.

Three things are asked for. The database is asked for nothing in particular. The API server is asked for the metadata of
one investigation, because its own `/readyz` would say nothing of our rights and of our kinds. The watch is not asked:
it says itself whether it is open for each kind. The age of its last event would be no measure, because a namespace may
be silent for hours; the age of its last bookmark would be one, but kopf keeps bookmarks to itself, and closes by itself
a watch that has had none for 70 s. So an open watch has been heard of within 70 s, and an outage younger than that
shows in the API server's answer.

MCP servers and models are not asked for: what lacks one says so in its transcript, and other investigations run.
Whether to restart the process is another question, and `/healthz` asks for nothing: a restart mends no database.

The answer is for everybody, so it names what is missing; why is in the log.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Collection
from http import HTTPStatus
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from tarsy.api import problems, strict
from tarsy.config import settings
from tarsy.kube import client, objects, watch
from tarsy.store import database as databases

FRESH_SECONDS = 1.0
MISSING_FRESH_SECONDS = 0.2
"""For so long an answer is given again: whoever asks without a token must not keep the database busy."""
WATCH_CUT_SECONDS = 10.0
"""A watch that ends by plan is open again after a tenth of a second, and one whose server restarts after a few."""
NEEDED_BY: dict[str, tuple[settings.Role, ...]] = {
    "the database": ("api", "controller", "worker"),
    "the API server": ("api", "controller"),
    "the watch": ("controller",),
}

log = logging.getLogger(__name__)


class Serving(BaseModel):
    """The process serves."""

    status: Literal["ok"] = "ok"


class Ready(BaseModel):
    """The process can do the work of its roles."""

    status: Literal["ready"] = "ready"


class Readiness:
    """The readiness of one process."""

    def __init__(
        self,
        *,
        roles: Collection[settings.Role],
        database: databases.Database,
        cluster: client.Cluster,
        watcher: watch.Watcher | None,
    ) -> None:
        """`roles` are those of this process; `watcher` is None where it has no controller."""
        self._roles = roles
        self._database = database
        self._cluster = cluster
        self._watcher = watcher
        self._stopping = False
        self._one_at_a_time = asyncio.Lock()
        self._missing: tuple[str, ...] = ()
        self._looked = -FRESH_SECONDS

    def stop(self) -> None:
        """Be not ready from now on."""
        self._stopping = True

    async def check(self) -> None:
        """Serve `GET /readyz`: return, or say with a problem what is missing."""
        async with self._one_at_a_time:
            fresh = MISSING_FRESH_SECONDS if self._missing else FRESH_SECONDS
            if time.monotonic() - self._looked >= fresh and not self._stopping:
                self._missing = await self._look()
                self._looked = time.monotonic()
        if self._stopping:
            raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, "not ready: the process is stopping")
        if self._missing:
            raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {'; '.join(self._missing)}")

    async def _look(self) -> tuple[str, ...]:
        """What is missing, each with the roles of this process that need it."""
        database, api_server = await asyncio.gather(self._ask_database(), self._ask_api_server())
        why = {"the database": database, "the API server": api_server, "the watch": self._ask_watch()}
        missing = tuple(f"{what} ({self._needing(what)})" for what, reason in why.items() if reason)
        if missing and missing != self._missing:
            reasons = "; ".join(reason for reason in why.values() if reason)
            log.warning("not ready: %s", reasons, extra={"action": "not_ready"})
        elif missing != self._missing:
            log.info("ready", extra={"action": "ready"})
        return missing

    def _needing(self, what: str) -> str:
        return ", ".join(role for role in NEEDED_BY[what] if role in self._roles)

    async def _ask_database(self) -> str | None:
        try:
            await self._database.ping()
        except databases.StoreDownError as error:
            return str(error)
        return None

    async def _ask_api_server(self) -> str | None:
        try:
            await objects.ping(self._cluster, namespace=self._cluster.namespace)
        except (client.ClusterDownError, objects.RefusedError) as error:
            return str(error)
        return None

    def _ask_watch(self) -> str | None:
        if self._watcher is None or (cut := self._watcher.cut_for()) < WATCH_CUT_SECONDS:
            return None
        return "the watch is not open yet" if math.isinf(cut) else f"the watch has not been open for {cut:.0f} s"


def routes(readiness: Readiness) -> APIRouter:
    """`/healthz` and `/readyz`, for everybody."""
    router = strict.router(tag="health")

    @router.get("/healthz", operation_id="checkLiveness")
    async def healthz() -> Serving:
        """Say that the process serves."""
        return Serving()

    @router.get("/readyz", operation_id="checkReadiness")
    async def readyz() -> Ready:
        """Say that the process can do the work of its roles; 503 names what is missing."""
        await readiness.check()
        return Ready()

    return router

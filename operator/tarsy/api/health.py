"""Readiness: whether this process can do the work of its roles now, and if not, what is missing.

Three things are asked for. The database is asked for nothing in particular. The API server is asked for the metadata of
one investigation, because its own `/readyz` would say nothing of our rights and of our kinds. The watch is not asked:
it says itself whether it is open for each kind. The age of its last event would be no measure, because a namespace may
be silent for hours; the age of its last bookmark would be one, but kopf keeps bookmarks to itself, and closes by itself
a watch that has had none for 70 s. So an open watch has been heard of within 70 s, and an outage younger than that
shows in the API server's answer.

MCP servers and models are not asked for: what lacks one says so in its transcript, and other investigations run.
Whether to restart the process is another question, and `/healthz` asks for nothing: a restart mends no database.

`Health` says of all processes how everything stands that they know of, MCP servers and providers too.

The answers are for everybody, so they name what is missing, and states; why is in the log.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel

from tarsy import errors
from tarsy.api import concerns, problems, strict
from tarsy.config import settings
from tarsy.kube import client, objects, watch
from tarsy.store import catalogue, keeper
from tarsy.store import database as databases
from tarsy.telemetry import standing

FRESH_SECONDS = 1.0
MISSING_FRESH_SECONDS = 0.2
"""For so long an answer is given again: whoever asks without a token must not keep the database busy."""
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
    notes: list[str] = []
    """What somebody should look at all the same: of a platform file that is not in force as it stands."""


class Readiness:
    """The readiness of one process."""

    def __init__(
        self,
        *,
        roles: Collection[settings.Role],
        database: databases.Database,
        cluster: client.Cluster,
        watcher: watch.Watcher | None,
        notes: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """`roles` are those of this process; `watcher` is None where it has no controller.

        `notes` are told to everybody with the answer that it is ready.
        """
        self.notes = notes
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
        if self._watcher is None or not self._watcher.is_cut():
            return None
        cut = self._watcher.cut_for()
        return "the watch is not open yet" if math.isinf(cut) else f"the watch has not been open for {cut:.0f} s"


class State(BaseModel):
    """How something stands, and since when."""

    state: str
    since: datetime


class WorkersState(State):
    """The workers that are there."""

    live: int
    slots: int
    """Investigations that they can run at once, all together."""


class Report(BaseModel):
    """How everything stands; of what several processes tell the worst counts."""

    status: Literal["ok", "degraded", "down"]
    database: State
    watch: State | None
    """Of the cluster; null where no controller is there."""
    workers: WorkersState
    mcp_servers: dict[str, State]
    providers: dict[str, State]
    """Those that the platform file has or that anything refers to."""


_GOOD = {"answering", "connected", "open", "present", "usable"}


class Health:
    """How everything stands that the processes know of, by what they have said; one answer is given for a second."""

    def __init__(self, database: databases.Database, kept: keeper.Keeper) -> None:
        self._database = database
        self._kept = kept
        self._workers = standing.Standing("absent")
        self._one_at_a_time = asyncio.Lock()
        self._latest: Report | None = None
        self._looked = 0.0

    async def report(self) -> Report:
        """How everything stands. Where the database is away, only what this process knows by itself."""
        async with self._one_at_a_time:
            if self._latest is None or time.monotonic() - self._looked >= FRESH_SECONDS:
                self._latest = await self._look()
                self._looked = time.monotonic()
            return self._latest

    async def _look(self) -> Report:
        try:
            async with asyncio.timeout(databases.PING_SECONDS):
                said: Sequence[concerns.Said] = await catalogue.read(
                    self._database, "process", "watch", "server", "provider"
                )
        except (errors.TemporaryError, databases.SchemaError, TimeoutError):
            self._kept.database.be("away")
            said = self._kept.facts()
        else:
            self._kept.database.be("answering")
        return self._told(said)

    def _told(self, said: Sequence[concerns.Said]) -> Report:
        live = [one for one in said if one.kind == "process" and one.detail["slots"]]
        self._workers.be("present" if live else "absent")
        since = min((one.since for one in live), default=self._workers.since)
        watches = [one for one in said if one.kind == "watch"]
        report = Report(
            status="ok",
            database=_state(self._kept.database),
            watch=_state(concerns.worst(watches)) if watches else None,
            workers=WorkersState(
                state=self._workers.state,
                since=since,
                live=len(live),
                slots=sum(one.detail["slots"] for one in live),
            ),
            mcp_servers=_by_name(one for one in said if one.kind == "server"),
            providers=_by_name(one for one in said if one.kind == "provider" and one.detail["named"]),
        )
        parts = (report.watch, report.workers, *report.mcp_servers.values(), *report.providers.values())
        if self._kept.database.state == "away":
            report.status = "down"
        elif any(part is None or part.state not in _GOOD for part in parts):
            report.status = "degraded"
        return report


def _by_name(said: Iterable[concerns.Said]) -> dict[str, State]:
    places: dict[str, list[concerns.Said]] = {}
    for one in said:
        places.setdefault(one.name, []).append(one)
    return {name: _state(concerns.worst(known)) for name, known in sorted(places.items())}


def _state(found: concerns.Stands) -> State:
    return State(state=found.state, since=found.since)


def routes(readiness: Readiness, health: Health) -> APIRouter:
    """`/healthz`, `/readyz` and `/health`, for everybody."""
    router = strict.router(tag="health")

    @router.get("/healthz", operation_id="checkLiveness")
    async def healthz() -> Serving:
        """Say that the process serves."""
        return Serving()

    @router.get("/readyz", operation_id="checkReadiness")
    async def readyz() -> Ready:
        """Say that the process can do the work of its roles; 503 names what is missing."""
        await readiness.check()
        return Ready(notes=list(readiness.notes()))

    @router.get("/health", operation_id="reportHealth", responses={HTTPStatus.SERVICE_UNAVAILABLE: {"model": Report}})
    async def report(response: Response) -> Report:
        """Tell how everything stands, in all processes: states, and never reasons or addresses, so it needs no token.

        503: the database is away, and only what this process knows by itself is told.
        """
        found = await health.report()
        if found.status == "down":
            response.status_code = HTTPStatus.SERVICE_UNAVAILABLE
        return found

    return router
